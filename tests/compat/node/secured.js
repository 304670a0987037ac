// Uses a secured broker with kafkajs and prints what happened, one JSON object per step. It checks
// nothing; the Python test that started it does.
// Arguments: the options of the client as JSON, a topic to create, a topic that it may not use.
'use strict'

const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const SLOWNESS = Number(process.env.SLOWNESS || 1)
const [given, topic, other] = process.argv.slice(2)
const { bootstrap, ca, certificate, key, sasl } = JSON.parse(given)
const read = path => path && fs.readFileSync(path, 'utf-8')
const kafka = new Kafka({
  clientId: 'secured',
  brokers: [bootstrap],
  logLevel: logLevel.NOTHING,
  ssl: { ca: [read(ca)], cert: read(certificate), key: read(key) },
  sasl,
  retry: { initialRetryTime: 50, retries: 3 },
})

async function step(name, work) {
  let result
  try {
    result = (await work()) || 'ok'
  } catch (error) {
    const root = (error.errors && error.errors[0]) || error
    let cause = root
    while (!cause.type && (cause.originalError || cause.cause)) {
      cause = cause.originalError || cause.cause
    }
    result = cause.type || root.name
  }
  console.log(JSON.stringify({ step: name, result }))
}

async function produce(to) {
  const producer = kafka.producer()
  await producer.connect()
  try {
    await producer.send({ topic: to, messages: ['one', 'two', 'three'].map(value => ({ value })) })
  } finally {
    await producer.disconnect()
  }
}

async function consume() {
  const consumer = kafka.consumer({ groupId: topic })
  await consumer.connect()
  const values = []
  try {
    await consumer.subscribe({ topic, fromBeginning: true })
    await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error('too late')), 30000 * SLOWNESS).unref()
      consumer.run({
        eachMessage: async ({ message }) => {
          values.push(message.value.toString())
          if (values.length === 3) resolve()
        },
      })
    })
  } finally {
    await consumer.disconnect()
  }
  return values.join(' ')
}

async function administer(work) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

async function main() {
  await step('create', () =>
    administer(async admin => { await admin.createTopics({ topics: [{ topic }] }) }))
  await step('produce', () => produce(topic))
  await step('consume', consume)
  await step('list', () =>
    administer(async admin => (await admin.listTopics()).includes(topic) ? 'ok' : 'missing'))
  await step('other', () => produce(other))
}

main().then(() => process.exit(0))
