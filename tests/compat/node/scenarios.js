// Runs one scenario of kafkajs against a broker and prints what happened, one JSON object per
// step. It checks nothing; the Python test that started it does.
// Arguments: bootstrap, scenario, a name that was never used before, the first record's timestamp.
'use strict'

const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } =
  require('kafkajs')
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')

// How much slower this machine is than a quiet one; time limits grow with it.
const SLOWNESS = Number(process.env.SLOWNESS || 1)
const patient = ms => Math.round(ms * SLOWNESS)

const [bootstrap, scenario, prefix, firstTimestamp] = process.argv.slice(2)
const kafka = new Kafka({
  clientId: 'compat',
  brokers: bootstrap.split(','),
  logLevel: logLevel.NOTHING,
  requestTimeout: patient(10000),
  retry: { initialRetryTime: 50, retries: 8 },
})
const DEADLINE_MS = patient(60000)
const TIME = Number(firstTimestamp)

const step = (name, fields) => console.log(JSON.stringify({ step: name, ...fields }))
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

async function until(condition, withinMs = DEADLINE_MS) {
  const deadline = Date.now() + withinMs
  while (!(await condition())) {
    if (Date.now() > deadline) return false
    await pause(20)
  }
  return true
}

async function failure(call) {
  try {
    await call()
    return 'none'
  } catch (error) {
    const cause = error.errors ? error.errors[0] : error
    return cause.type || (cause.groups && cause.groups[0].error.type) || cause.name
  }
}

async function topic(admin, suffix, numPartitions = 1, configs = {}) {
  const name = `${prefix}-${suffix}`
  const configEntries = Object.entries(configs).map(([key, value]) => ({ name: key, value }))
  await admin.createTopics({
    waitForLeaders: true,
    topics: [{ topic: name, numPartitions, replicationFactor: 1, configEntries }],
  })
  return name
}

async function produce(name, messages, options = {}) {
  const { compression, acks, ...producerOptions } = options
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...producerOptions })
  await producer.connect()
  const placed = await producer.send({ topic: name, messages, compression, acks })
  await producer.disconnect()
  return placed
}

const numbered = (from, to, partitions) =>
  Array.from({ length: to - from }, (_, i) => ({
    value: String(from + i),
    partition: (from + i) % partitions,
    timestamp: String(TIME + 1000 * (from + i)),
  }))

// A group member that records its assignments and the records it read.
class Member {
  constructor(groupId, name, options = {}) {
    this.name = name
    this.owned = null
    this.messages = []
    this.consumer = kafka.consumer({
      groupId,
      sessionTimeout: patient(10000),
      heartbeatInterval: 150,
      maxWaitTimeInMs: 200,
      allowAutoTopicCreation: false,
      ...options,
    })
    this.consumer.on(this.consumer.events.GROUP_JOIN, event => {
      this.owned = event.payload.memberAssignment[name] || []
    })
    this.consumer.on(this.consumer.events.REBALANCING, () => { this.owned = null })
  }

  async start(options = {}) {
    await this.consumer.connect()
    await this.consumer.subscribe({ topics: [this.name], fromBeginning: true })
    await this.consumer.run({
      eachMessage: async ({ partition, message }) => { this.messages.push({ partition, message }) },
      autoCommitInterval: 200,
      ...options,
    })
    return this
  }

  values() {
    return this.messages.map(({ message }) => message.value && message.value.toString())
  }

  async stop() {
    await this.consumer.disconnect()
  }
}

const base64 = data => (data === null || data === undefined ? null : data.toString('base64'))

async function records(admin) {
  const codecs = {
    none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy,
  }
  for (const [codec, compression] of Object.entries(codecs)) {
    const name = await topic(admin, codec)
    const messages = [
      { key: 'key', value: 'value' },
      { key: null, value: 'no key' },
      { key: 'tombstone', value: null },
      { key: 'empty', value: '' },
      { key: 'headers', value: 'h', headers: { one: 'first', again: ['a', 'b'], empty: '' } },
      ...Array.from({ length: 50 }, (_, i) => ({ key: String(i), value: 'long '.repeat(i + 1) })),
    ].map((message, i) => ({ ...message, timestamp: String(TIME + i) }))
    await produce(name, messages, { compression })
    const member = await new Member(name, name).start()
    await until(() => member.messages.length >= messages.length)
    await member.stop()
    step(codec, {
      records: member.messages.map(({ message }) => ({
        offset: Number(message.offset),
        timestamp: Number(message.timestamp),
        key: base64(message.key),
        value: base64(message.value),
        headers: Object.entries(message.headers).map(([key, value]) =>
          [key, Array.isArray(value) ? value.map(base64) : base64(value)]),
      })),
    })
  }
  const large = await topic(admin, 'large', 1, { 'max.message.bytes': '2097152' })
  const value = require('crypto').randomBytes(1024 * 1024)
  await produce(large, [{ value }])
  const reader = await new Member(large, large).start()
  await until(() => reader.messages.length >= 1)
  step('large', { same: reader.messages[0].message.value.equals(value) })
  await reader.stop()

  const ordered = await topic(admin, 'idempotent', 2)
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const offsets = []
  for (let i = 0; i < 20; i++) {
    const messages = numbered(i * 10, i * 10 + 10, 2)
    const placed = await producer.send({ topic: ordered, messages, acks: -1 })
    offsets.push(placed.filter(p => p.partition === 0).map(p => Number(p.baseOffset))[0])
  }
  await producer.disconnect()
  step('idempotent', { offsets })
  for (const acks of [0, 1, -1]) {
    const name = await topic(admin, `acks${acks}`)
    await produce(name, numbered(0, 20, 1), { acks })
    const found = await until(async () =>
      (await admin.fetchTopicOffsets(name))[0].offset === '20')
    step(`acks ${acks}`, { found })
  }
}

const covered = (partitions, ...members) =>
  members.every(m => m.owned && m.owned.length) &&
  members.flatMap(m => m.owned).sort().join() ===
    Array.from({ length: partitions }, (_, i) => i).join()

async function groups(admin) {
  const name = await topic(admin, 'groups', 6)
  const first = await new Member(name, name).start()
  const results = [await until(() => covered(6, first))]
  const second = await new Member(name, name).start()
  results.push(await until(() => covered(6, first, second)))
  const third = await new Member(name, name).start()
  results.push(await until(() => covered(6, first, second, third)))
  await produce(name, numbered(0, 120, 6))
  const all = () => [first, second, third].flatMap(m => m.values())
  await until(() => all().length >= 120)
  step('described', {
    groups: (await admin.describeGroups([name])).groups.map(group => ({
      state: group.state, protocol: group.protocol, members: group.members.length,
    })),
  })
  await first.stop()
  results.push(await until(() => covered(6, second, third)))
  await second.stop()
  results.push(await until(() => covered(6, third)))
  await third.stop()
  step('membership', { covered: results, count: all().length, distinct: new Set(all()).size })

  const resumed = await topic(admin, 'resume', 2)
  await produce(resumed, numbered(0, 40, 2))
  const before = await new Member(resumed, resumed).start()
  await until(() => before.messages.length >= 40)
  await before.stop()
  await produce(resumed, numbered(40, 60, 2))
  const after = await new Member(resumed, resumed).start()
  await until(() => after.messages.length >= 20)
  await pause(300)
  await after.stop()
  step('resume', { values: after.values().map(Number).sort((a, b) => a - b) })

  const latency = await topic(admin, 'latency')
  const waiting = await new Member(latency, latency, { maxWaitTimeInMs: patient(5000) }).start()
  const producer = kafka.producer()
  await producer.connect()
  const waits = []
  for (let i = 1; i <= 3; i++) {
    const started = Date.now()
    await producer.send({ topic: latency, messages: [{ value: 'x' }] })
    await until(() => waiting.messages.length >= i, patient(30000))
    if (i > 1) waits.push(Date.now() - started)
    await pause(300)
  }
  await producer.disconnect()
  await waiting.stop()
  step('latency', { ms: waits })
}

async function offsets(admin) {
  const name = await topic(admin, 'offsets', 2)
  await produce(name, numbered(0, 40, 2))
  const ends = (await admin.fetchTopicOffsets(name)).map(p =>
    [p.partition, Number(p.low), Number(p.high)])
  const byTime = async time => (await admin.fetchTopicOffsetsByTimestamp(name, time))
    .map(p => [p.partition, Number(p.offset)]).sort()
  step('bounds', {
    ends: ends.sort(), early: await byTime(TIME), middle: await byTime(TIME + 20000),
    late: await byTime(TIME + 1000000),
  })

  const member = await new Member(name, name).start()
  await until(() => member.messages.length >= 40)
  member.messages.length = 0
  member.consumer.seek({ topic: name, partition: 1, offset: '15' })
  await until(() => member.messages.length >= 5)
  step('seek', { offsets: member.messages.map(({ message }) => Number(message.offset)) })
  member.messages.length = 0
  member.consumer.pause([{ topic: name, partitions: [0] }])
  await produce(name, numbered(40, 44, 2))
  await until(() => member.messages.length >= 2)
  await pause(500)
  const paused = member.messages.map(m => m.partition)
  member.consumer.resume([{ topic: name, partitions: [0] }])
  await until(() => member.messages.length >= 4)
  step('pause', { paused, all: member.messages.map(m => m.partition).sort() })
  await member.stop()

  await admin.setOffsets({ groupId: name, topic: name, partitions: [{ partition: 0, offset: '7' }] })
  const [set] = await admin.fetchOffsets({ groupId: name, topics: [name] })
  step('set', { offsets: set.partitions.map(p => [p.partition, Number(p.offset)]).sort() })
  await admin.resetOffsets({ groupId: name, topic: name, earliest: true })
  await admin.deleteTopicRecords({ topic: name, partitions: [{ partition: 0, offset: '5' }] })
  const [first] = (await admin.fetchTopicOffsets(name)).filter(p => p.partition === 0)
  step('deleted records', { low: Number(first.low) })
}

async function administration(admin) {
  const cluster = await admin.describeCluster()
  step('cluster', {
    brokers: cluster.brokers.map(b => `${b.host}:${b.port}`),
    controllerIsBroker: cluster.brokers.some(b => b.nodeId === cluster.controller),
    id: cluster.clusterId,
  })
  const name = await topic(admin, 'admin', 2, { 'retention.ms': '1000000' })
  const listed = (await admin.listTopics()).includes(name)
  await admin.createPartitions({ topicPartitions: [{ topic: name, count: 4 }] })
  const grown = await until(async () =>
    (await admin.fetchTopicMetadata({ topics: [name] })).topics[0].partitions.length === 4)
  const again = await admin.createTopics({ topics: [{ topic: name }] })
  step('topics', {
    listed, grown, again,
    bad: await failure(() => admin.createTopics({ topics: [{ topic: 'a b' }] })),
    unknown: await failure(() => admin.fetchTopicMetadata({ topics: [`${name}-none`] })),
  })
  const resource = { type: ConfigResourceTypes.TOPIC, name }
  const value = async key =>
    (await admin.describeConfigs({ resources: [resource], includeSynonyms: false }))
      .resources[0].configEntries.find(entry => entry.configName === key).configValue
  const retention = await value('retention.ms')
  await admin.alterConfigs({
    validateOnly: false,
    resources: [{ ...resource, configEntries: [{ name: 'cleanup.policy', value: 'compact' }] }],
  })
  const changed = await until(async () => (await value('cleanup.policy')) === 'compact')
  step('configs', { retention, changed, reset: await value('retention.ms') })

  const member = await new Member(name, name).start()
  await until(() => covered(4, member))
  const busy = await failure(() => admin.deleteGroups([name]))
  await member.stop()
  const groupListed = (await admin.listGroups()).groups.some(g => g.groupId === name)
  await admin.deleteGroups([name])
  const gone = !(await admin.listGroups()).groups.some(g => g.groupId === name)
  step('groups', { busy, listed: groupListed, gone })
  await admin.deleteTopics({ topics: [name] })
  const deleted = await until(async () => !(await admin.listTopics()).includes(name))
  step('deleted', { deleted })
}

async function main() {
  const admin = kafka.admin()
  await admin.connect()
  await { records, groups, offsets, administration }[scenario](admin)
  await admin.disconnect()
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1) })
