"""Producers of a workload: the library's own, and raw ones that control every request.

The library's producer hides retries, as it should. A raw one shows what a broker does with each
single request, with a batch that is sent twice, and with one that arrives late on a connection that
its sender has given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from penstock.aio import Producer
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, check
from penstock.sim.actors.job_times import draw_times
from penstock.sim.actors.sends import Answered, Note, batch_of, notes_for, produce, with_cluster
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import ACKS_ALL, FAIL, INFO, OK
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import InitProducerIdRequest, InitProducerIdResponse

_REFUSED: Final = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Errors after which nothing was written: they are returned before anything is."""
_GIVE_UP: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_ATTEMPTS_MAX: Final = 12


async def run_producer(actor: Actor, kind: str) -> None:
    """Runs one producer until the load is over and what it sent has had its time."""
    if kind.startswith("real"):
        await _run_real(actor, kind)
    elif kind == "raw_twice":
        await _RawTwice(actor).run()
    else:
        await _run_raw(actor, 1 if kind == "raw_acks_1" else ACKS_ALL)


# -- the library's producer


async def _run_real(actor: Actor, kind: str) -> None:
    shared = actor.shared
    idempotent = kind == "real_idempotent"
    keywords: dict[str, Any] = {
        **actor.keywords,
        "acks": 1 if kind == "real_acks_1" else "all",
        "enable_idempotence": idempotent,
        "linger_ms": actor.draws.choice((0, 5, 50)),
        "batch_size": actor.draws.choice((100, 1_000, 16_384)),
        "delivery_timeout_ms": actor.draws.choice((5_000, 15_000, 60_000)),
        "max_block_ms": 5_000,
        "allow_auto_create_topics": False,
    }
    acks = 1 if kind == "real_acks_1" else ACKS_ALL
    while not shared.over.is_set():
        producer = Producer(shared.bootstrap, env=actor.env, **keywords)
        try:
            await producer.start()
        except ClientError:
            await shared.rest(0.5)
            continue
        try:
            await _send_on(actor, producer, acks, idempotent)
        finally:
            with suppress(ClientError):
                await producer.close(timeout_s=20.0)


async def _send_on(
    actor: Actor, producer: Producer[bytes | None, bytes | None], acks: int, idempotent: bool
) -> None:
    """Sends until the load is over or the producer cannot continue."""
    shared = actor.shared
    failures = 0
    while not shared.over.is_set() and failures < 5:
        await shared.rest(actor.pause_s())
        for _ in range(actor.draws.randint(1, shared.scenario.batch_max)):
            partition_name = actor.draws.choice(shared.scenario.written)
            number, value = actor.next_value()
            at = TopicPartition.parse(partition_name)
            note = Note(actor, partition_name, value, number, acks, idempotent, shared.now_ms())
            times = draw_times(actor)
            try:
                await producer.send(
                    at.topic,
                    value.encode(),
                    partition=at.partition,
                    headers=times.headers,
                    timestamp_ms=times.timestamp_ms,
                    on_delivery=note.settle,
                )
            except ClientError as error:
                # The producer did not accept it, so it can never be written.
                note.add(FAIL, error=str(error))
                failures += 1
            else:
                failures = 0


# -- raw producers


async def _run_raw(actor: Actor, acks: int) -> None:
    """Sends every batch a single time, whatever the result."""
    cluster = await with_cluster(actor)
    if cluster is None:
        return
    shared = actor.shared
    try:
        while not shared.over.is_set():
            await shared.rest(actor.pause_s())
            partition_name = actor.draws.choice(shared.scenario.written)
            notes = notes_for(actor, partition_name, acks)
            left = False

            def on_sent() -> None:
                nonlocal left
                left = True

            batch = batch_of(actor, [note.value for note in notes])
            status, offset, error = OK, -1, ""
            try:
                offset = await produce(cluster, partition_name, batch, acks, on_sent)
            except Answered as answered:
                status = FAIL if answered.code in _REFUSED else INFO
                error = str(answered)
            except ClientError as failure:
                status = INFO if left else FAIL
                error = str(failure)
                await shared.rest(0.2)
            for index, note in enumerate(notes):
                note.add(status, offset + index if status == OK else -1, error)
    finally:
        cluster.close()


class _RawTwice:
    """An idempotent producer that retries until it is answered, and sometimes even afterwards.

    A batch that was acknowledged and is sent again must be answered with its first offset.
    """

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._producer_id = -1
        self._producer_epoch = 0
        self._sequences: dict[str, int] = {}

    async def run(self) -> None:
        actor = self._actor
        cluster = await with_cluster(actor)
        if cluster is None:
            return
        shared = actor.shared
        try:
            while not shared.over.is_set():
                await shared.rest(actor.pause_s())
                if self._producer_id < 0 and not await self._begin(cluster):
                    await shared.rest(0.5)
                    continue
                await self._send(cluster, actor.draws.choice(shared.scenario.written))
        finally:
            cluster.close()

    async def _begin(self, cluster: Cluster) -> bool:
        """Gets a new producer id. Sequence numbers start from 0 again."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        try:
            answer = await cluster.ask_any(request, InitProducerIdResponse)
            check(answer.error_code)
        except ClientError:
            return False
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        return True

    async def _send(self, cluster: Cluster, partition_name: str) -> None:
        actor = self._actor
        notes = notes_for(actor, partition_name, ACKS_ALL)
        batch = batch_of(
            actor,
            [note.value for note in notes],
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._sequences.get(partition_name, 0),
        )
        status, offset, error = await self._insist(cluster, partition_name, batch)
        for index, note in enumerate(notes):
            note.add(status, offset + index if offset >= 0 else -1, error)
        if status != OK:
            # It is unknown whether it was written, so no sequence number can be right after it.
            self._producer_id = -1
            return
        self._sequences[partition_name] = self._sequences.get(partition_name, 0) + len(notes)
        if actor.draws.random() < 0.15:
            await self._repeat(cluster, partition_name, batch, notes)

    async def _insist(
        self, cluster: Cluster, partition_name: str, batch: bytes
    ) -> tuple[str, int, str]:
        shared = self._actor.shared
        error = ""
        for _ in range(_ATTEMPTS_MAX):
            try:
                return OK, await produce(cluster, partition_name, batch, ACKS_ALL, _nothing), ""
            except Answered as answered:
                error = str(answered)
                if answered.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    return OK, -1, ""
                if answered.code in _GIVE_UP:
                    break
            except ClientError as failure:
                error = str(failure)
            await shared.rest(0.3)
            if shared.over.is_set():
                break
        return INFO, -1, error

    async def _repeat(
        self, cluster: Cluster, partition_name: str, batch: bytes, notes: Sequence[Note]
    ) -> None:
        """Sends an acknowledged batch again. If it is acknowledged, its offset must be the
        first one."""
        shared = self._actor.shared
        await shared.rest(self._actor.draws.choice((0.0, 0.5, 3.0)))
        shared.count("sent_again")
        with suppress(ClientError, Answered):
            offset = await produce(cluster, partition_name, batch, ACKS_ALL, _nothing)
            for index, note in enumerate(notes):
                note.add(OK, offset + index)


def _nothing() -> None:
    pass
