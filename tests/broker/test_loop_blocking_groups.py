"""Large groups and long lists of transactions do not block the event loop for long."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.net.outbox import in_memory
from penstock.net.session import Session
from penstock.testing.slowness import patient
from penstock.txns.transaction import Producer
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from penstock.wire.messages.base import Request

from .handlers.test_group_requests import find_coordinator
from .harness import BrokerHarness, HarnessPeer, open_harness
from .loop_blocking import R, at_best, check, counted_executor, metered, occupation, piece_of_work_s

MEMBERS = 1_000
PARTITIONS = 2_000
DESCRIBED = ConsumerGroupDescribeResponse
TRANSACTIONS = 20_000
WIDE = 3_000
"""How many partitions one transaction has."""
VERSION = 3
DEADLINE_S = 300.0
SESSION_MS = 600_000
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "3000",
}


async def exchange(
    session: Session, request: Request, response: type[R], version: int = VERSION
) -> R:
    frame = memoryview(bytearray(b"".join(encode_request(request, version, 1, "harness"))))[4:]
    answer = session.on_frame(frame)
    parts = await answer if isinstance(answer, asyncio.Future) else answer
    assert parts is not None
    return decode_response(response, memoryview(b"".join(in_memory(parts)))[4:], version)[1]


async def rebalance(harness: BrokerHarness, group: str, members: int) -> None:
    sessions = [harness.broker.server.new_session(HarnessPeer()) for _ in range(members)]
    protocols = [JoinGroupRequest.Protocol("range", bytes(100))]
    join = JoinGroupRequest(group, SESSION_MS, SESSION_MS, "", None, "consumer", protocols)
    joined = await asyncio.gather(
        *[exchange(session, join, JoinGroupResponse) for session in sessions]
    )
    assert {each.error_code for each in joined} == {ErrorCode.NONE}
    plan = [SyncGroupRequest.Assignment(each.member_id, bytes(200)) for each in joined]
    requests = [
        SyncGroupRequest(
            group,
            each.generation_id,
            each.member_id,
            assignments=plan if each.member_id == each.leader else [],
        )
        for each in joined
    ]
    synced = await asyncio.gather(
        *[
            exchange(session, request, SyncGroupResponse)
            for session, request in zip(sessions, requests, strict=True)
        ]
    )
    assert {each.error_code for each in synced} == {ErrorCode.NONE}


async def new_producer(harness: BrokerHarness, transactional_id: str) -> Producer:
    initialized = InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR)
    while initialized.error_code:
        find = FindCoordinatorRequest(transactional_id, 1)
        await harness.ask(find, 3, FindCoordinatorResponse)
        begin = InitProducerIdRequest(transactional_id, 60_000)
        initialized = await harness.ask(begin, 4, InitProducerIdResponse)
        await asyncio.sleep(0.01)
    return Producer(initialized.producer_id, initialized.producer_epoch)


def test_a_list_of_many_transactions_does_not_block_the_event_loop(tmp_path: Path) -> None:
    """It is one transaction under many names, because beginning 20,000 takes long."""

    async def run_case(folder: Path) -> None:
        with counted_executor():
            async with (
                asyncio.timeout(patient(DEADLINE_S)),
                open_harness(folder, kafka=SETTINGS) as harness,
            ):
                await new_producer(harness, "first")
                (shell,) = harness.services.transactions.loaded()
                known = shell.shard.state.image.transactions
                known.update((f"id-{at}", known["first"]) for at in range(TRANSACTIONS))
                request = ListTransactionsRequest()
                await harness.ask(request, 1, ListTransactionsResponse)
                before_s = piece_of_work_s()
                answer, meter = await occupation(harness, request, 1, ListTransactionsResponse)
                check(meter, before_s)
                assert len(answer.transaction_states) == TRANSACTIONS + 1
                for at in range(TRANSACTIONS):
                    del known[f"id-{at}"]

    at_best(run_case, tmp_path)


async def add_partitions(harness: BrokerHarness, producer: Producer, count: int) -> None:
    topics = [AddPartitionsToTxnRequest.Topic("wide", list(range(count)))]
    request = AddPartitionsToTxnRequest([], "wide", *producer, topics)
    answer = await harness.ask(request, 3, AddPartitionsToTxnResponse)
    (topic,) = answer.results_by_topic_v3_and_below
    codes = {each.partition_error_code for each in topic.results_by_partition}
    assert (len(topic.results_by_partition), codes) == (count, {ErrorCode.NONE})


async def end(harness: BrokerHarness, producer: Producer) -> None:
    """Commits the transaction, and waits until every partition has its marker."""
    request = EndTxnRequest("wide", *producer, True)
    answer = await harness.ask(request, 3, EndTxnResponse)
    assert answer.error_code == ErrorCode.NONE
    state = ""
    while state != "CompleteCommit":
        described = await harness.ask(
            DescribeTransactionsRequest(["wide"]), 0, DescribeTransactionsResponse
        )
        state = described.transaction_states[0].transaction_state
        await asyncio.sleep(0.01)


def test_a_transaction_of_many_partitions_does_not_block_the_event_loop(tmp_path: Path) -> None:
    """Its partitions are added, and get their markers, while other requests are served."""

    async def run_case(folder: Path) -> None:
        with counted_executor():
            async with (
                asyncio.timeout(patient(DEADLINE_S)),
                open_harness(folder, kafka=SETTINGS) as harness,
            ):
                await harness.create("wide", WIDE)
                producer = await new_producer(harness, "wide")
                await add_partitions(harness, producer, 1)
                await end(harness, producer)
                before_s = piece_of_work_s()
                with metered() as meter:
                    await add_partitions(harness, producer, WIDE)
                    await end(harness, producer)
                check(meter, before_s)
                ends = {harness.hosted("wide", index).log.end_offset for index in range(1, WIDE)}
                assert ends == {1}

    at_best(run_case, tmp_path)


def test_a_rebalance_of_a_thousand_members_does_not_block_the_event_loop(tmp_path: Path) -> None:
    async def run_case(folder: Path) -> None:
        with counted_executor():
            async with (
                asyncio.timeout(patient(DEADLINE_S)),
                open_harness(folder, kafka=SETTINGS) as harness,
            ):
                await find_coordinator(harness)
                await rebalance(harness, "first", 2)
                before_s = piece_of_work_s()
                with metered() as meter:
                    await rebalance(harness, "large", MEMBERS)
                check(meter, before_s)

    at_best(run_case, tmp_path)


def heartbeat(number: int, epoch: int, topics: list[str] | None) -> ConsumerGroupHeartbeatRequest:
    """A heartbeat of a member. It joins if it names topics."""
    request = ConsumerGroupHeartbeatRequest("large", f"member-{number}", epoch)
    if topics is not None:
        request.rebalance_timeout_ms = SESSION_MS
        request.subscribed_topic_names = topics
        request.topic_partitions = []
    return request


async def beat(harness: BrokerHarness, requests: list[ConsumerGroupHeartbeatRequest]) -> list[int]:
    """Sends heartbeats, each over a connection of its own, and returns the epochs."""
    sessions = [harness.broker.server.new_session(HarnessPeer()) for _ in requests]
    answers = await asyncio.gather(
        *[
            exchange(session, request, ConsumerGroupHeartbeatResponse, 1)
            for session, request in zip(sessions, requests, strict=True)
        ]
    )
    assert {each.error_code for each in answers} == {ErrorCode.NONE}
    return [each.member_epoch for each in answers]


def test_a_consumer_group_of_a_thousand_members_does_not_block_the_event_loop(
    tmp_path: Path,
) -> None:
    """All join together, and get partitions with their next heartbeats. Then one of them leaves,
    and the group is described."""

    async def run_case(folder: Path) -> None:
        with counted_executor():
            async with (
                asyncio.timeout(patient(DEADLINE_S)),
                open_harness(folder, kafka=SETTINGS) as harness,
            ):
                await harness.create("orders", PARTITIONS)
                await find_coordinator(harness)
                await rebalance(harness, "first", 2)
                first = [heartbeat(0, 0, ["orders"])]
                await beat(harness, first)
                before_s = piece_of_work_s()
                with metered() as meter:
                    joins = [heartbeat(number, 0, ["orders"]) for number in range(1, MEMBERS)]
                    epochs = await beat(harness, joins)
                    stays = [
                        heartbeat(number, epoch, None) for number, epoch in enumerate(epochs, 1)
                    ]
                    await beat(harness, stays)
                    await beat(harness, [heartbeat(1, -1, None)])
                check(meter, before_s)
                before_s = piece_of_work_s()
                answer, meter = await occupation(
                    harness, ConsumerGroupDescribeRequest(["large"]), 1, DESCRIBED
                )
                check(meter, before_s)
                assert len(answer.groups[0].members) == MEMBERS - 1

    at_best(run_case, tmp_path)
