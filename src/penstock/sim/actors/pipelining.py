"""A client that pipelines a write and the reads after it on one connection, without waiting.

Kafka handles the requests of one connection in order. So a ListOffsets or a Fetch that was sent
after a Produce must see what that has written, if all are answered without an error: with
`acks=all` the answer means that the records are below the high watermark.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError
from penstock.sim.actors.sends import Note, batch_of, notes_for, with_cluster
from penstock.sim.actors.shared_state import REQUEST_TIMEOUT_MS, Actor
from penstock.sim.history import ACKS_ALL, FAIL, INFO, OK, Pipelined
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)

_LATEST: Final = -1
_CONSUMER: Final = -1
_FETCH_BYTES_MAX: Final = 1 << 20
_DEPTH_MAX: Final = 4
_LIST_VERSION_MAX: Final = 9
_FETCH_VERSION_MAX: Final = 12
"""The last version that uses topic names, not topic ids."""


async def run_pipeliner(actor: Actor) -> None:
    cluster = await with_cluster(actor)
    if cluster is None:
        return
    shared = actor.shared
    try:
        while not shared.over.is_set():
            await shared.rest(2 * actor.pause_s())
            partition_name = actor.draws.choice(shared.scenario.written)
            try:
                await _Burst(actor, partition_name).run(cluster)
            except ClientError:
                cluster.forget(TopicPartition.parse(partition_name).topic)
                await shared.rest(0.3)
    finally:
        cluster.close()


class _Burst:
    """Some writes with reads after each, all sent before the first response is read."""

    def __init__(self, actor: Actor, partition_name: str) -> None:
        self._actor = actor
        self._partition_name = partition_name
        self._begun_ms = actor.shared.now_ms()

    async def run(self, cluster: Cluster) -> None:
        actor = self._actor
        connection = await cluster.connection(
            await cluster.leader(TopicPartition.parse(self._partition_name))
        )
        burst = []
        for _ in range(actor.draws.randint(1, _DEPTH_MAX)):
            notes = notes_for(actor, self._partition_name, ACKS_ALL)
            wrote = connection.submit(self._produce(notes), ProduceResponse)
            listed = connection.submit(
                self._list_offsets(), ListOffsetsResponse, version_max=_LIST_VERSION_MAX
            )
            burst.append((notes, wrote, listed))
        answers = [
            (notes, *await asyncio.gather(wrote, listed, return_exceptions=True))
            for notes, wrote, listed in burst
        ]
        ends = [self._settle(*each) for each in answers]
        if ends and ends[-1] >= 0:
            await self._write_and_fetch(connection, ends[-1])
        if any(isinstance(wrote, ClientError) for _, wrote, _ in answers) or -1 in ends:
            cluster.forget(TopicPartition.parse(self._partition_name).topic)

    def _settle(
        self,
        notes: list[Note],
        wrote: ProduceResponse | BaseException,
        listed: ListOffsetsResponse | BaseException,
    ) -> int:
        """Returns where the write ended, or -1 if it was not acknowledged."""
        base = self._note_write(notes, wrote)
        if base < 0 or not isinstance(listed, ListOffsetsResponse):
            return -1
        answer = listed.topics[0].partitions[0]
        end = base + len(notes)
        if answer.error_code == ErrorCode.NONE:
            self._note("ListOffsets", end, answer.offset)
        return end

    async def _write_and_fetch(self, connection: Connection, offset: int) -> None:
        """Writes, and fetches from where the write goes if no other client writes."""
        notes = notes_for(self._actor, self._partition_name, ACKS_ALL)
        wrote = connection.submit(self._produce(notes), ProduceResponse)
        fetched = connection.submit(
            self._fetch(offset), FetchResponse, version_max=_FETCH_VERSION_MAX
        )
        got = await asyncio.gather(wrote, fetched, return_exceptions=True)
        base = self._note_write(notes, got[0])
        if base < 0 or not isinstance(got[1], FetchResponse):
            return
        answer = got[1].responses[0].partitions[0] if got[1].responses else None
        if answer is not None and answer.error_code == ErrorCode.NONE:
            self._note("Fetch", base + len(notes), answer.high_watermark)

    def _note_write(self, notes: list[Note], wrote: ProduceResponse | BaseException) -> int:
        status, base, error = INFO, -1, ""
        if isinstance(wrote, ProduceResponse):
            answer = wrote.responses[0].partition_responses[0]
            error = ErrorCode(answer.error_code).name
            if answer.error_code == ErrorCode.NONE:
                status, base, error = OK, answer.base_offset, ""
            elif answer.error_code in (
                ErrorCode.NOT_ENOUGH_REPLICAS,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ):
                status = FAIL
        else:
            error = str(wrote)
        for index, note in enumerate(notes):
            note.add(status, base + index if status == OK else -1, error)
        return base

    def _note(self, request: str, written_end: int, seen_end: int) -> None:
        shared = self._actor.shared
        shared.count("pipelined_reads")
        shared.history.add(
            Pipelined(
                process=self._actor.name,
                status=OK,
                begun_ms=self._begun_ms,
                ended_ms=shared.now_ms(),
                partition_name=self._partition_name,
                request=request,
                written_end=written_end,
                seen_end=seen_end,
            )
        )

    def _produce(self, notes: list[Note]) -> ProduceRequest:
        at = TopicPartition.parse(self._partition_name)
        batch = batch_of(self._actor, [note.value for note in notes])
        return ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=REQUEST_TIMEOUT_MS * 2 // 3,
            topic_data=[
                ProduceRequest.Topic(
                    at.topic,
                    partition_data=[ProduceRequest.Partition(at.partition, bytearray(batch))],
                )
            ],
        )

    def _list_offsets(self) -> ListOffsetsRequest:
        at = TopicPartition.parse(self._partition_name)
        partition = ListOffsetsRequest.Partition(partition_index=at.partition, timestamp=_LATEST)
        return ListOffsetsRequest(
            replica_id=_CONSUMER,
            topics=[ListOffsetsRequest.Topic(name=at.topic, partitions=[partition])],
        )

    def _fetch(self, offset: int) -> FetchRequest:
        at = TopicPartition.parse(self._partition_name)
        partition = FetchRequest.Partition(
            partition=at.partition,
            fetch_offset=offset,
            partition_max_bytes=_FETCH_BYTES_MAX,
        )
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_FETCH_BYTES_MAX,
            topics=[FetchRequest.Topic(topic=at.topic, partitions=[partition])],
        )
