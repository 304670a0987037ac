// Uses a secured broker with kafkajs and prints what happened, one JSON object per step. It checks
// nothing; the Python test that started it does.
// Arguments: the options of the client as JSON, a topic to create, a topic that it may not use. If
// "live" follows, it uses the second topic, waits for a line of input, and uses it again with the
// same connections.
'use strict'

const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const SLOWNESS = Number(process.env.SLOWNESS || 1)
const DEADLINE_MS = 30000 * SLOWNESS
const [given, topic, other, isLive] = process.argv.slice(2)
const { bootstrap, ca, certificate, key, sasl, token } = JSON.parse(given)
const login = token
  ? { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: token }) }
  : sasl
const read = path => path && fs.readFileSync(path, 'utf-8')
const kafka = new Kafka({
  clientId: 'secured',
  brokers: [bootstrap],
  logLevel: logLevel.NOTHING,
  ssl: { ca: [read(ca)], cert: read(certificate), key: read(key) },
  sasl: login,
  connectionTimeout: 5000 * SLOWNESS,
  authenticationTimeout: 10000 * SLOWNESS,
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

async function withProducer(work) {
  const producer = kafka.producer()
  await producer.connect()
  try {
    return await work(producer)
  } finally {
    await producer.disconnect()
  }
}

function produce(to) {
  const messages = ['one', 'two', 'three'].map(value => ({ value }))
  return withProducer(async producer => { await producer.send({ topic: to, messages }) })
}

// Calls `work` with a function that waits for this many records of the topic.
async function withMember(from, group, work) {
  const consumer = kafka.consumer({ groupId: group, retry: { retries: 10 } })
  const values = []
  let failure
  consumer.on(consumer.events.CRASH, ({ payload }) => { failure = payload.error })
  await consumer.connect()
  try {
    await consumer.subscribe({ topic: from, fromBeginning: true })
    await consumer.run({
      eachMessage: async ({ message }) => { values.push(message.value.toString()) },
    })
    return await work(async count => {
      const end = Date.now() + DEADLINE_MS
      while (values.length < count && !failure && Date.now() < end) {
        await new Promise(resolve => setTimeout(resolve, 20))
      }
      if (values.length >= count) return values.splice(0).join(' ')
      throw failure || new Error('too late')
    })
  } finally {
    await consumer.disconnect()
  }
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

// Uses a topic with one producer and one member of a group, before and after a change.
function live(group, to) {
  return withProducer(producer =>
    withMember(to, group, async wait => {
      const send = async value => { await producer.send({ topic: to, messages: [{ value }] }) }
      await step('produce', () => send('one'))
      await step('consume', () => wait(1))
      console.log(JSON.stringify({ step: 'ready' }))
      await new Promise(resolve => process.stdin.once('data', resolve))
      await step('produce again', () => send('two'))
      await step('consume again', () => wait(1))
    }))
}

async function main() {
  if (isLive) return live(topic, other)
  await step('create', () =>
    administer(async admin => { await admin.createTopics({ topics: [{ topic }] }) }))
  await step('produce', () => produce(topic))
  await step('consume', () => withMember(topic, topic, wait => wait(3)))
  await step('list', () =>
    administer(async admin => (await admin.listTopics()).includes(topic) ? 'ok' : 'missing'))
  await step('other', () => produce(other))
}

main().then(() => process.exit(0))
