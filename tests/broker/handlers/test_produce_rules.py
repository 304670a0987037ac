"""Rules of Produce that Kafka's clients rely on."""

from __future__ import annotations

import struct

import crc32c
import pytest

from broker.harness import NOW_MS, BrokerHarness, with_harness
from penstock.records.batch import Codec, iter_batches, read_header, validate
from penstock.records.record import Record, build_batch
from penstock.wire.codec import encode_request
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import ProduceRequest, ProduceResponse


def batch_of(
    values: int = 3, *, key: bytes | None = b"k", codec: Codec = Codec.NONE, **producer: int
) -> bytearray:
    records = [Record(at, NOW_MS + at, key, b"value %d" % at) for at in range(values)]
    return build_batch(records, codec=codec, **producer)  # type: ignore[arg-type]


def request_of(
    data: bytes | bytearray | None, acks: int = -1, topic: str = "orders"
) -> ProduceRequest:
    partition = ProduceRequest.Partition(0, data)
    return ProduceRequest(
        None, acks, 10_000, [ProduceRequest.Topic(topic, partition_data=[partition])]
    )


async def produce(
    harness: BrokerHarness, data: bytes | bytearray | None, version: int = 9, topic: str = "orders"
) -> tuple[int, int]:
    """Returns the error code and the first offset."""
    response = await harness.ask(request_of(data, topic=topic), version, ProduceResponse)
    (answer,) = response.responses[0].partition_responses
    return answer.error_code, answer.base_offset


def stored(harness: BrokerHarness, topic: str = "orders") -> bytes:
    log = harness.hosted(topic).log
    piece = log.read(log.log_start_offset, 1 << 20, log.end_offset)
    return b"" if piece is None else bytes(piece.data)


@with_harness
async def test_acks_0_is_never_answered(harness: BrokerHarness) -> None:
    """The client would take a response for that of its next request, and so on."""
    await harness.create("orders")
    for version in range(3, 12):
        frame = b"".join(encode_request(request_of(batch_of(), 0), version, 1, "c"))[4:]
        for _ in range(2):  # the second may take the fast path
            assert await harness.exchange(frame) is None
    assert harness.hosted("orders").log.end_offset == 3 * 9 * 2


@with_harness
async def test_a_refused_batch_with_acks_0_closes_the_connection(harness: BrokerHarness) -> None:
    """This is how a producer with acks=0 learns that it must look for the leader again."""
    await harness.create("orders")
    broken = bytearray(batch_of())
    broken[-1] ^= 1
    frame = b"".join(encode_request(request_of(bytes(broken), 0), 9, 1, "c"))[4:]
    with pytest.raises(ProtocolError, match="the batch for orders-0 was refused, with acks=0"):
        await harness.exchange(frame)


@with_harness
async def test_offsets_and_leader_epoch_are_written_and_the_crc_stays_valid(
    harness: BrokerHarness,
) -> None:
    """The CRC does not cover these fields. The rest of the batch is stored as the client sent
    it.
    """
    await harness.create("orders")
    for offset in (0, 3):
        sent = batch_of()
        assert await produce(harness, sent) == (0, offset)
        kept = stored(harness)[offset // 3 * len(sent) :]
        header = validate(kept)
        assert (header.base_offset, header.leader_epoch) == (offset, 0)
        assert kept[16 : len(sent)] == sent[16:]


@with_harness
async def test_log_append_time_is_written_with_a_new_crc(harness: BrokerHarness) -> None:
    """The response has the time, and the batch has the timestamp type."""
    await harness.create("orders", configs={"message.timestamp.type": "LogAppendTime"})
    response = await harness.ask(request_of(batch_of()), 9, ProduceResponse)
    told = response.responses[0].partition_responses[0].log_append_time_ms
    header = validate(stored(harness))
    assert header.max_timestamp == told > NOW_MS
    assert header.attributes & 8


@with_harness
async def test_max_message_bytes_limits_the_size_of_a_batch(harness: BrokerHarness) -> None:
    """On MESSAGE_TOO_LARGE the Java client splits the batch. A batch of exactly the limit is
    accepted.
    """
    size = len(batch_of())
    await harness.create("orders", configs={"max.message.bytes": str(size)})
    assert await produce(harness, batch_of()) == (0, 0)
    assert await produce(harness, batch_of(4)) == (ErrorCode.MESSAGE_TOO_LARGE, -1)


@with_harness
async def test_zstd_is_accepted_from_version_7_on(harness: BrokerHarness) -> None:
    """Clients that use older versions are of releases that cannot read zstd (KIP-110)."""
    await harness.create("orders")
    for codec in Codec:
        for version in (3, 6, 7, 11):
            code, _ = await produce(harness, batch_of(codec=codec), version)
            refused = codec is Codec.ZSTD and version < 7
            assert code == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if refused else 0)


@with_harness
async def test_invalid_and_damaged_batches_get_different_errors(harness: BrokerHarness) -> None:
    """An invalid batch gets INVALID_RECORD, which clients do not retry. A batch that was damaged on
    the way gets CORRUPT_MESSAGE, because a retry may help. As in Kafka 4.
    """
    await harness.create("orders")
    for magic in (0, 1, 3):
        old = batch_of()
        old[16] = magic
        assert await produce(harness, old) == (ErrorCode.INVALID_RECORD, -1)
    assert await produce(harness, batch_of()[:-1]) == (ErrorCode.INVALID_RECORD, -1)
    assert await produce(harness, batch_of() + batch_of()) == (ErrorCode.INVALID_RECORD, -1)
    assert await produce(harness, None) == (ErrorCode.INVALID_RECORD, -1)
    damaged = batch_of()
    damaged[-1] ^= 1
    assert await produce(harness, damaged) == (ErrorCode.CORRUPT_MESSAGE, -1)
    assert stored(harness) == b""


@with_harness
async def test_control_batches_from_clients_are_refused(harness: BrokerHarness) -> None:
    """A forged marker would end a producer's transaction."""
    await harness.create("orders")
    forged = batch_of()
    (attributes,) = struct.unpack_from(">h", forged, 21)
    for bit in (1 << 4, 1 << 5):
        struct.pack_into(">h", forged, 21, attributes | bit)
        sealed = bytearray(forged)
        struct.pack_into(">I", sealed, 17, _crc(sealed))
        assert await produce(harness, sealed) == (ErrorCode.INVALID_RECORD, -1)


def _crc(batch: bytearray) -> int:
    value: int = crc32c.crc32c(bytes(batch[21:]))
    return value


@with_harness
async def test_a_compacted_topic_refuses_records_without_a_key(harness: BrokerHarness) -> None:
    """Compressed or not, and also with the policy `compact,delete`."""
    await harness.create("orders", configs={"cleanup.policy": "compact,delete"})
    for codec in (Codec.NONE, Codec.LZ4):
        keyless = batch_of(key=None, codec=codec)
        assert await produce(harness, keyless) == (ErrorCode.INVALID_RECORD, -1)
        assert (await produce(harness, batch_of(codec=codec)))[0] == 0


@with_harness
async def test_a_retry_of_one_of_the_last_five_batches_is_answered_with_its_offset(
    harness: BrokerHarness,
) -> None:
    """An idempotent producer's older batch is a duplicate without an offset, and a gap is
    refused.
    """
    await harness.create("orders")

    def numbered(sequence: int) -> bytearray:
        return batch_of(1, producer_id=7, producer_epoch=0, base_sequence=sequence)

    for sequence in range(7):
        assert await produce(harness, numbered(sequence)) == (0, sequence)
    for sequence in range(2, 7):
        assert await produce(harness, numbered(sequence)) == (0, sequence)
    assert (await produce(harness, numbered(1)))[0] == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert (await produce(harness, numbered(9)))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [header.base_offset for _, header in iter_batches(stored(harness))] == list(range(7))
    older = batch_of(1, producer_id=7, producer_epoch=1, base_sequence=0)
    assert await produce(harness, older) == (0, 7)
    assert (await produce(harness, numbered(7)))[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert read_header(stored(harness)).producer_id == 7


@with_harness
async def test_internal_topics_refuse_records_from_clients(harness: BrokerHarness) -> None:
    """A coordinator would load such records as the state of its groups."""
    name = "__consumer_offsets"
    await harness.create(name)
    data = ProduceRequest.Partition(0, batch_of())
    request = ProduceRequest(None, 1, 1_000, [ProduceRequest.Topic(name, partition_data=[data])])
    for _ in range(2):
        response = await harness.ask(request, 9, ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert harness.hosted(name).log.end_offset == 0
