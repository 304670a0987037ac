"""Transactions on a whole broker: what is written, what is refused, and which offsets a group
sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.harness import BrokerHarness, with_harness_of
from broker.transactional_producer import R, TransactionalProducer, contents
from penstock.testing.slowness import patient
from penstock.txns.colocated_ids import id_beside
from penstock.txns.formats import TOPIC
from penstock.wire.errors import ErrorCode
from penstock.wire.java import partition_of
from penstock.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTransactionsRequest,
    EndTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProduceRequest,
    ProduceResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire.messages.base import Request

with_harness = with_harness_of(
    kafka={
        "transaction.state.log.num.partitions": "2",
        "offsets.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
    }
)
Play = Callable[[BrokerHarness, bool], Awaitable[None]]


class HarnessCluster:
    def __init__(self, harness: BrokerHarness) -> None:
        self._harness = harness

    async def ask_broker(
        self, broker: int, request: Request, version: int, response: type[R]
    ) -> R | None:
        return await self._harness.ask(request, version, response, broker=broker)

    def leader(self, topic: str, index: int) -> int:
        return 0

    def any_broker(self) -> int:
        return 0


def both_ways(run_case: Play) -> Callable[[Path, bool], None]:
    """Runs a test with transaction.version 2 and with the older protocol."""

    @pytest.mark.parametrize("new", [True, False], ids=["v2", "before"])
    def test(tmp_path: Path, new: bool) -> None:
        async def scenario(harness: BrokerHarness) -> None:
            await run_case(harness, new)

        with_harness(scenario)(tmp_path)

    test.__name__ = run_case.__name__
    test.__doc__ = run_case.__doc__
    return test


async def producer_of(
    harness: BrokerHarness, new: bool = True, name: str = "tx", timeout_ms: int = 60_000
) -> TransactionalProducer:
    producer = TransactionalProducer(HarnessCluster(harness), name, new=new, timeout_ms=timeout_ms)
    assert await producer.init() == 0
    return producer


async def state_of(harness: BrokerHarness, name: str = "tx") -> str:
    described = await harness.ask(
        DescribeTransactionsRequest([name]), 0, DescribeTransactionsResponse
    )
    (state,) = described.transaction_states
    return ErrorCode(state.error_code).name if state.error_code else state.transaction_state


async def completed(harness: BrokerHarness, name: str = "tx") -> str:
    """Waits until all markers are written. Returns the state of the transaction."""
    while (state := await state_of(harness, name)).startswith("Prepare"):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.002)
    return state


@both_ways
async def test_a_producer_runs_several_transactions_one_after_the_other(
    harness: BrokerHarness, new: bool
) -> None:
    """Each ends with a marker in every partition that it wrote to. The next one can start without a
    pause, and consumers with read_committed can read on.
    """
    await harness.create("t", 2)
    producer = await producer_of(harness, new)
    first_epoch = producer.epoch
    for number in range(3):
        for index in (0, 1):
            assert await producer.write("t", index, b"a%d" % number) == 0
        assert harness.hosted("t").last_stable_offset == 2 * number
        assert await state_of(harness) == "Ongoing"
        assert await producer.end(commit=number != 1) == 0
    assert await completed(harness) == "CompleteCommit"
    for index in (0, 1):
        hosted = harness.hosted("t", index)
        assert contents(hosted) == ["a0", "COMMIT", "a1", "ABORT", "a2", "COMMIT"]
        assert hosted.last_stable_offset == 6
    assert producer.epoch == (first_epoch + 3 if new else first_epoch)


@both_ways
async def test_a_newer_producer_fences_the_older_one(harness: BrokerHarness, new: bool) -> None:
    """The open transaction of the older one is aborted, and it can neither write nor end a
    transaction.
    """
    await harness.create("t")
    older = await producer_of(harness, new)
    assert await older.write("t", 0, b"open") == 0
    newer = await producer_of(harness, new)
    assert (newer.producer_id, newer.epoch > older.epoch) == (older.producer_id, True)
    assert contents(harness.hosted("t")) == ["open", "ABORT"]
    assert await older.produce("t", 0, b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await older.end() == ErrorCode.PRODUCER_FENCED
    assert await newer.write("t", 0, b"fine") == 0
    assert await newer.end() == 0
    assert await completed(harness) == "CompleteCommit"
    assert contents(harness.hosted("t")) == ["open", "ABORT", "fine", "COMMIT"]


@with_harness
async def test_a_transactional_batch_outside_a_transaction_is_refused(
    harness: BrokerHarness,
) -> None:
    """An older client that did not add the partition would leave a hanging transaction. From
    version 11 on the error tells it to abort.
    """
    await harness.create("t")
    producer = await producer_of(harness, new=False)
    assert await producer.produce("t", 0, b"x", version=9) == ErrorCode.INVALID_TXN_STATE
    assert await producer.produce("t", 0, b"x", version=11) == ErrorCode.TRANSACTION_ABORTABLE
    assert contents(harness.hosted("t")) == []
    unknown = TransactionalProducer(HarnessCluster(harness), "nobody")
    unknown.producer_id, unknown.epoch = 77, 0
    assert await unknown.produce("t", 0, b"x") == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@with_harness
async def test_a_transactional_batch_needs_a_transactional_id(harness: BrokerHarness) -> None:
    """Without it the broker would not know which coordinator to ask."""
    await harness.create("t")
    producer = await producer_of(harness)
    for acks, name in ((-1, None), (1, None)):
        part = ProduceRequest.Partition(0, producer.batch("t", 0, [b"x"]))
        request = ProduceRequest(
            name, acks, 1_000, [ProduceRequest.Topic("t", partition_data=[part])]
        )
        answer = await harness.ask(request, 12, ProduceResponse)
        code = answer.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert contents(harness.hosted("t")) == []


@both_ways
async def test_concurrent_produce_requests_keep_their_order(
    harness: BrokerHarness, new: bool
) -> None:
    """The first batches of a transaction wait for the coordinator, and the batches behind them wait
    too.
    """
    await harness.create("t", 2)
    producer = await producer_of(harness, new)
    if not new:
        assert await producer.add("t", 0, 1) == [0, 0]
    requests = []
    for number in range(5):
        parts = [
            ProduceRequest.Partition(index, producer.batch("t", index, [b"%d" % number]))
            for index in ((0, 1) if number % 2 else (1,))
        ]
        asked = ProduceRequest.Topic("t", partition_data=parts)
        requests.append(ProduceRequest("tx", -1, 60_000, [asked]))
    version = 12 if new else 9
    answers = await asyncio.gather(
        *(harness.ask(request, version, ProduceResponse) for request in requests)
    )
    codes = [
        part.error_code
        for answer in answers
        for topic in answer.responses
        for part in topic.partition_responses
    ]
    assert codes == [0] * 7
    assert contents(harness.hosted("t", 1)) == ["0", "1", "2", "3", "4"]
    assert contents(harness.hosted("t", 0)) == ["1", "3"]


@both_ways
async def test_a_transaction_that_exceeds_its_timeout_is_aborted(
    harness: BrokerHarness, new: bool
) -> None:
    """Its producer learns that when it ends the transaction. Readers are not blocked for ever."""
    await harness.create("t")
    producer = await producer_of(harness, new, timeout_ms=int(patient(4_000.0)))
    assert await producer.write("t", 0, b"late") == 0
    await harness.until(lambda: harness.hosted("t").last_stable_offset == 2)
    assert contents(harness.hosted("t")) == ["late", "ABORT"]
    refused = await producer.end()
    wanted = ErrorCode.TRANSACTION_ABORTABLE if new else ErrorCode.PRODUCER_FENCED
    assert refused == wanted


@both_ways
async def test_committed_offsets_take_effect_with_their_transaction(
    harness: BrokerHarness, new: bool
) -> None:
    """Until it ends, the group has its old offsets, and requests with `require_stable` have to
    wait.
    """
    await harness.create("t")
    producer = await producer_of(harness, new)
    assert await producer.send_offsets("g", "t", {0: 5}) == [0]
    assert await producer.fetch_offset("g", "t") == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert await producer.fetch_offset("g", "t", stable=False) == (-1, 0)
    assert await producer.end() == 0
    assert await producer.fetch_offset("g", "t", wait=True) == (5, 0)
    assert await producer.send_offsets("g", "t", {0: 9}) == [0]
    assert await producer.fetch_offset("g", "t", stable=False) == (5, 0)
    assert await producer.end(commit=False) == 0
    assert await producer.fetch_offset("g", "t", wait=True) == (5, 0)


@with_harness
async def test_transactional_offsets_of_a_zombie_are_refused(harness: BrokerHarness) -> None:
    """Offsets from a member that is not in the group, and from a fenced producer."""
    await harness.create("t")
    producer = await producer_of(harness)
    refused = await producer.send_offsets("g", "t", {0: 5}, generation=1, member="m")
    assert refused == [ErrorCode.ILLEGAL_GENERATION]
    assert await producer.send_offsets("g", "t", {0: 5}) == [0]
    refused = await producer.send_offsets("g", "t", {0: 5}, generation=1, member="m")
    assert refused == [ErrorCode.UNKNOWN_MEMBER_ID]
    await producer_of(harness)
    assert await producer.send_offsets("g", "t", {0: 6}) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert await producer.fetch_offset("g", "t", wait=True) == (-1, 0)


@with_harness
async def test_transactional_offsets_outside_a_transaction_are_refused(
    harness: BrokerHarness,
) -> None:
    """An older client must add the group's partition first."""
    await harness.create("t")
    producer = await producer_of(harness, new=False)
    producer.new = True  # Its TxnOffsetCommit now has version 5, which adds the group's partition.
    assert await producer.send_offsets("g", "t", {0: 5}) == [0]
    assert await producer.end() == 0
    before = TransactionalProducer(HarnessCluster(harness), "other", new=False)
    assert await before.init() == 0

    async def no_offsets(group: str) -> int:
        return 0

    before._add_offsets = no_offsets  # type: ignore[method-assign]
    assert await before.send_offsets("g", "t", {0: 7}) == [ErrorCode.INVALID_TXN_STATE]
    assert await producer.fetch_offset("g", "t", wait=True) == (5, 0)


@with_harness
async def test_a_deleted_topic_does_not_keep_a_transaction_from_ending(
    harness: BrokerHarness,
) -> None:
    """There is no leader left to write the marker."""
    await harness.create("t")
    await harness.create("gone")
    producer = await producer_of(harness)
    assert await producer.write("gone", 0, b"x") == 0
    assert await producer.write("t", 0, b"y") == 0
    await harness.ask(DeleteTopicsRequest(topic_names=["gone"]), 5, DeleteTopicsResponse)
    assert await producer.end() == 0
    assert await completed(harness) == "CompleteCommit"
    assert contents(harness.hosted("t")) == ["y", "COMMIT"]


@with_harness
async def test_partitions_are_added_to_a_transaction_all_or_none(harness: BrokerHarness) -> None:
    """If one does not exist, none is added. A request may have several transactions, each with its
    own result.
    """
    await harness.create("t")
    producer = await producer_of(harness, new=False)
    topics = [AddPartitionsToTxnRequest.Topic("t", [0, 5])]
    mine = ("tx", producer.producer_id, producer.epoch)
    request = AddPartitionsToTxnRequest(
        [
            AddPartitionsToTxnRequest.Transaction(*mine, False, topics),
            AddPartitionsToTxnRequest.Transaction(
                *mine, True, [AddPartitionsToTxnRequest.Topic("t", [0])]
            ),
            AddPartitionsToTxnRequest.Transaction(
                "nobody", 1, 0, False, [AddPartitionsToTxnRequest.Topic("t", [0])]
            ),
        ]
    )
    answer = await harness.ask(request, 5, AddPartitionsToTxnResponse)
    codes = [
        [
            part.partition_error_code
            for topic in each.topic_results
            for part in topic.results_by_partition
        ]
        for each in answer.results_by_transaction
    ]
    assert codes == [
        [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.TRANSACTION_ABORTABLE],
        [ErrorCode.INVALID_PRODUCER_ID_MAPPING],
    ]
    assert await state_of(harness) == "Empty"


@with_harness
async def test_transactions_are_listed_and_described(harness: BrokerHarness) -> None:
    """With the partitions that they have written to. An unknown id is
    TRANSACTIONAL_ID_NOT_FOUND.
    """
    await harness.create("t", 2)
    producer = await producer_of(harness)
    assert await producer.write("t", 1, b"x") == 0
    described = await harness.ask(
        DescribeTransactionsRequest(["tx", "nobody"]), 0, DescribeTransactionsResponse
    )
    known, unknown = described.transaction_states
    assert (known.producer_id, known.producer_epoch) == (producer.producer_id, producer.epoch)
    assert [(each.topic, each.partitions) for each in known.topics] == [("t", [1])]
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    listed = await harness.ask(
        ListTransactionsRequest(["Ongoing", "Sleeping"]), 2, ListTransactionsResponse
    )
    assert [each.transactional_id for each in listed.transaction_states] == ["tx"]
    assert listed.unknown_state_filters == ["Sleeping"]


@with_harness
async def test_many_transactions_are_committed_together(harness: BrokerHarness) -> None:
    """All or none: a member with an old epoch keeps the others from being committed. The request is
    safe to retry. Each producer goes on with the epoch from the response.
    """
    await harness.create("t", 3)
    names = ["sink", *(id_beside("sink", f"sink#{number}", 2) for number in range(2))]
    producers = [await producer_of(harness, name=name) for name in names]
    for index, producer in enumerate(producers):
        assert await producer.write("t", index, b"x") == 0

    async def end(*stale: int, offsets: str | None = None) -> tuple[int, list[int]]:
        members = [
            EndTransactionsRequest.Member(
                each.transactional_id, each.producer_id, epochs[at] - (at in stale)
            )
            for at, each in enumerate(producers)
        ]
        request = EndTransactionsRequest(True, offsets, 0 if offsets else -1, members)
        answer = await harness.ask(request, 0, EndTransactionsResponse)
        return answer.error_code, [member.producer_epoch for member in answer.members]

    epochs = [producer.epoch for producer in producers]
    assert (await end(1))[0] == ErrorCode.PRODUCER_FENCED
    assert (await end(offsets="__consumer_offsets"))[0] == ErrorCode.INVALID_TXN_STATE
    assert [await state_of(harness, name) for name in names] == ["Ongoing"] * 3
    for _ in range(2):
        assert await end() == (0, [epoch + 1 for epoch in epochs])
    assert [await completed(harness, name) for name in names] == ["CompleteCommit"] * 3
    assert [contents(harness.hosted("t", index)) for index in range(3)] == [["x", "COMMIT"]] * 3
    elsewhere = next(
        name
        for name in (f"other{number}" for number in range(50))
        if partition_of(name, 2) != partition_of("sink", 2)
    )
    apart = EndTransactionsRequest(
        True, members=[EndTransactionsRequest.Member(name, 1, 0) for name in ("sink", elsewhere)]
    )
    answer = await harness.ask(apart, 0, EndTransactionsResponse)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@with_harness
async def test_an_operator_can_end_a_hanging_transaction(harness: BrokerHarness) -> None:
    """With a marker, as Kafka's tools write it. A marker with an old epoch is refused."""
    await harness.create("t")
    producer = await producer_of(harness)
    assert await producer.write("t", 0, b"x") == 0

    async def mark(epoch: int, topic: str = "t") -> int:
        marker = WriteTxnMarkersRequest.Marker(
            producer.producer_id, epoch, False, [WriteTxnMarkersRequest.Topic(topic, [0])], 0
        )
        answer = await harness.ask(WriteTxnMarkersRequest([marker]), 1, WriteTxnMarkersResponse)
        return answer.markers[0].topics[0].partitions[0].error_code

    assert await mark(producer.epoch - 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await mark(producer.epoch, "none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await mark(producer.epoch) == 0
    assert contents(harness.hosted("t")) == ["x", "ABORT"]
    assert harness.hosted("t").last_stable_offset == 2


@with_harness
async def test_the_topic_of_the_transaction_coordinator_is_compacted_and_protected(
    harness: BrokerHarness,
) -> None:
    """It is created for the first transactional id, and refuses records from clients."""
    producer = await producer_of(harness)
    topic = harness.broker.cluster.image.topics[TOPIC]
    assert len(topic.partitions) == 2
    assert topic.configs["cleanup.policy"] == "compact"
    assert topic.configs["min.insync.replicas"] == "1"
    assert await producer.produce(TOPIC, 0, b"x") == ErrorCode.INVALID_TOPIC_EXCEPTION
