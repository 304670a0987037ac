"""Batches that a broker appends to a partition here or on another broker.

Those that are written are always the first ones, whichever broker leads the partition.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.three_brokers import ThreeBrokers, three_brokers
from penstock.broker.shares.letter_sender import LetterSender
from penstock.records.record import Record, build_batch
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError

pytestmark = pytest.mark.filterwarnings("ignore:coroutine '_(serve|run)' was never awaited")

TIMEOUT_S = 120.0
DLQ = "dlq.t"
TARGET = TopicPartition(DLQ, 0)
EACH_BROKER = pytest.mark.parametrize("is_here", [True, False], ids=["here", "there"])


def sender_of(cluster: ThreeBrokers, *, is_here: bool) -> LetterSender:
    """Returns the sender of the leader of the target, or of another broker."""
    leader = cluster.partition(DLQ).leader
    broker_id = leader if is_here else (leader + 1) % len(cluster.nodes)
    sender = cluster.broker(broker_id).shares.letter_sender
    assert sender is not None
    return sender


def values(cluster: ThreeBrokers) -> list[bytes]:
    return cluster.values(cluster.partition(DLQ).leader, DLQ)


def batch(producer_id: int, sequence: int, value: bytes) -> bytearray:
    record = Record(0, 1, None, value)
    return build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


@EACH_BROKER
def test_batches_after_one_that_is_refused_are_not_appended(is_here: bool, tmp_path: Path) -> None:
    """A dead letter is too large, so it is sent again without the copy of its record."""

    async def run() -> None:
        async with asyncio.timeout(patient(TIMEOUT_S)), three_brokers(tmp_path) as cluster:
            await cluster.create(DLQ, max_message_bytes="500")
            sender = sender_of(cluster, is_here=is_here)
            number = await sender.producer_id()
            whole, second = batch(number, 0, bytes(2_000)), batch(number, 1, b"b")
            codes = await sender.append(TARGET, [whole, second])
            assert codes == [ErrorCode.MESSAGE_TOO_LARGE]
            assert values(cluster) == []
            codes = await sender.append(TARGET, [batch(number, 0, b"a"), second])
            assert codes == [ErrorCode.NONE] * 2
            # The partition recognizes them.
            codes = await sender.append(TARGET, [batch(number, 0, b"a"), second])
            assert codes == [ErrorCode.NONE] * 2
            assert values(cluster) == [b"a", b"b"]

    asyncio.run(run())


@EACH_BROKER
def test_a_topic_of_the_same_name_gets_nothing(is_here: bool, tmp_path: Path) -> None:
    """If the caller says which topic it means."""

    async def run() -> None:
        async with asyncio.timeout(patient(TIMEOUT_S)), three_brokers(tmp_path) as cluster:
            await cluster.create(DLQ)
            sender = sender_of(cluster, is_here=is_here)
            number = await sender.producer_id()
            code = ErrorCode.NONE
            try:
                (code,) = await sender.append(TARGET, [batch(number, 0, b"a")], b"x" * 16)
            except KafkaError as error:
                code = error.code
            assert code is ErrorCode.UNKNOWN_TOPIC_ID
            topic_id = cluster.hosted(cluster.partition(DLQ).leader, DLQ).topic_id
            codes = await sender.append(TARGET, [batch(number, 0, b"b")], topic_id)
            assert codes == [ErrorCode.NONE]
            assert values(cluster) == [b"b"]

    asyncio.run(run())


def test_requests_are_not_larger_than_a_broker_accepts(tmp_path: Path) -> None:
    """Batches that are sent together are divided. One that is too large by itself is refused."""
    limit = {"socket.request.max.bytes": "100000"}

    async def run() -> None:
        async with asyncio.timeout(patient(TIMEOUT_S)), three_brokers(tmp_path, limit) as cluster:
            await cluster.create(DLQ)
            sender = sender_of(cluster, is_here=False)
            given = [bytes([letter]) * 40_000 for letter in b"abcde"] + [bytes(100_000)]
            batches = [batch(await sender.producer_id(), 0, value) for value in given]
            answers = await asyncio.gather(*(sender.append(TARGET, [each]) for each in batches))
            assert answers == [[ErrorCode.NONE]] * 5 + [[ErrorCode.MESSAGE_TOO_LARGE]]
            assert sorted(values(cluster)) == given[:5]

    asyncio.run(run())
