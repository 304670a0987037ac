"""Sends records with due times to a delay topic, and reads what was copied to its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.harness import BrokerHarness
from penstock.broker.delay.delayed_partition import DelayedPartition
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.metadata.delay_configs import DELAY_TARGET
from penstock.records.batch import Codec, iter_batches
from penstock.records.job_headers import DELIVER_AT
from penstock.records.record import Record, build_batch, read_records
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ProduceRequest,
    ProduceResponse,
)

LATER, ORDERS = "later", "orders"
TOPIC = 2


class Sent(NamedTuple):
    value: bytes
    due_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def batch_of(sent: Sequence[Sent], timestamp: int = 1_000, **more: object) -> bytearray:
    records = []
    for number, (value, due_ms, headers) in enumerate(sent):
        due = () if due_ms is None else ((DELIVER_AT, b"%d" % due_ms),)
        records.append(Record(number, timestamp, b"k", value, (*headers, *due)))
    return build_batch(records, **more)  # type: ignore[arg-type]


async def send(
    harness: BrokerHarness,
    *sent: Sent,
    index: int = 0,
    codec: Codec = Codec.NONE,
    topic: str = LATER,
) -> ErrorCode:
    part = ProduceRequest.Partition(index, batch_of(sent, codec=codec))
    topics = [ProduceRequest.Topic(topic, partition_data=[part])]
    answer = await harness.ask(ProduceRequest(None, -1, 10_000, topics), 9, ProduceResponse)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def delay_topic(harness: BrokerHarness, partitions: int = 1, targets: int = 1) -> None:
    await harness.create(ORDERS, targets)
    await harness.create(LATER, partitions, configs={DELAY_TARGET: ORDERS})


async def alter(
    harness: BrokerHarness, topic: str, values: Mapping[str, str]
) -> tuple[ErrorCode, str | None]:
    configs = [
        IncrementalAlterConfigsRequest.Config(name, 0, text) for name, text in values.items()
    ]
    resource = IncrementalAlterConfigsRequest.Resource(TOPIC, topic, configs)
    request = IncrementalAlterConfigsRequest([resource])
    answer = await harness.ask(request, 1, IncrementalAlterConfigsResponse)
    return ErrorCode(answer.responses[0].error_code), answer.responses[0].error_message


def records_in(hosted: HostedPartition | None) -> list[Record]:
    """Returns all committed records of a partition."""
    found: list[Record] = []
    if hosted is None:
        return found
    offset = hosted.log.log_start_offset
    while (piece := hosted.log.read(offset, 1 << 20, hosted.high_watermark)) is not None:
        for position, header in iter_batches(piece.data):
            found += read_records(piece.data[position : position + header.size])
            offset = header.next_offset
    return found


def copies(harness: BrokerHarness, topic: str = ORDERS, index: int = 0) -> list[bytes]:
    found = records_in(harness.broker.replicas.get(topic, index))
    return [bytes(each.value or b"") for each in found]


def delayed(harness: BrokerHarness, index: int = 0) -> DelayedPartition:
    (found,) = [each for each in harness.services.delays if each.hosted.index == index]
    return found
