"""Batches that cannot be decoded are refused, on every path that a produce request can take."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from broker.harness import NOW_MS, BrokerHarness, HarnessPeer, with_harness
from penstock.records.batch import Codec, read_header, seal, validate, write_header
from penstock.records.record import Record, build_batch
from penstock.sim.actors.bad_batches import KINDS, bad_batch
from penstock.wire.codec import encode_request
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import ProduceResponse

from .test_produce_rules import batch_of, produce, request_of, stored

LARGE = Random(1).randbytes(100_000)


def large_batch(value: bytes = LARGE, sequence: int = -1) -> bytearray:
    """Returns a batch that is large enough to be checked on a thread."""
    records = [Record(0, NOW_MS, b"k", value)]
    if sequence < 0:
        return build_batch(records, codec=Codec.LZ4)
    return build_batch(
        records, codec=Codec.LZ4, producer_id=7, producer_epoch=0, base_sequence=sequence
    )


async def answer_to(
    harness: BrokerHarness, data: bytearray, version: int = 9, topic: str = "orders"
) -> ProduceResponse.Partition:
    response = await harness.ask(request_of(data, topic=topic), version, ProduceResponse)
    return response.responses[0].partition_responses[0]


@with_harness
async def test_malformed_batches_are_refused(harness: BrokerHarness) -> None:
    """On the fast path too. None of their bytes are in the log."""
    await harness.create("orders")
    sample = [Record(at, NOW_MS, b"key", b"value") for at in range(3)]
    for _ in range(2):
        assert (await produce(harness, batch_of()))[0] == 0
    for kind in KINDS:
        refused = await answer_to(harness, bad_batch(kind, sample))
        assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_RECORD, -1), kind
        assert "cannot be decoded" in (refused.error_message or "")
    assert harness.hosted("orders").log.end_offset == 6
    assert harness.services.counters.produce.malformed == len(KINDS)


@with_harness
async def test_contradictory_header_fields_are_an_invalid_record(harness: BrokerHarness) -> None:
    """Clients retry CORRUPT_MESSAGE, but the same bytes would fail again."""
    await harness.create("orders")
    for changes in ({"record_count": 4}, {"last_offset_delta": -1}, {"attributes": 5}):
        batch = batch_of()
        write_header(batch, 0, read_header(batch)._replace(**changes))
        seal(batch, 0, len(batch))
        assert await produce(harness, batch) == (ErrorCode.INVALID_RECORD, -1)


@with_harness
async def test_a_producer_id_needs_an_epoch_and_a_sequence(harness: BrokerHarness) -> None:
    """With sequence -1, the second batch would be taken for a duplicate of the first and
    dropped.
    """
    await harness.create("orders")
    numbered = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    for changes, code in (
        ({"base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"base_sequence": -7}, ErrorCode.INVALID_RECORD),
        ({"producer_epoch": -1}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"producer_id": -2}, ErrorCode.INVALID_RECORD),
    ):
        for _ in range(2):
            batch = batch_of(1)
            write_header(batch, 0, read_header(batch)._replace(**{**numbered, **changes}))
            seal(batch, 0, len(batch))
            assert await produce(harness, batch) == (code, -1)
    assert await produce(
        harness, batch_of(1, producer_id=7, producer_epoch=0, base_sequence=0)
    ) == (
        0,
        0,
    )


@with_harness
async def test_invalid_records_are_listed_in_the_response(harness: BrokerHarness) -> None:
    """So that clients can tell the valid records of the batch from the invalid ones (KIP-467).
    Older versions have no field for the list.
    """
    await harness.create("state", configs={"cleanup.policy": "compact"})
    records = [
        Record(at, NOW_MS, None if at % 10 == 3 else b"k", b"v %d" % at) for at in range(100)
    ]
    for codec in Codec:
        for version in (7, 8, 9, 11):
            answer = await answer_to(
                harness, build_batch(records, codec=codec), version, topic="state"
            )
            assert answer.error_code == ErrorCode.INVALID_RECORD
            named = [error.batch_index for error in answer.record_errors]
            assert named == (list(range(3, 100, 10)) if version >= 8 else [])
            if version >= 8:
                assert "10 of 100 records have no key" in (answer.error_message or "")
                assert "no key" in (answer.record_errors[0].batch_index_error_message or "")
    assert harness.hosted("state").log.end_offset == 0


@with_harness
async def test_large_batches_are_checked_on_a_thread(harness: BrokerHarness) -> None:
    """Valid and invalid ones. The batches of an idempotent producer stay in order."""
    await harness.create("orders")
    for sequence in range(3):
        assert await produce(harness, large_batch(sequence=sequence)) == (0, sequence)
        assert await produce(harness, large_batch(sequence=sequence)) == (0, sequence)
    assert harness.services.large_batches.opened == 6
    broken = large_batch()
    write_header(broken, 0, read_header(broken)._replace(record_count=10, last_offset_delta=9))
    seal(broken, 0, len(broken))
    assert await produce(harness, broken) == (ErrorCode.INVALID_RECORD, -1)
    damaged = large_batch()
    damaged[-1] ^= 1
    assert await produce(harness, damaged) == (ErrorCode.CORRUPT_MESSAGE, -1)
    assert harness.hosted("orders").log.end_offset == 3
    assert validate(stored(harness)).producer_id == 7


@with_harness
async def test_a_refused_large_batch_with_acks_0_closes_the_connection(
    harness: BrokerHarness,
) -> None:
    await harness.create("orders")
    frame = b"".join(encode_request(request_of(large_batch(), 0), 9, 1, "c"))[4:]
    assert await harness.exchange(frame) is None
    assert harness.hosted("orders").log.end_offset == 1
    damaged = large_batch()
    damaged[-1] ^= 1
    frame = b"".join(encode_request(request_of(damaged, 0), 9, 1, "c"))[4:]
    with pytest.raises(ProtocolError, match="the batch for orders-0 was refused, with acks=0"):
        await harness.exchange(frame)


@with_harness
async def test_no_request_overtakes_a_batch_that_is_checked_on_a_thread(
    harness: BrokerHarness,
) -> None:
    """The connection does not start the next request before this one is answered."""
    await harness.create("orders")
    session = harness.broker.server.new_session(HarnessPeer())
    small = b"".join(encode_request(request_of(batch_of()), 9, 2, "c"))[4:]
    large = b"".join(encode_request(request_of(large_batch()), 9, 1, "c"))[4:]
    first = session.on_frame(memoryview(bytearray(large)))
    assert isinstance(first, asyncio.Future)
    assert not session.may_overlap(memoryview(bytearray(small)))
    await first
    assert harness.hosted("orders").log.end_offset == 1


@with_harness
async def test_a_decompression_bomb_is_refused(harness: BrokerHarness) -> None:
    """A few kilobytes of zstd may decompress to a gigabyte. The thread stops at 64 times
    max.message.bytes.
    """
    for topic, configs in (
        ("orders", {}),
        ("state", {"cleanup.policy": "compact"}),
        ("packed", {"compression.type": "lz4"}),
    ):
        await harness.create(topic, configs={"max.message.bytes": str(1 << 17), **configs})
        bomb = build_batch([Record(0, NOW_MS, b"k", bytes(9 << 20))], codec=Codec.ZSTD)
        answer = await answer_to(harness, bomb, topic=topic)
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert "decompresses to more than 8388608 bytes" in (answer.error_message or "")
    assert harness.services.counters.produce.oversized == 3


@with_harness
async def test_a_topic_with_a_codec_compresses_large_batches_on_a_thread(
    harness: BrokerHarness,
) -> None:
    await harness.create("packed", configs={"compression.type": "zstd"})
    plain = build_batch([Record(0, NOW_MS, b"k", b"text " * 50_000)])
    assert (await answer_to(harness, plain, topic="packed")).error_code == 0
    assert harness.services.large_batches.opened == 1
    header = validate(stored(harness, "packed"))
    assert header.codec == Codec.ZSTD
    assert header.size < len(plain) // 10
