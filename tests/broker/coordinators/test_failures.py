"""A coordinator recovers from any exception: every waiting request is answered, and it serves
again.

Each test injects one unexpected exception at one step between a request and its response. What was
committed before must still be there afterwards, and the same broker must serve new requests without
a new election.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from broker.handlers.test_group_requests import commit, commit_of, committed, find_coordinator
from broker.handlers.test_transactions import HarnessCluster
from broker.harness import BrokerHarness, open_harness
from broker.transactional_producer import AGAIN, TransactionalProducer
from penstock.broker.coordinators import batches
from penstock.broker.coordinators.shard_shell import ShardShell
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.groups.shard import GroupShard
from penstock.testing.slowness import patient
from penstock.txns.shard import TransactionShard
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitResponse,
)

DEADLINE_S = 60.0
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "60000",
    "offsets.commit.timeout.ms": "60000",
}
COMMITTED = "after the replay"
"""At this step the response was decided before the exception, and is correct."""
SENT_AWAY = {ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_SERVER_ERROR}


class InjectedError(Exception):
    """An exception of a type that the broker does not know."""


class Injection:
    """Replaces a function with one that raises once, before or after it has done its work."""

    def __init__(self, owner: Any, name: str, *, after: bool = False) -> None:
        self.fired = False
        self._owner, self._name = owner, name
        self._held = vars(owner)[name]
        held = self._held

        @wraps(held)
        def raising(*args: Any, **kwargs: Any) -> Any:
            if self.fired:
                return held(*args, **kwargs)
            self.fired = True
            if after:
                result = held(*args, **kwargs)
                if isinstance(args[0], GroupShard | TransactionShard):
                    args[0].state.effects._effects.extend(result)
            raise InjectedError(name)

        setattr(owner, name, raising)

    def take_out(self) -> None:
        setattr(self._owner, self._name, self._held)


MakeInjection = Callable[[], Injection]
IN_BOTH: dict[str, MakeInjection] = {
    "encode": lambda: Injection(batches, "build_batch"),
    "append": lambda: Injection(HostedPartition, "append_own"),
    "append, after it is done": lambda: Injection(HostedPartition, "append_own", after=True),
    "wait for the commit": lambda: Injection(HostedPartition, "when_committed"),
    "wait, after it has begun": lambda: Injection(HostedPartition, "when_committed", after=True),
}
IN_GROUPS: dict[str, MakeInjection] = IN_BOTH | {
    "request": lambda: Injection(GroupShard, "offset_commit"),
    "request, after it decided": lambda: Injection(GroupShard, "offset_commit", after=True),
    "effect": lambda: Injection(ShardShell, "carry_out_one"),
    "replay of what is committed": lambda: Injection(GroupShard, "on_committed"),
    COMMITTED: lambda: Injection(GroupShard, "on_committed", after=True),
}
IN_TRANSACTIONS: dict[str, MakeInjection] = IN_BOTH | {
    "request": lambda: Injection(TransactionShard, "init_producer_id"),
    "request, after it decided": lambda: Injection(
        TransactionShard, "init_producer_id", after=True
    ),
    "effect": lambda: Injection(ShardShell, "carry_out_one"),
    "producer ids": lambda: Injection(TransactionShard, "on_producer_ids"),
    "replay of what is committed": lambda: Injection(TransactionShard, "on_committed"),
    COMMITTED: lambda: Injection(TransactionShard, "on_committed", after=True),
}


def run_case(
    directory: Path, scenario: Callable[[BrokerHarness], Awaitable[None]], **changes: str
) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(patient(DEADLINE_S)),
            open_harness(directory, kafka=SETTINGS | changes) as harness,
        ):
            await scenario(harness)

    asyncio.run(run())


def join_of(group: str) -> JoinGroupRequest:
    protocol = JoinGroupRequest.Protocol("range", b"")
    return JoinGroupRequest(group, 60_000, 60_000, "", None, "consumer", [protocol])


async def commit_until_taken(harness: BrokerHarness, offset: int) -> None:
    """Finds the coordinator again and retries until the commit succeeds, as clients do."""
    while await commit(harness, "g", "orders", {0: offset}) != [0]:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("where", IN_GROUPS)
def test_after_an_exception_in_the_group_coordinator_all_waiting_requests_are_answered(
    tmp_path: Path, where: str
) -> None:
    """The request that hit it fails. A member whose join waits gets NOT_COORDINATOR, or goes on
    waiting if the shard was not affected. Later requests are served.
    """

    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders")
        await find_coordinator(harness)
        await commit_until_taken(harness, 5)
        waits = asyncio.ensure_future(harness.ask(join_of("h"), 3, JoinGroupResponse))
        await asyncio.sleep(0)
        runtime = harness.services.groups.require("g")
        injection = IN_GROUPS[where]()
        try:
            request = commit_of("g", "orders", {0: 6})
            answer = await harness.ask(request, 8, OffsetCommitResponse)
        finally:
            injection.take_out()
        assert injection.fired
        assert answer.topics[0].partitions[0].error_code in SENT_AWAY or where == COMMITTED
        await commit_until_taken(harness, 7)
        assert await committed(harness, "g", "orders", [0]) == [7]
        if runtime.is_over:
            assert (await waits).error_code == ErrorCode.NOT_COORDINATOR
        else:
            assert not waits.done()
            waits.cancel()
        harness.services.groups.require("g").shard.verify()

    run_case(tmp_path, scenario)


@pytest.mark.parametrize("where", IN_TRANSACTIONS)
def test_after_an_exception_in_the_transaction_coordinator_requests_are_answered(
    tmp_path: Path, where: str
) -> None:
    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders")
        before = TransactionalProducer(HarnessCluster(harness), "before")
        assert await before.init() == 0
        injection = IN_TRANSACTIONS[where]()
        try:
            request = InitProducerIdRequest("tx", 60_000)
            answer = await harness.ask(request, 4, InitProducerIdResponse)
        finally:
            injection.take_out()
        assert injection.fired
        assert answer.error_code in SENT_AWAY | AGAIN or where == COMMITTED
        after = TransactionalProducer(HarnessCluster(harness), "tx")
        assert await after.init() == 0
        again = TransactionalProducer(HarnessCluster(harness), "before")
        assert await again.init() == 0
        assert (again.producer_id, again.epoch) == (before.producer_id, before.epoch + 1)
        harness.services.transactions.require("tx").shard.verify()

    run_case(tmp_path, scenario)


def test_after_an_exception_in_a_timer_all_waiting_requests_are_answered(tmp_path: Path) -> None:
    """The timer would have ended the join phase. No other event would answer the members."""

    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders")
        await find_coordinator(harness)
        injection = Injection(GroupShard, "on_timer")
        try:
            first = await harness.ask(join_of("g"), 3, JoinGroupResponse)
        finally:
            injection.take_out()
        assert injection.fired
        assert first.error_code == ErrorCode.NOT_COORDINATOR
        await commit_until_taken(harness, 7)
        second = await harness.ask(join_of("g"), 3, JoinGroupResponse)
        assert (second.error_code, second.generation_id) == (0, 1)

    run_case(tmp_path, scenario, **{"group.initial.rebalance.delay.ms": "1"})


def test_if_unloading_a_shard_fails_too_all_waiting_requests_are_answered(tmp_path: Path) -> None:
    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders")
        await find_coordinator(harness)
        waits = asyncio.ensure_future(harness.ask(join_of("h"), 3, JoinGroupResponse))
        await asyncio.sleep(0)
        injections = [Injection(HostedPartition, "append_own"), Injection(GroupShard, "unload")]
        try:
            request = commit_of("g", "orders", {0: 6})
            answer = await harness.ask(request, 8, OffsetCommitResponse)
        finally:
            for injection in injections:
                injection.take_out()
        assert all(injection.fired for injection in injections)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        assert (await waits).error_code == ErrorCode.NOT_COORDINATOR
        await commit_until_taken(harness, 7)

    run_case(tmp_path, scenario)


@pytest.mark.parametrize("name", ["replay", "on_loaded"])
def test_a_shard_that_fails_to_load_is_loaded_again(tmp_path: Path, name: str) -> None:
    """The broker goes on, whatever the exception is."""

    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders")
        await find_coordinator(harness)
        await commit_until_taken(harness, 5)
        groups = harness.services.groups
        injection = Injection(GroupShard, name)
        try:
            groups.on_leading(groups.require("g").hosted)
            await harness.until(lambda: injection.fired)
        finally:
            injection.take_out()
        await find_coordinator(harness)
        assert await committed(harness, "g", "orders", [0]) == [5]

    run_case(tmp_path, scenario)


def test_a_transactional_offset_commit_that_raises_is_answered(tmp_path: Path) -> None:
    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders")
        await find_coordinator(harness)
        producer = TransactionalProducer(HarnessCluster(harness), "tx")
        assert await producer.init() == 0
        injection = Injection(GroupShard, "txn_offset_commit", after=True)
        try:
            first = await producer.send_offsets("g", "orders", {0: 3})
        finally:
            injection.take_out()
        assert injection.fired
        assert first == [ErrorCode.UNKNOWN_SERVER_ERROR]
        await find_coordinator(harness)
        assert await producer.send_offsets("g", "orders", {0: 4}) == [0]

    run_case(tmp_path, scenario)
