"""Large requests are served in portions. What happens to them between two portions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.coordinators.markers import MarkerWriter
from penstock.broker.handlers import add_partitions_to_txn, alter_share_group_offsets
from penstock.net.session import Session
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.txns.transaction import Producer
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

from .harness import BrokerHarness, HarnessPeer, open_harness
from .test_loop_blocking_groups import SETTINGS, exchange, new_producer

DEADLINE_S = 120.0
COUNT = 520
"""More than a small request has."""
SHARE_SETTINGS = {**SETTINGS, "share.coordinator.state.topic.num.partitions": "1"}


def run(folder: Path, work: Callable[[BrokerHarness], Awaitable[None]], **kafka: str) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(patient(DEADLINE_S)),
            open_harness(folder, kafka={**SHARE_SETTINGS, **kafka}) as harness,
        ):
            await work(harness)

    asyncio.run(main())


def new_session(harness: BrokerHarness) -> Session:
    return harness.broker.server.new_session(HarnessPeer())


def addition(producer: Producer, count: int = COUNT) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnRequest.Topic("wide", list(range(count)))]
    return AddPartitionsToTxnRequest([], "wide", *producer, topics)


async def add(harness: BrokerHarness, producer: Producer) -> list[ErrorCode]:
    answer = await exchange(new_session(harness), addition(producer), AddPartitionsToTxnResponse, 3)
    (topic,) = answer.results_by_topic_v3_and_below
    assert [each.partition_index for each in topic.results_by_partition] == list(range(COUNT))
    return [ErrorCode(each.partition_error_code) for each in topic.results_by_partition]


async def described(harness: BrokerHarness) -> tuple[str, int]:
    """Returns the state of the transaction, and how many partitions it has."""
    answer = await harness.ask(
        DescribeTransactionsRequest(["wide"]), 0, DescribeTransactionsResponse
    )
    (found,) = answer.transaction_states
    return found.transaction_state, sum(len(topic.partitions) for topic in found.topics)


async def until_complete(harness: BrokerHarness) -> None:
    state = ""
    while state != "CompleteCommit":
        state, _ = await described(harness)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("waits", [True, False], ids=["ended", "ending"])
def test_a_transaction_that_ends_between_two_portions_gets_no_more_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """All partitions of the request get the same error, and no transaction is left open."""
    monkeypatch.setattr(add_partitions_to_txn, "_ADDED_TOGETHER", 100)
    ask_some = add_partitions_to_txn._ask_some
    portions = 0

    async def work(harness: BrokerHarness) -> None:
        nonlocal portions
        await harness.create("wide", COUNT)
        producer = await new_producer(harness, "wide")

        async def ask_and_end(*arguments: Any) -> Any:
            nonlocal portions
            portions += 1
            told = await ask_some(*arguments)
            if portions == 1:
                request = EndTxnRequest("wide", *producer, True)
                ended = await exchange(new_session(harness), request, EndTxnResponse, 3)
                assert ended.error_code == ErrorCode.NONE
                if waits:
                    await until_complete(harness)
            return told

        monkeypatch.setattr(add_partitions_to_txn, "_ask_some", ask_and_end)
        assert set(await add(harness, producer)) == {ErrorCode.CONCURRENT_TRANSACTIONS}
        assert portions == 2
        await until_complete(harness)
        ends = [harness.hosted("wide", index).log.end_offset for index in range(COUNT)]
        assert ends == [1] * 100 + [0] * (COUNT - 100)
        # The producer sends the request again, as for each such error.
        portions = -100
        assert set(await add(harness, producer)) == {ErrorCode.NONE}
        assert await described(harness) == ("Ongoing", COUNT)

    run(tmp_path, work)


@pytest.mark.parametrize("count", [10, COUNT])
def test_a_marker_that_cannot_be_written_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """An unexpected error concerns one partition, which gets its marker with the next attempt."""
    write = MarkerWriter._write
    failing = True

    def fail_one(self: MarkerWriter, marker: Any, where: TopicPartition, tell: Any) -> None:
        if where.partition == 3 and failing:
            raise RuntimeError("a bug")
        write(self, marker, where, tell)

    monkeypatch.setattr(MarkerWriter, "_write", fail_one)

    async def work(harness: BrokerHarness) -> None:
        nonlocal failing
        await harness.create("wide", count)
        producer = await new_producer(harness, "wide")
        request = addition(producer, count)
        await harness.ask(request, 3, AddPartitionsToTxnResponse)
        end = EndTxnRequest("wide", *producer, True)
        assert (await harness.ask(end, 3, EndTxnResponse)).error_code == ErrorCode.NONE
        others = [index for index in range(count) if index != 3]
        ends = {0}
        while 0 in ends:
            ends = {harness.hosted("wide", index).log.end_offset for index in others}
            await asyncio.sleep(0.01)
        assert (await described(harness))[0] == "PrepareCommit"
        assert "cannot write a transaction marker to wide-3" in caplog.text
        failing = False
        await until_complete(harness)
        assert harness.hosted("wide", 3).log.end_offset == 1

    run(tmp_path, work)


def offsets(count: int) -> AlterShareGroupOffsetsRequest:
    partitions = [AlterShareGroupOffsetsRequest.Partition(index, 0) for index in range(count)]
    return AlterShareGroupOffsetsRequest(
        "group", [AlterShareGroupOffsetsRequest.Topic("wide", partitions)]
    )


def test_share_offsets_are_answered_one_by_one_if_a_member_joins_between_two_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the client knows which offsets were set."""
    total = 1_500
    ask = alter_share_group_offsets.ask  # type: ignore[attr-defined]
    portions = 0

    async def work(harness: BrokerHarness) -> None:
        nonlocal portions
        await harness.create("wide", total)
        while True:
            find = FindCoordinatorRequest("group", 0)
            await harness.ask(find, 3, FindCoordinatorResponse)
            first = await harness.ask(offsets(1), 0, AlterShareGroupOffsetsResponse)
            codes = {each.error_code for topic in first.responses for each in topic.partitions}
            if not first.error_code and codes == {ErrorCode.NONE}:
                break
            await asyncio.sleep(0.01)

        async def join_and_ask(*arguments: Any) -> Any:
            heartbeat = ShareGroupHeartbeatRequest("group", "m" * 22, 0, None, ["wide"])
            joined = await exchange(new_session(harness), heartbeat, ShareGroupHeartbeatResponse, 1)
            assert joined.error_code == ErrorCode.NONE
            answer = ask(*arguments)
            return await answer if isinstance(answer, asyncio.Future) else answer

        def ask_second_after_a_join(*arguments: Any) -> Any:
            nonlocal portions
            portions += 1
            if portions == 2:
                return asyncio.ensure_future(join_and_ask(*arguments))
            return ask(*arguments)

        monkeypatch.setattr(alter_share_group_offsets, "ask", ask_second_after_a_join)
        answer = await exchange(
            new_session(harness), offsets(total), AlterShareGroupOffsetsResponse, 0
        )
        assert (answer.error_code, portions) == (ErrorCode.NONE, 2)
        (topic,) = answer.responses
        assert [each.partition_index for each in topic.partitions] == list(range(total))
        outcomes = [ErrorCode(each.error_code) for each in topic.partitions]
        changed = outcomes.count(ErrorCode.NONE)
        assert 0 < changed < total
        assert outcomes == [ErrorCode.NONE] * changed + [ErrorCode.NON_EMPTY_GROUP] * (
            total - changed
        )
        assert topic.partitions[-1].error_message

    run(tmp_path, work)


def test_share_offsets_of_a_group_with_members_get_one_error(tmp_path: Path) -> None:
    """Nothing was changed, so the error is that of the whole request."""

    async def work(harness: BrokerHarness) -> None:
        await harness.create("wide", COUNT)
        code = ErrorCode.NOT_COORDINATOR
        while code != ErrorCode.NONE:
            await harness.ask(FindCoordinatorRequest("group", 0), 3, FindCoordinatorResponse)
            heartbeat = ShareGroupHeartbeatRequest("group", "m" * 22, 0, None, ["wide"])
            joined = await harness.ask(heartbeat, 1, ShareGroupHeartbeatResponse)
            code = ErrorCode(joined.error_code)
            await asyncio.sleep(0.01)
        answer = await harness.ask(offsets(COUNT), 0, AlterShareGroupOffsetsResponse)
        assert (answer.error_code, answer.responses) == (ErrorCode.NON_EMPTY_GROUP, [])

    run(tmp_path, work)
