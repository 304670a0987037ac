"""The fast path for produce requests gives exactly the same responses as the regular path."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from broker.handlers.test_transactions import completed, producer_of
from broker.harness import NOW_MS, BrokerHarness, HarnessPeer, with_harness
from penstock.broker.partitions import hosted_partition
from penstock.broker.partitions.produce_fast_path import ProduceFastPath
from penstock.net.outbox import in_memory
from penstock.net.session import Session
from penstock.partition.record_validation import validate_batch
from penstock.records.record import Record, build_batch
from penstock.testing.slowness import patient
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceRequest, ProduceResponse
from penstock.wire.messages.base import Buffer


def request(
    topic: str,
    index: int,
    batch: bytearray,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    partition = ProduceRequest.Partition(index, batch)
    return ProduceRequest(
        transactional_id,
        acks=acks,
        timeout_ms=60_000,
        topic_data=[ProduceRequest.Topic(topic, partition_data=[partition])],
    )


def batch_of(value: bytes, sequence: int = -1) -> bytearray:
    records = [Record(0, NOW_MS, b"k", value)]
    if sequence < 0:
        return build_batch(records)
    return build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)


async def answer(session: Session, asked: ProduceRequest, version: int, number: int) -> bytes:
    parts = encode_request(asked, version, number, "client")
    frame = memoryview(bytearray(b"".join(parts))[4:])
    given = session.on_frame(frame)
    if isinstance(given, asyncio.Future):
        given = await asyncio.wait_for(given, patient(120))
    assert given is not None
    return b"".join(cast(Sequence[Buffer], given))


async def answers_of(
    harness: BrokerHarness, asked: Sequence[ProduceRequest], version: int
) -> list[bytes]:
    """Returns the responses that one connection gets, in order."""
    connection = harness.broker.server.new_session(HarnessPeer())
    given = []
    for number, each in enumerate(asked):
        given.append(await answer(connection, each, version, number))
    return given


@pytest.mark.parametrize("version", [9, 10, 11])
@pytest.mark.parametrize("acks", [1, -1])
def test_the_fast_path_answers_like_the_regular_path(
    tmp_path: Path, version: int, acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets, duplicates, errors, other partitions and topics: byte for byte the same."""
    answers: list[list[bytes]] = []
    served: list[object] = []
    real = ProduceFastPath.serve

    for name in ("orders", "long"):
        (tmp_path / name).mkdir()

    def counted(self: ProduceFastPath, frame: memoryview, version: int, number: int) -> object:
        outcome = real(self, frame, version, number)
        served.append(outcome)
        return outcome

    def script() -> list[ProduceRequest]:
        bad = batch_of(b"bad")
        bad[-1] ^= 1
        return [
            *(request("orders", 0, batch_of(b"%d" % n, n), acks) for n in range(4)),
            request("orders", 1, batch_of(b"other"), acks),
            request("orders", 0, batch_of(b"3", 3), acks),
            request("orders", 0, batch_of(b"gap", 9), acks),
            request("orders", 0, bad, acks),
            request("orders", 9, batch_of(b"nowhere"), acks),
            request("other", 0, batch_of(b"topic"), acks),
            request("other", 0, batch_of(b"again"), acks),
            request("orders", 0, batch_of(b"4", 4), acks),
        ]

    @with_harness
    async def case(harness: BrokerHarness) -> None:
        await harness.create("orders", 2)
        await harness.create("other", 1)
        answers.append(await answers_of(harness, script(), version))

    monkeypatch.setattr(ProduceFastPath, "serve", counted)
    case(tmp_path / "orders")
    taken = sum(outcome is not None for outcome in served)
    assert taken >= 6
    monkeypatch.setattr(ProduceFastPath, "serve", lambda *_: None)
    case(tmp_path / "long")
    with_templates, without = answers
    assert with_templates == without
    _, first = decode_response(ProduceResponse, memoryview(with_templates[0])[4:], version)
    assert first.responses[0].partition_responses[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("size", [61, 100, 126, 127, 128, 16_000, 16_383, 16_384, 2_097_200])
def test_the_fast_path_accepts_batches_of_every_size(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of the batch is encoded in a varying number of bytes."""
    taken: list[object] = []
    real = ProduceFastPath.serve

    def noted(self: ProduceFastPath, frame: memoryview, version: int, number: int) -> object:
        taken.append(real(self, frame, version, number))
        return taken[-1]

    @with_harness
    async def case(harness: BrokerHarness) -> None:
        await harness.create("orders", 1, {"max.message.bytes": "4000000"})
        asked = [request("orders", 0, batch_of(bytes(size)), 1) for _ in range(2)]
        given = await answers_of(harness, asked, 9)
        _, second = decode_response(ProduceResponse, memoryview(given[1])[4:], 9)
        assert second.responses[0].partition_responses[0].base_offset == 1

    monkeypatch.setattr(ProduceFastPath, "serve", noted)
    case(tmp_path)
    assert [outcome is not None for outcome in taken] == [False, True]


@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("name", ["a", "transactional-" * 8, "longer-than-a-template-takes-" * 6])
def test_transactional_batches_take_the_fast_path(
    tmp_path: Path, version: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for the first batch of each transaction, for which the coordinator is asked. A batch
    that arrives after the end of its transaction is refused as on the regular path.
    """
    taken: list[bool] = []
    real = ProduceFastPath.serve

    def noted(self: ProduceFastPath, frame: memoryview, version: int, number: int) -> object:
        given = real(self, frame, version, number)
        taken.append(isinstance(given, tuple | asyncio.Future))
        return given

    @with_harness
    async def case(harness: BrokerHarness) -> None:
        await harness.create("orders", 1)
        producer = await producer_of(harness, version >= 12, name)
        session = harness.broker.server.new_session(HarnessPeer())
        codes = []
        for _ in range(2):
            if version < 12:
                assert await producer.add("orders", 0) == [0]
            for number in range(3):
                batch = bytearray(producer.batch("orders", 0, [b"v"]))
                codes.append(await code_of(session, batch, number))
            if len(codes) == 6:
                batch = bytearray(producer.batch("orders", 0, [b"late"]))
            assert not await producer.end()
        await completed(harness, name)
        late = await code_of(session, batch, 4)
        assert codes == [ErrorCode.NONE] * 6
        assert late not in (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR)

    async def code_of(session: Session, batch: bytearray, number: int) -> int:
        asked = request("orders", 0, batch, transactional_id=name)
        _, given = decode_response(
            ProduceResponse, memoryview(await answer(session, asked, version, number))[4:], version
        )
        return given.responses[0].partition_responses[0].error_code

    monkeypatch.setattr(ProduceFastPath, "serve", noted)
    case(tmp_path)
    expected = [False, True, True] * 2 + [False]
    assert taken == (expected if len(name) < 127 else [False] * 7)


@with_harness
async def test_the_fast_path_keeps_no_reference_to_the_frame(harness: BrokerHarness) -> None:
    """The buffer is reused as soon as the fast path returns, even if the response is sent later."""
    await harness.create("orders", 1)
    session = harness.broker.server.new_session(HarnessPeer())
    await answer(session, request("orders", 0, batch_of(b"first")), 9, 1)
    parts = encode_request(request("orders", 0, batch_of(b"second")), 9, 2, "client")
    memory = bytearray(b"".join(parts)[4:])
    given = session.on_frame(memoryview(memory), borrowed=True)
    memory[:] = bytes(len(memory))
    assert isinstance(given, asyncio.Future)
    finished = await asyncio.wait_for(given, patient(120))
    assert finished is not None
    number, produced = decode_response(
        ProduceResponse, memoryview(b"".join(in_memory(finished)))[4:], 9
    )
    assert (number, produced.responses[0].name) == (2, "orders")
    assert produced.responses[0].partition_responses[0].base_offset == 1
    held = harness.hosted("orders").log.read(1, 1000)
    assert held is not None
    assert b"second" in bytes(held.data)


@with_harness
async def test_a_request_that_takes_the_regular_path_is_copied_out_of_the_read_buffer(
    harness: BrokerHarness,
) -> None:
    """Its handler may keep parts of the request until it is answered."""
    await harness.create("orders", 1)
    session = harness.broker.server.new_session(HarnessPeer())
    parts = encode_request(request("orders", 0, batch_of(b"first")), 9, 1, "client")
    memory = bytearray(b"".join(parts)[4:])
    given = session.on_frame(memoryview(memory), borrowed=True)
    memory[:] = bytes(len(memory))
    assert isinstance(given, asyncio.Future)
    await asyncio.wait_for(given, patient(120))
    held = harness.hosted("orders").log.read(0, 1000)
    assert held is not None
    assert b"first" in bytes(held.data)


@with_harness
async def test_a_batch_that_the_fast_path_refuses_is_validated_once(harness: BrokerHarness) -> None:
    """The regular path answers the error that the fast path has met."""
    await harness.create("orders", 1)
    session = harness.broker.server.new_session(HarnessPeer())
    validated = []

    def counting(*given: Any) -> Any:
        validated.append(given)
        return validate_batch(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hosted_partition, "validate_batch", counting)
        for number, sequence in enumerate((0, 1, 7)):
            given = await answer(session, request("orders", 0, batch_of(b"v", sequence)), 9, number)
            _, produced = decode_response(ProduceResponse, memoryview(given)[4:], 9)
            code = produced.responses[0].partition_responses[0].error_code
            assert (code, len(validated)) == (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if sequence == 7 else ErrorCode.NONE,
                number + 1,
            )
    assert harness.hosted("orders").log.end_offset == 2
