"""Reads a delay topic and its targets: the targets all the time during a run, and everything once
more in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from penstock.aio import Admin, Consumer
from penstock.client.errors import ClientError
from penstock.client.model import Record
from penstock.records.job_headers import DELIVER_AT, OWN_TIMESTAMP
from penstock.sim.actors.delay_sender import set_delay_target
from penstock.sim.actors.readers import BytesConsumer, consumer_keywords
from penstock.sim.actors.shared_state import Actor
from penstock.sim.delay_plan import DELAY_TARGETS, TARGET_PARTITIONS_MAX
from penstock.sim.history import INFO, OK, CopiesRead, CopyRow
from penstock.topic_partition import TopicPartition

_POLL_MS: Final = 1_000
_QUIET_POLLS: Final = 10
_PATIENT_POLLS: Final = 45
"""How many polls may bring nothing before what has come is taken for all: if nothing is missing,
and otherwise."""


def read_row(record: Record[bytes | None, bytes | None]) -> CopyRow:
    """Returns what a record of a delay topic or of its target says."""
    due_ms, own_ms = (
        int(text) if (text := record.header(name)) else 0 for name in (DELIVER_AT, OWN_TIMESTAMP)
    )
    value = (record.value or b"").decode(errors="replace")
    return record.offset, value, due_ms, record.timestamp, own_ms


def _committed(actor: Actor) -> BytesConsumer:
    keywords = {**consumer_keywords(actor), "isolation_level": "read_committed"}
    return Consumer(actor.shared.bootstrap, env=actor.env, **keywords)


async def run_delay_reader(actor: Actor) -> None:
    """Reads both targets from the start on, until the load is over."""
    shared = actor.shared
    while not shared.over.is_set():
        with suppress(ClientError):
            async with _committed(actor) as consumer:
                await _read_on(actor, consumer)
        await shared.rest(0.5)


async def _read_on(actor: Actor, consumer: BytesConsumer) -> None:
    """Reads until an error, or for a while: partitions may have been added meanwhile."""
    shared = actor.shared
    consumer.assign(await _target_partitions(consumer))
    for _ in range(20):
        begun_ms = shared.now_ms()
        found = await consumer.poll(timeout_ms=_POLL_MS)
        for at, rows in _by_partition(found).items():
            _note(actor, at, begun_ms, rows)
        if shared.over.is_set():
            return
        await shared.rest(actor.draws.choice((0.0, 0.1, 0.5)))


async def _target_partitions(consumer: BytesConsumer) -> list[TopicPartition]:
    """Returns those that a broker knows."""
    known = [
        TopicPartition(target, index)
        for target in DELAY_TARGETS
        for index in range(await consumer.partitions_for(target))
    ]
    assert len(known) <= len(DELAY_TARGETS) * TARGET_PARTITIONS_MAX
    return known


def _by_partition(
    records: Iterable[Record[bytes | None, bytes | None]],
) -> dict[TopicPartition, list[CopyRow]]:
    found: dict[TopicPartition, list[CopyRow]] = {}
    for record in records:
        found.setdefault(record.topic_partition, []).append(read_row(record))
    return found


async def drain_delays(actor: Actor) -> None:
    """Reads the delay topic to its end, and the targets until all of its records have come."""
    shared = actor.shared
    plan = shared.scenario.delays
    if plan is None:
        return
    begun_ms, error = shared.now_ms(), ""
    sources = [TopicPartition.parse(name) for name in plan.partition_names]
    found: dict[TopicPartition, list[CopyRow]] = {}
    try:
        async with asyncio.timeout(shared.scenario.mend_s + plan.due_max_s):
            async with Admin(shared.bootstrap, env=actor.env, **actor.keywords) as admin:
                await set_delay_target(admin, DELAY_TARGETS[0])
            async with _committed(actor) as consumer:
                found |= await _read_to_end(consumer, sources)
            wanted = {row[1] for rows in found.values() for row in rows}
            async with _committed(actor) as consumer:
                found |= await _read_until(consumer, wanted)
    except (ClientError, TimeoutError) as failed:
        error = str(failed) or "it took too long"
    for at in dict.fromkeys((*sources, *found)):
        rows = found.get(at, [])
        _note(actor, at, begun_ms, rows, is_source=at in sources, is_all=True, error=error)


async def _read_to_end(
    consumer: BytesConsumer, partitions: list[TopicPartition]
) -> dict[TopicPartition, list[CopyRow]]:
    found: dict[TopicPartition, list[CopyRow]] = {at: [] for at in partitions}
    ends = await consumer.end_offsets(partitions)
    consumer.assign(partitions)
    while any((consumer.known_position(at) or 0) < end for at, end in ends.items()):
        for at, rows in _by_partition(await consumer.poll(timeout_ms=_POLL_MS)).items():
            found[at] += rows
    return found


async def _read_until(
    consumer: BytesConsumer, wanted: set[str]
) -> dict[TopicPartition, list[CopyRow]]:
    """Reads the targets until every value has come and then nothing more, or until nothing has come
    for a while."""
    partitions = await _target_partitions(consumer)
    found: dict[TopicPartition, list[CopyRow]] = {at: [] for at in partitions}
    consumer.assign(partitions)
    missing, quiet = set(wanted), 0
    while quiet < (_PATIENT_POLLS if missing else _QUIET_POLLS):
        more = _by_partition(await consumer.poll(timeout_ms=_POLL_MS))
        quiet = 0 if more else quiet + 1
        for at, rows in more.items():
            found[at] += rows
            missing -= {row[1] for row in rows}
    return found


def _note(
    actor: Actor,
    at: TopicPartition,
    begun_ms: float,
    rows: list[CopyRow],
    *,
    is_source: bool = False,
    is_all: bool = False,
    error: str = "",
) -> None:
    shared = actor.shared
    now_ms = shared.now_ms()
    shared.count("delayed_records_read" if is_source else "copies_read", len(rows))
    shared.history.add(
        CopiesRead(
            process=actor.name,
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=now_ms,
            error=error,
            partition_name=str(at),
            rows=tuple(rows),
            is_source=is_source,
            is_all=is_all,
            wall_max_ms=shared.wall_range(None, 0.0, now_ms)[1],
        )
    )
