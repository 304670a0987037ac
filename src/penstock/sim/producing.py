"""Producers of a workload: the library's own, and raw ones that send exactly what they mean to.

The library's producer hides retries, which is what is wanted of it; a raw one shows what a broker
does with each single request, with a batch that comes twice, and with one that comes late on a
connection its sender has given up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from penstock.aio import Producer
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, RecordTooLarge, check
from penstock.client.model import RecordMetadata
from penstock.records.record import Record, build_batch
from penstock.sim.history import ACKS_ALL, FAIL, INFO, OK, Send
from penstock.sim.stage import CLIENT_KEYWORDS, REQUEST_TIMEOUT_MS, Actor, parse_place
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

_REFUSED: Final = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Answers after which nothing was written: they are given before anything is."""
_GIVE_UP: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_ATTEMPTS_MAX: Final = 12


async def run_producer(actor: Actor, kind: str) -> None:
    """One producer, until the load is over and what it sent has had its time."""
    if kind.startswith("real"):
        await _run_real(actor, kind)
    elif kind == "raw_twice":
        await _RawTwice(actor).run()
    else:
        await _run_raw(actor, 1 if kind == "raw_acks_1" else ACKS_ALL)


# -- the library's


async def _run_real(actor: Actor, kind: str) -> None:
    stage = actor.stage
    idempotent = kind == "real_idempotent"
    keywords: dict[str, Any] = {
        **CLIENT_KEYWORDS,
        "acks": 1 if kind == "real_acks_1" else "all",
        "enable_idempotence": idempotent,
        "linger_ms": actor.draws.choice((0, 5, 50)),
        "batch_size": actor.draws.choice((100, 1_000, 16_384)),
        "delivery_timeout_ms": actor.draws.choice((5_000, 15_000, 60_000)),
        "max_block_ms": 5_000,
        "allow_auto_create_topics": False,
    }
    acks = 1 if kind == "real_acks_1" else ACKS_ALL
    while not stage.over.is_set():
        producer = Producer(stage.bootstrap, env=actor.env, **keywords)
        try:
            await producer.start()
        except ClientError:
            await stage.rest(0.5)
            continue
        try:
            await _send_on(actor, producer, acks, idempotent)
        finally:
            with suppress(ClientError):
                await producer.close(timeout_s=20.0)


async def _send_on(
    actor: Actor, producer: Producer[bytes | None, bytes | None], acks: int, idempotent: bool
) -> None:
    """Send until the load is over, or the producer cannot go on."""
    stage = actor.stage
    failures = 0
    while not stage.over.is_set() and failures < 5:
        await stage.rest(actor.pause_s())
        for _ in range(actor.draws.randint(1, stage.scenario.batch_max)):
            place = actor.draws.choice(stage.scenario.places)
            number, value = actor.next_value()
            at = parse_place(place)
            note = _Note(actor, place, value, number, acks, idempotent, stage.now_ms())
            try:
                await producer.send(
                    at.topic, value.encode(), partition=at.partition, on_delivery=note.settle
                )
            except ClientError as error:
                # It was never taken, so it can never be written.
                note.add(FAIL, error=str(error))
                failures += 1
            else:
                failures = 0


@dataclass(slots=True)
class _Note:
    """What becomes of one record that was sent."""

    actor: Actor
    place: str
    value: str
    number: int
    acks: int
    careful: bool
    begun_ms: float

    def settle(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        if metadata is not None:
            self.add(OK, metadata.offset)
        else:
            self.add(FAIL if isinstance(error, RecordTooLarge) else INFO, error=str(error))

    def add(self, status: str, offset: int = -1, error: str = "") -> None:
        stage = self.actor.stage
        stage.count(f"sends_{status}")
        stage.history.add(
            Send(
                process=self.actor.name,
                status=status,
                begun_ms=self.begun_ms,
                ended_ms=stage.now_ms(),
                error=error,
                place=self.place,
                value=self.value,
                number=self.number,
                acks=self.acks,
                offset=offset,
                once=self.careful,
                ordered=self.careful,
            )
        )


# -- raw ones


class _Answered(Exception):
    """The broker answered with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = code


async def _with_cluster(actor: Actor) -> Cluster | None:
    """A first contact, tried until the load is over."""
    env, stage = actor.env, actor.stage
    while not stage.over.is_set():
        cluster = Cluster(stage.cluster_config(), env.network, env.clock, env.random)
        try:
            return await cluster.__aenter__()
        except ClientError:
            await stage.rest(0.5)
    return None


async def _produce(
    cluster: Cluster, place: str, batch: bytes, acks: int, on_sent: Callable[[], None]
) -> int:
    """One request; the base offset, or an error. `on_sent` is told when it may have got there."""
    at = parse_place(place)
    try:
        leader = await cluster.leader(at)
        connection = await cluster.connection(leader)
        data = [ProduceRequest.Partition(at.partition, bytearray(batch))]
        request = ProduceRequest(
            acks=acks,
            timeout_ms=REQUEST_TIMEOUT_MS * 2 // 3,
            topic_data=[ProduceRequest.Topic(at.topic, partition_data=data)],
        )
        on_sent()
        response = await connection.call(request, ProduceResponse)
    except ClientError:
        cluster.forget(at.topic)
        raise
    answer = response.responses[0].partition_responses[0]
    if answer.error_code:
        cluster.forget(at.topic)
        raise _Answered(answer.error_code)
    return answer.base_offset


def _batch(actor: Actor, values: Sequence[str], **more: int) -> bytes:
    now_ms = actor.env.clock.wall_ms()
    records = [Record(place, now_ms, None, value.encode()) for place, value in enumerate(values)]
    return bytes(build_batch(records, **more))  # type: ignore[arg-type]


def _notes(actor: Actor, place: str, acks: int) -> list[_Note]:
    count = actor.draws.randint(1, actor.stage.scenario.batch_max)
    numbered = [actor.next_value() for _ in range(count)]
    now_ms = actor.stage.now_ms()
    return [_Note(actor, place, value, number, acks, True, now_ms) for number, value in numbered]


async def _run_raw(actor: Actor, acks: int) -> None:
    """Send every batch a single time, whatever comes of it."""
    cluster = await _with_cluster(actor)
    if cluster is None:
        return
    stage = actor.stage
    try:
        while not stage.over.is_set():
            await stage.rest(actor.pause_s())
            place = actor.draws.choice(stage.scenario.places)
            notes = _notes(actor, place, acks)
            left = False

            def on_sent() -> None:
                nonlocal left
                left = True

            batch = _batch(actor, [note.value for note in notes])
            status, offset, error = OK, -1, ""
            try:
                offset = await _produce(cluster, place, batch, acks, on_sent)
            except _Answered as answered:
                status = FAIL if answered.code in _REFUSED else INFO
                error = str(answered)
            except ClientError as failure:
                status = INFO if left else FAIL
                error = str(failure)
                await stage.rest(0.2)
            for index, note in enumerate(notes):
                note.add(status, offset + index if status == OK else -1, error)
    finally:
        cluster.close()


class _RawTwice:
    """An idempotent producer that sends again until it is answered, and at times even then.

    A batch that was acknowledged and comes again must be answered with its first offset.
    """

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._producer_id = -1
        self._producer_epoch = 0
        self._sequences: dict[str, int] = {}

    async def run(self) -> None:
        actor = self._actor
        cluster = await _with_cluster(actor)
        if cluster is None:
            return
        stage = actor.stage
        try:
            while not stage.over.is_set():
                await stage.rest(actor.pause_s())
                if self._producer_id < 0 and not await self._begin(cluster):
                    await stage.rest(0.5)
                    continue
                await self._send(cluster, actor.draws.choice(stage.scenario.places))
        finally:
            cluster.close()

    async def _begin(self, cluster: Cluster) -> bool:
        """A new identity: sequences begin anew."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        try:
            answer = await cluster.ask_any(request, InitProducerIdResponse)
            check(answer.error_code)
        except ClientError:
            return False
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        return True

    async def _send(self, cluster: Cluster, place: str) -> None:
        actor = self._actor
        notes = _notes(actor, place, ACKS_ALL)
        batch = _batch(
            actor,
            [note.value for note in notes],
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._sequences.get(place, 0),
        )
        status, offset, error = await self._insist(cluster, place, batch)
        for index, note in enumerate(notes):
            note.add(status, offset + index if offset >= 0 else -1, error)
        if status != OK:
            # Whether it was written is not known, so no sequence can be right after it.
            self._producer_id = -1
            return
        self._sequences[place] = self._sequences.get(place, 0) + len(notes)
        if actor.draws.random() < 0.15:
            await self._repeat(cluster, place, batch, notes)

    async def _insist(self, cluster: Cluster, place: str, batch: bytes) -> tuple[str, int, str]:
        stage = self._actor.stage
        error = ""
        for _ in range(_ATTEMPTS_MAX):
            try:
                return OK, await _produce(cluster, place, batch, ACKS_ALL, _nothing), ""
            except _Answered as answered:
                error = str(answered)
                if answered.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    return OK, -1, ""
                if answered.code in _GIVE_UP:
                    break
            except ClientError as failure:
                error = str(failure)
            await stage.rest(0.3)
            if stage.over.is_set():
                break
        return INFO, -1, error

    async def _repeat(
        self, cluster: Cluster, place: str, batch: bytes, notes: Sequence[_Note]
    ) -> None:
        """Send again what was acknowledged; if it is answered, by its first offset."""
        stage = self._actor.stage
        await stage.rest(self._actor.draws.choice((0.0, 0.5, 3.0)))
        stage.count("sent_again")
        with suppress(ClientError, _Answered):
            offset = await _produce(cluster, place, batch, ACKS_ALL, _nothing)
            for index, note in enumerate(notes):
                note.add(OK, offset + index)


def _nothing() -> None:
    pass
