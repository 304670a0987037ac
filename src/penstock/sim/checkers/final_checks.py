"""Checks at the end of a run that everything works again and that all data is there.

First the cluster must recover: all brokers up, every replica in sync, no reassignment in progress.
Then a new producer writes to every partition, and a new consumer reads each from start to end, once
with all records and once with `read_committed`. All of it has a limit in virtual time: exceeding it
is a violation of E14.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from penstock.aio import Admin, Consumer, Producer
from penstock.client.errors import ClientError
from penstock.metadata.image import ClusterImage
from penstock.sim.actors.readers import BytesConsumer, ask_committed, ask_latest, reads_of
from penstock.sim.actors.shared_state import Actor, SharedState
from penstock.sim.checkers.invariants import Invariants
from penstock.sim.history import ACKS_ALL, INFO, OK, Drain, Probe, Send
from penstock.sim.node import BrokerNode
from penstock.sim.world import World
from penstock.topic_partition import TopicPartition


def what_is_wrong(world: World, invariants: Invariants) -> str:
    """Returns why the cluster has not recovered. Empty if it has."""
    image = invariants.metadata.image
    for node in world.brokers:
        if node.state != "ready":
            return f"{node.name} is {node.state}"
        if wrong := _what_it_hosts_wrongly(node, image):
            return wrong
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            partition_name = f"{topic.name}-{index}"
            if {*partition.isr} != {*partition.replicas} or partition.is_moving:
                return f"{partition_name} is not in sync: {partition}"
            broker = world.brokers[partition.leader].broker
            hosted = None if broker is None else broker.replicas.get(topic.name, index)
            term = None if hosted is None else hosted.leadership
            if hosted is None or term is None or term.epoch != partition.leader_epoch:
                return f"broker {partition.leader} does not lead {partition_name} as in {partition}"
            if term.high_watermark < hosted.log.end_offset:
                return f"{partition_name} is committed only up to offset {term.high_watermark}"
            if hosted.last_stable_offset < term.high_watermark:
                return f"{partition_name} has a transaction open since {hosted.last_stable_offset}"
    return ""


def _what_it_hosts_wrongly(node: BrokerNode, image: ClusterImage) -> str:
    """Checks that a broker hosts exactly the replicas that the metadata assigns to it, of the
    current topics."""
    due = {
        (topic.name, index): topic.topic_id
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if node.id in partition.replicas
    }
    assert node.broker is not None
    held = {(each.topic, each.index): each.topic_id for each in node.broker.replicas}
    for name, index in sorted(due.keys() | held.keys()):
        if due.get((name, index)) != held.get((name, index)):
            is_old = (name, index) in due and (name, index) in held
            told = "hosts an older topic's log of" if is_old else "wrongly hosts or lacks"
            return f"{node.name} {told} {name}-{index}"
    return ""


def _probe(shared: SharedState, process: str, what: str, begun_ms: float, error: str) -> None:
    shared.history.add(
        Probe(
            process=process,
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            what=what,
        )
    )


async def come_together(world: World, shared: SharedState, invariants: Invariants) -> bool:
    begun_ms = shared.now_ms()
    with suppress(TimeoutError):
        await world.until(
            lambda: not what_is_wrong(world, invariants),
            timeout_s=shared.scenario.mend_s,
            poll_s=0.25,
            what="the cluster is whole",
        )
    error = what_is_wrong(world, invariants)
    _probe(shared, "cluster", "bringing all replicas in sync", begun_ms, error)
    return not error


async def probe_producing(actor: Actor) -> None:
    """Writes one record to every partition."""
    shared = actor.shared
    begun_ms = shared.now_ms()
    limit_ms = int(shared.scenario.mend_s * 1000)
    keywords: dict[str, Any] = {
        **actor.keywords,
        "delivery_timeout_ms": limit_ms,
        "max_block_ms": limit_ms,
    }
    error = ""
    try:
        async with Producer(shared.bootstrap, env=actor.env, **keywords) as producer:
            for partition_name in shared.scenario.partition_names:
                await send_one(actor, producer, partition_name)
    except ClientError as failed:
        error = str(failed)
    _probe(shared, actor.name, "producing to every partition", begun_ms, error)


async def send_one(
    actor: Actor, producer: Producer[bytes | None, bytes | None], partition_name: str
) -> None:
    at, (number, value) = TopicPartition.parse(partition_name), actor.next_value()
    begun_ms = actor.shared.now_ms()
    delivery = await producer.send(at.topic, value.encode(), partition=at.partition)
    status, offset = INFO, -1
    try:
        offset = (await delivery).offset
        status = OK
    finally:
        actor.shared.history.add(
            Send(
                process=actor.name,
                status=status,
                begun_ms=begun_ms,
                ended_ms=actor.shared.now_ms(),
                partition_name=partition_name,
                value=value,
                number=number,
                acks=ACKS_ALL,
                offset=offset,
            )
        )


async def probe_group(actor: Actor) -> None:
    """Asks once more for the group's committed offsets and for the ends of partitions."""
    shared = actor.shared
    keywords: dict[str, Any] = {
        **actor.keywords,
        "default_api_timeout_ms": int(shared.scenario.mend_s * 1000),
    }
    begun_ms = shared.now_ms()
    error = ""
    try:
        async with Admin(shared.bootstrap, env=actor.env, **keywords) as admin:
            for partition_name in shared.scenario.partition_names:
                await ask_latest(actor, admin, partition_name)
            for group in shared.scenario.groups:
                await ask_committed(actor, admin, group)
    except ClientError as failed:
        error = str(failed)
    failures = [
        entry.error
        for entry in shared.history.entries
        if entry.process == actor.name and entry.status != OK
    ]
    _probe(shared, actor.name, "asking for offsets", begun_ms, error or "; ".join(failures))


async def probe_joining(actor: Actor) -> None:
    """A new member of a new group is assigned everything, reads and commits."""
    shared = actor.shared
    begun_ms = shared.now_ms()
    error = ""
    try:
        async with asyncio.timeout(shared.scenario.mend_s):
            consumer: BytesConsumer = Consumer(
                shared.bootstrap,
                env=actor.env,
                group_id=f"group of {actor.name}",
                topics=[topic.name for topic in shared.scenario.topics],
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                **actor.keywords,
            )
            async with consumer:
                while not await consumer.poll(timeout_ms=500):
                    pass
                await consumer.commit()
    except (ClientError, TimeoutError) as failed:
        error = str(failed) or "it took too long"
    _probe(shared, actor.name, "joining a group, reading and committing", begun_ms, error)


async def drain(actor: Actor, *, committed: bool = False) -> None:
    """Reads every partition from its start to its end.

    If the partition was drained before, the end is that of the earlier drain: what is written
    later is a request that its sender has given up, or a copy of such a record, that reached a
    broker late.
    """
    shared = actor.shared
    drained = {
        entry.partition_name: entry.end_offset
        for entry in shared.history.entries
        if isinstance(entry, Drain) and entry.status == OK
    }
    topic_partitions = [TopicPartition.parse(name) for name in shared.scenario.partition_names]
    begun_ms = shared.now_ms()
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    found: dict[str, list[tuple[int, str]]] = {
        str(topic_partition): [] for topic_partition in topic_partitions
    }
    error = ""
    try:
        async with asyncio.timeout(shared.scenario.mend_s):
            consumer: BytesConsumer = Consumer(
                shared.bootstrap,
                env=actor.env,
                auto_offset_reset="none",
                isolation_level="read_committed" if committed else "read_uncommitted",
                **actor.keywords,
            )
            async with consumer:
                starts = await consumer.beginning_offsets(topic_partitions)
                ends = await consumer.end_offsets(topic_partitions)
                consumer.assign(topic_partitions)
                for topic_partition in topic_partitions:
                    consumer.seek(topic_partition, starts[topic_partition])
                while any((consumer.known_position(at) or 0) < end for at, end in ends.items()):
                    for where, records in reads_of(await consumer.poll(timeout_ms=500)).items():
                        found[where] += records
    except (ClientError, TimeoutError) as failed:
        error = str(failed) or "it took too long"
    for topic_partition in topic_partitions:
        name, end = str(topic_partition), ends.get(topic_partition)
        limit = drained.get(name, end)
        shared.history.add(
            Drain(
                process=actor.name,
                status=INFO if error else OK,
                begun_ms=begun_ms,
                ended_ms=shared.now_ms(),
                error=error,
                partition_name=name,
                start_offset=starts.get(topic_partition, 0),
                end_offset=-1 if end is None else end,
                records=tuple(each for each in found[name] if limit is None or each[0] < limit),
                committed=committed,
            )
        )
