"""The checks of `penstock doctor` for a cluster: brokers, disks, partitions, clocks.

Clocks are compared by sending a record. In a topic with `message.timestamp.type=LogAppendTime` a
broker answers a produce request with the time at which it accepted the record. If the clocks
agree, that time is between the sending and the answer. Only a time outside of this interval proves
that they differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from penstock.cli.doctor_finding import Finding, State
from penstock.cli.doctor_health import OPEN, MetricsAccess, check_health
from penstock.cli.output import count, size_text
from penstock.cli.session import CLIENT_ID, CONNECT_TIMEOUT_MS, checked, connect
from penstock.cli.status import gather
from penstock.client.admin.admin import Admin
from penstock.client.admin.inspection import LogDirInfo
from penstock.client.admin.operations import BrokerInfo
from penstock.client.consumer import Consumer
from penstock.client.errors import ClientError, ConnectFailed
from penstock.client.producing.producer import Producer
from penstock.ports import Clock
from penstock.runtime import SystemClock, SystemRandom
from penstock.topic_partition import TopicPartition

SKEW_MS: Final = 1_000
_SLOW_MS: Final = 500
_PATIENCE_S: Final = 5.0
_FREE_SHARE_LEAST: Final = 0.10
_ANSWER_MS: Final = 10_000
_INTERNAL_TOPICS: Final = {
    "__consumer_offsets": "offsets.topic.replication.factor",
    "__transaction_state": "transaction.state.log.replication.factor",
    "__share_group_state": "share.coordinator.state.topic.replication.factor",
}


async def check_cluster(
    bootstrap: str, *, expected: bool, probe: bool, access: MetricsAccess = OPEN
) -> list[Finding]:
    """Checks the cluster. `expected`: the user named a cluster, so having none is a problem."""
    findings: list[Finding] = []
    try:
        async with connect(bootstrap) as admin:
            async for each in _check(admin, bootstrap, probe, access):
                findings.append(each)
    except ConnectFailed as error:
        advice = "start one with: penstock up, or give its address with --bootstrap"
        if expected:
            findings.append(Finding("cluster", State.PROBLEM, str(error), advice))
        else:
            findings.append(Finding("cluster", State.NOTE, f"no broker at {bootstrap}", advice))
    except ClientError as error:
        findings.append(Finding("cluster", State.PROBLEM, str(error), "see the brokers' logs"))
    return findings


async def _check(
    admin: Admin, bootstrap: str, probe: bool, access: MetricsAccess
) -> AsyncIterator[Finding]:
    clock = SystemClock()
    info = await admin.describe_cluster()
    for broker in info.brokers:
        yield await _check_broker(broker, clock)
        for each in await check_health(broker, access):
            yield each
    for each in check_standing(await gather(admin)):
        yield each
    async for each in _check_internal_topics(admin, [broker.id for broker in info.brokers]):
        yield each
    for each in check_disks(await admin.describe_log_dirs()):
        yield each
    if not probe:
        found = "not compared with the brokers' clocks"
        yield Finding("clocks", State.NOTE, found, "to compare them: penstock doctor --probe")
        return
    async for each in _probe(admin, bootstrap, len(info.brokers), clock):
        yield each


async def _check_broker(broker: BrokerInfo, clock: Clock) -> Finding:
    """Checks the broker at its advertised address, which clients use after the bootstrap."""
    name = f"broker {broker.id}"
    began = clock.monotonic()
    try:
        async with asyncio.timeout(_PATIENCE_S), connect(str(broker.address)) as admin:
            await admin.describe_cluster()
    except (ClientError, TimeoutError) as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        advice = (
            "check its process and its log; if it runs, clients must be able to reach it at its "
            "advertised_host and advertised_port"
        )
        return Finding(name, State.PROBLEM, f"{broker.address}: {reason}", advice)
    took_ms = (clock.monotonic() - began) * 1000
    found = f"{broker.address} answers in {took_ms:.0f} ms"
    if took_ms > _SLOW_MS:
        return Finding(
            name, State.WARNING, found, "it is overloaded, blocked or far away: see its log"
        )
    return Finding(name, State.OK, found)


def check_standing(status: dict[str, object]) -> Iterator[Finding]:
    """Turns the advice of `penstock status` into findings.

    The first is a problem if partitions are offline or below min.insync.replicas. All others are
    warnings.
    """
    advice = status["advice"]
    assert isinstance(advice, list)
    brokers = status["brokers"]
    assert isinstance(brokers, list)
    urgent = bool(status["offline_partitions"] or status["under_min_isr_partitions"])
    for number, each in enumerate(advice):
        found, _, what = str(each).partition(": ")
        state = State.PROBLEM if urgent and number == 0 else State.WARNING
        yield Finding("cluster", state, found, what)
    if not advice:
        found = f"{count(len(brokers), 'broker')}, {status['partitions']} partitions, no problems"
        yield Finding("cluster", State.OK, found)


async def _check_internal_topics(admin: Admin, brokers: Sequence[int]) -> AsyncIterator[Finding]:
    if not brokers:
        return
    configs = await admin.describe_configs(broker=brokers[0])
    topics = {topic.name: topic for topic in await admin.list_topics(internal=True)}
    for name, setting in _INTERNAL_TOPICS.items():
        entry, topic = configs.get(setting), topics.get(name)
        if entry is None or entry.value is None:
            continue
        held = None if topic is None else topic.replication_factor
        found = check_replicas(name, setting, int(entry.value), held, len(brokers))
        if found is not None:
            yield found


def check_replicas(
    name: str, setting: str, wanted: int, held: int | None, brokers: int
) -> Finding | None:
    """Checks whether an internal topic has as many replicas as configured.

    `held` is its number of replicas, or None if it does not exist yet.
    """
    if held is None:
        if brokers >= wanted:
            return None
        found = (
            f"not created yet: {setting} is {wanted}, but the cluster has "
            f"{count(brokers, 'broker')}"
        )
        advice = f"start {wanted - brokers} more, or set {setting}={brokers} on the brokers"
        return Finding(name, State.WARNING, found, advice)
    if held >= wanted:
        return None
    found = f"{count(held, 'replica')}, but {setting} is {wanted}"
    if brokers < wanted:
        advice = f"start {count(wanted - brokers, 'more broker')}, then run this again"
    else:
        advice = f"penstock cluster replicate {name} --replicas {wanted}"
    return Finding(name, State.WARNING, found, advice)


def check_disks(directories: Sequence[LogDirInfo]) -> Iterator[Finding]:
    for each in directories:
        name = f"disk of {each.broker}"
        if each.error is not None:
            advice = "repair the disk, then start the broker again"
            yield Finding(name, State.PROBLEM, f"{each.path}: {each.error}", advice)
        elif 0 <= each.usable_bytes < each.total_bytes * _FREE_SHARE_LEAST:
            advice = "add space, or lower retention.ms and retention.bytes of large topics"
            free = f"{size_text(each.usable_bytes)} free of {size_text(each.total_bytes)}"
            yield Finding(name, State.WARNING, f"{each.path}: {free}", advice)


async def _probe(
    admin: Admin, bootstrap: str, brokers: int, clock: Clock
) -> AsyncIterator[Finding]:
    """Writes and reads a record on every broker, in a topic that is deleted afterwards."""
    topic = f"penstock-doctor-{SystemRandom().bytes(6).hex()}"
    settings = {"message.timestamp.type": "LogAppendTime"}
    try:
        await admin.create_topic(topic, brokers, 1, settings)
    except ClientError as error:
        yield Finding("probe", State.PROBLEM, f"cannot create a topic: {error}", "see its log")
        return
    try:
        info = await admin.describe_topic(topic)
        leaders = {part.index: part.leader for part in info.partitions}
        async with Producer(
            checked(bootstrap),
            client_id=CLIENT_ID,
            socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
            request_timeout_ms=_ANSWER_MS,
            delivery_timeout_ms=2 * _ANSWER_MS,
        ) as producer:
            for index in sorted(leaders, key=lambda each: leaders[each]):
                yield await _write(producer, TopicPartition(topic, index), leaders, clock)
        yield await _read_back(bootstrap, topic, len(leaders), clock)
    finally:
        await admin.delete_topic(topic)


async def _write(
    producer: Producer[bytes | None, bytes | None],
    topic_partition: TopicPartition,
    leaders: dict[int, int],
    clock: Clock,
) -> Finding:
    name = f"probe {leaders[topic_partition.partition]}"
    try:
        # The first record also opens the connection, so the second one is timed.
        for _ in range(2):
            before_ms = clock.wall_ms()
            delivery = await producer.send(
                topic_partition.topic, b"?", partition=topic_partition.partition
            )
            answer = await delivery
            after_ms = clock.wall_ms()
    except ClientError as error:
        return Finding(name, State.PROBLEM, f"a record was refused: {error}", "see its log")
    return compare_clocks(name, before_ms, answer.timestamp, after_ms)


def compare_clocks(name: str, before_ms: int, broker_ms: int, after_ms: int) -> Finding:
    """Reports the proven skew: how far the broker's time is outside of the interval here."""
    ahead_ms = max(0, broker_ms - after_ms)
    behind_ms = max(0, before_ms - broker_ms)
    found = f"a record is acknowledged in {after_ms - before_ms} ms"
    skew_ms = max(ahead_ms, behind_ms)
    if skew_ms <= SKEW_MS:
        return Finding(name, State.OK, f"{found}, its clock matches ours")
    which = "ahead of" if ahead_ms else "behind"
    advice = (
        "synchronise both clocks (chrony, ntpd): brokers use theirs for retention and reads by "
        "time, producers use theirs for the timestamps of records"
    )
    return Finding(
        name, State.WARNING, f"{found}; its clock is {skew_ms / 1000:,.1f} s {which} ours", advice
    )


async def _read_back(bootstrap: str, topic: str, partitions: int, clock: Clock) -> Finding:
    topic_partitions = [TopicPartition(topic, index) for index in range(partitions)]
    seen: set[int] = set()
    began = clock.monotonic()
    try:
        async with Consumer(
            checked(bootstrap),
            client_id=CLIENT_ID,
            auto_offset_reset="earliest",
            socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
        ) as consumer:
            consumer.assign(topic_partitions)
            async with asyncio.timeout(_ANSWER_MS / 1000):
                while len(seen) < partitions:
                    seen |= {each.partition for each in await consumer.poll(timeout_ms=500)}
    except (ClientError, TimeoutError) as error:
        reason = (
            "the records did not arrive in time" if isinstance(error, TimeoutError) else str(error)
        )
        return Finding("probe reads", State.PROBLEM, reason, "see the logs of the brokers")
    took_ms = (clock.monotonic() - began) * 1000
    return Finding("probe reads", State.OK, f"the records were read back in {took_ms:.0f} ms")
