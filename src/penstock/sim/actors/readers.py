"""Readers of a workload: consumers of all partitions, members of a group, and queries for offsets.

A reader keeps its own position: each poll must continue where the last one ended. A member's
position is set again whenever the group assigns it a partition. Its listener notes that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from penstock.aio import Admin, Consumer
from penstock.client.errors import ClientError
from penstock.client.model import Record
from penstock.sim.actors.shared_state import CLIENT_KEYWORDS, Actor
from penstock.sim.history import (
    FAIL,
    INFO,
    OK,
    READERS,
    Commit,
    Committed,
    Joined,
    Latest,
    Poll,
    Reads,
)
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import OffsetCommitRequest, OffsetCommitResponse

_POLL_MS: Final = 1_000

BytesConsumer = Consumer[bytes | None, bytes | None]


def consumer_keywords(actor: Actor) -> dict[str, Any]:
    scenario = actor.shared.scenario
    racks = [f"rack-{index}" for index in range(scenario.racks)]
    return {
        **actor.keywords,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": scenario.fetch_wait_ms,
        "max_poll_records": actor.draws.choice((1, 5, 100)),
        "max_partition_fetch_bytes": actor.draws.choice((200, 2_000, 100_000)),
        "default_api_timeout_ms": 10_000,
        "allow_auto_create_topics": False,
        "client_rack": actor.draws.choice(racks) if racks else "",
    }


def reads_of(records: Iterable[Record[bytes | None, bytes | None]]) -> Reads:
    reads: dict[str, list[tuple[int, str]]] = {}
    for record in records:
        value = (record.value or b"").decode(errors="replace")
        reads.setdefault(str(record.topic_partition), []).append((record.offset, value))
    return {partition_name: tuple(found) for partition_name, found in reads.items()}


def _note_poll(
    actor: Actor,
    begun_ms: float,
    status: str,
    reads: Reads | None = None,
    moved: Sequence[str] = (),
    error: str = "",
    committed: bool = False,
) -> None:
    shared = actor.shared
    shared.count("records_read", sum(map(len, reads.values())) if reads else 0)
    shared.history.add(
        Poll(
            process=actor.name,
            status=status,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            reads=reads or {},
            moved=tuple(moved),
            committed=committed,
        )
    )


async def run_reader(actor: Actor, *, committed: bool = False) -> None:
    """Reads all partitions, from the start on, until the load is over."""
    shared = actor.shared
    while not shared.over.is_set():
        consumer: BytesConsumer = Consumer(
            shared.bootstrap,
            env=actor.env,
            isolation_level="read_committed" if committed else "read_uncommitted",
            **consumer_keywords(actor),
        )
        try:
            await consumer.start()
        except ClientError:
            await shared.rest(0.5)
            continue
        try:
            consumer.assign(
                [
                    TopicPartition.parse(partition_name)
                    for partition_name in shared.scenario.partition_names
                ]
            )
            await _read_on(actor, consumer, committed)
        finally:
            with suppress(ClientError):
                await consumer.close(timeout_s=5.0)


async def _read_on(actor: Actor, consumer: BytesConsumer, committed: bool) -> None:
    shared = actor.shared
    moved: Sequence[str] = shared.scenario.partition_names
    failures = 0
    while not shared.over.is_set() and failures < 5:
        begun_ms = shared.now_ms()
        try:
            records = await consumer.poll(timeout_ms=_POLL_MS)
        except ClientError as error:
            failures += 1
            _note_poll(actor, begun_ms, INFO, moved=moved, error=str(error), committed=committed)
            await shared.rest(0.5)
        else:
            failures = 0
            if records or moved:
                _note_poll(actor, begun_ms, OK, reads_of(records), moved, committed=committed)
        moved = ()
        await shared.rest(actor.draws.choice((0.0, 0.1, 0.5)))
        if actor.draws.random() < 0.01:
            moved = _seek_back(actor, consumer)


def _seek_back(actor: Actor, consumer: BytesConsumer) -> Sequence[str]:
    """Seeks to the start of a partition, to read it again: what was read must still be there."""
    partition_name = actor.draws.choice(actor.shared.scenario.partition_names)
    consumer.seek_to_beginning(TopicPartition.parse(partition_name))
    return (partition_name,)


class _Listener:
    """Notes which partitions a member was assigned, and in which generation."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.consumer: BytesConsumer | None = None
        self.moved: dict[str, None] = {}

    @property
    def generation(self) -> int:
        # The library does not expose it: only a checker needs it.
        member = None if self.consumer is None else self.consumer._core._member
        return -1 if member is None else member.generation

    def on_assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
        self.moved.update(dict.fromkeys(map(str, topic_partitions)))
        shared, generation = self._actor.shared, self.generation
        shared.count("rebalances")
        if generation < 0:
            return
        shared.generations[READERS] = max(shared.generations.get(READERS, -1), generation)
        now_ms = shared.now_ms()
        shared.history.add(
            Joined(
                process=self._actor.name,
                status=OK,
                begun_ms=now_ms,
                ended_ms=now_ms,
                group=READERS,
                generation=generation,
            )
        )

    def on_revoked(self, topic_partitions: Sequence[TopicPartition]) -> None:
        pass

    def on_lost(self, topic_partitions: Sequence[TopicPartition]) -> None:
        pass


async def run_member(actor: Actor) -> None:
    """Runs a member of the group, which commits what it has read. Sometimes it leaves and
    joins again."""
    shared = actor.shared
    while not shared.over.is_set():
        listener = _Listener(actor)
        consumer: BytesConsumer = Consumer(
            shared.bootstrap,
            env=actor.env,
            group_id=READERS,
            topics=[topic.name for topic in shared.scenario.topics],
            listener=listener,
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            rebalance_timeout_ms=6_000,
            **consumer_keywords(actor),
        )
        listener.consumer = consumer
        try:
            await consumer.start()
        except ClientError:
            await shared.rest(0.5)
            continue
        try:
            await _take_part(actor, consumer, listener)
        finally:
            with suppress(ClientError):
                await consumer.close(timeout_s=5.0)


async def _take_part(actor: Actor, consumer: BytesConsumer, listener: _Listener) -> None:
    shared = actor.shared
    failures = 0
    while not shared.over.is_set() and failures < 5:
        begun_ms = shared.now_ms()
        try:
            records = await consumer.poll(timeout_ms=_POLL_MS)
        except ClientError as error:
            failures += 1
            _note_poll(actor, begun_ms, INFO, moved=[*listener.moved], error=str(error))
            await shared.rest(0.5)
        else:
            failures = 0
            if records or listener.moved:
                _note_poll(actor, begun_ms, OK, reads_of(records), [*listener.moved])
            if records and actor.draws.random() < 0.7:
                await _commit(actor, consumer, listener, records)
        listener.moved.clear()
        if actor.draws.random() < 0.01:
            shared.count("members_left")
            return


async def _commit(
    actor: Actor,
    consumer: BytesConsumer,
    listener: _Listener,
    records: Sequence[Record[bytes | None, bytes | None]],
) -> None:
    shared = actor.shared
    begun_ms = shared.now_ms()
    offsets = {record.topic_partition: record.offset + 1 for record in records}
    entry = Commit(
        process=actor.name,
        status=INFO,
        begun_ms=begun_ms,
        ended_ms=begun_ms,
        group=READERS,
        generation=listener.generation,
        offsets={str(partition_name): offset for partition_name, offset in offsets.items()},
    )
    shared.under_way[actor.name] = lambda: [
        replace(entry, ended_ms=shared.now_ms(), error="it was killed")
    ]
    status, error = OK, ""
    try:
        await consumer.commit(offsets)
    except ClientError as failed:
        # Even a refusal may follow an attempt that was written and whose reply was lost.
        status, error = INFO, str(failed)
    del shared.under_way[actor.name]
    shared.count(f"commits_{status}")
    # The commit carries the newer generation if the group rebalanced and the member kept
    # its partitions.
    generation = max(entry.generation, listener.generation)
    # A client that loses its connection repeats a commit after this pause. What it sent before may
    # still arrive, after later commits.
    late = shared.now_ms() - begun_ms >= CLIENT_KEYWORDS["retry_backoff_ms"]
    shared.history.add(
        replace(
            entry,
            status=status,
            ended_ms=shared.now_ms(),
            error=error,
            generation=generation,
            late=late,
        )
    )


# -- queries


async def run_asker(actor: Actor) -> None:
    """Asks for the ends of partitions and for the group's committed offsets."""
    shared = actor.shared
    keywords: dict[str, Any] = {**actor.keywords, "default_api_timeout_ms": 5_000}
    while not shared.over.is_set():
        admin = Admin(shared.bootstrap, env=actor.env, **keywords)
        try:
            await admin.start()
        except ClientError:
            await shared.rest(0.5)
            continue
        try:
            while not shared.over.is_set():
                await shared.rest(actor.draws.choice((0.1, 0.5, 2.0)))
                await ask_latest(actor, admin, actor.draws.choice(shared.scenario.partition_names))
                if shared.scenario.members:
                    await ask_committed(actor, admin)
                    if actor.draws.random() < 0.1:
                        await _commit_as_of_old(actor)
        finally:
            await admin.close()


async def ask_latest(actor: Actor, admin: Admin, partition_name: str) -> None:
    shared = actor.shared
    begun_ms = shared.now_ms()
    at = TopicPartition.parse(partition_name)
    status, offset, error = OK, -1, ""
    try:
        found = (await admin.list_offsets({at: "latest"}))[at]
        offset = -1 if found is None else found.offset
    except ClientError as failed:
        status, error = INFO, str(failed)
    shared.history.add(
        Latest(
            process=actor.name,
            status=status,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            partition_name=partition_name,
            offset=offset,
        )
    )


async def ask_committed(actor: Actor, admin: Admin, group: str = READERS) -> None:
    shared = actor.shared
    begun_ms = shared.now_ms()
    status, error = OK, ""
    offsets: dict[str, int] = {}
    try:
        found = await admin.group_offsets(group)
        offsets = {
            partition_name: found[at].offset
            if (at := TopicPartition.parse(partition_name)) in found
            else -1
            for partition_name in shared.scenario.partition_names
        }
    except ClientError as failed:
        status, error = INFO, str(failed)
    shared.history.add(
        Committed(
            process=actor.name,
            status=status,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            group=group,
            offsets=offsets,
        )
    )


async def _commit_as_of_old(actor: Actor) -> None:
    """Commits as a member of an earlier generation would. This must be refused."""
    shared = actor.shared
    generation = shared.generations.get(READERS, 0) - 1
    if generation < 0:
        return
    at = TopicPartition.parse(actor.draws.choice(shared.scenario.partition_names))
    begun_ms = shared.now_ms()
    partition = OffsetCommitRequest.Partition(partition_index=at.partition, committed_offset=0)
    request = OffsetCommitRequest(
        group_id=READERS,
        generation_id_or_member_epoch=generation,
        member_id="nobody",
        topics=[OffsetCommitRequest.Topic(name=at.topic, partitions=[partition])],
    )
    cluster = actor.cluster()
    try:
        async with cluster:
            coordinator = await cluster.coordinator(READERS)
            answer = await coordinator.call(request, OffsetCommitResponse)
    except ClientError:
        return
    shared.count("commits_of_old")
    code = answer.topics[0].partitions[0].error_code
    shared.history.add(
        Commit(
            process=actor.name,
            status=OK if code == ErrorCode.NONE else FAIL,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=ErrorCode(code).name,
            group=READERS,
            generation=generation,
            offsets={str(at): 0},
        )
    )
