"""Tests leader elections and reassignments with the admin client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

import penstock
from client.fake_broker import FakeBroker
from penstock.client.admin.admin import Admin
from penstock.client.admin.reassignment import Reassignment
from penstock.client.errors import ApiNotServed, BrokerError, TopicNotFound
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterPartitionReassignmentsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
    UnregisterBrokerResponse,
)

T = TypeVar("T")
TOPIC_PARTITION = TopicPartition("t", 1)


def with_admin(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    async def main() -> T:
        async with Admin(bootstrap, default_api_timeout_ms=int(patient(20_000))) as admin:
            return await work(admin)

    return asyncio.run(main())


def code_of(outcome: BrokerError | None) -> ErrorCode:
    return ErrorCode.NONE if outcome is None else outcome.code


def test_one_broker_has_nothing_to_reassign(live_broker: Broker) -> None:
    """Each partition gets its error. The sync admin works the same."""
    name = live_broker.new_topic(partitions=2)
    first, second, third = (TopicPartition(name, index) for index in range(3))
    with penstock.Admin(live_broker.bootstrap) as admin:
        assert not admin.list_partition_reassignments([first, second])
        elected = admin.elect_leaders([first, third])
        assert code_of(elected[first]) == ErrorCode.ELECTION_NOT_NEEDED
        assert isinstance(elected[third], TopicNotFound)
        assert first not in admin.elect_leaders()
        assert code_of(admin.elect_leaders([first], unclean=True)[first]) == (
            ErrorCode.ELECTION_NOT_NEEDED
        )
        moved = admin.alter_partition_reassignments({first: [0], second: [7], third: [0]})
        assert moved[first] is None
        assert code_of(moved[second]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert isinstance(moved[third], TopicNotFound)
        cancelled = admin.alter_partition_reassignments({first: None})
        assert code_of(cancelled[first]) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        with pytest.raises(BrokerError, match="Broker 0 is running"):
            admin.unregister_broker(0)
        with pytest.raises(BrokerError, match="There is no broker 9"):
            admin.unregister_broker(9)


def test_a_request_is_repeated_if_the_broker_is_not_the_controller(fake: FakeBroker) -> None:
    """All these requests are safe to repeat."""
    moved = AlterPartitionReassignmentsResponse.Partition(1, 0, None)
    elected = ElectLeadersResponse.Partition(1, 0, None)
    listed = ListPartitionReassignmentsResponse.Partition(1, [2, 3, 0], [2, 3], [0])
    fake.next(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        AlterPartitionReassignmentsResponse(error_code=ErrorCode.NOT_CONTROLLER),
        AlterPartitionReassignmentsResponse(
            responses=[AlterPartitionReassignmentsResponse.Topic("t", [moved])]
        ),
    )
    fake.next(
        ApiKey.ELECT_LEADERS,
        ElectLeadersResponse(error_code=ErrorCode.NOT_CONTROLLER),
        ElectLeadersResponse(replica_election_results=[ElectLeadersResponse.Topic("t", [elected])]),
    )
    fake.next(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ListPartitionReassignmentsResponse(error_code=ErrorCode.NOT_CONTROLLER),
        ListPartitionReassignmentsResponse(
            topics=[ListPartitionReassignmentsResponse.Topic("t", [listed])]
        ),
    )
    fake.next(
        ApiKey.UNREGISTER_BROKER,
        UnregisterBrokerResponse(error_code=ErrorCode.NOT_CONTROLLER),
        UnregisterBrokerResponse(error_message=None),
    )

    async def work(admin: Admin) -> None:
        replicas = {TOPIC_PARTITION: (2, 3)}
        assert await admin.alter_partition_reassignments(replicas) == {TOPIC_PARTITION: None}
        assert await admin.elect_leaders([TOPIC_PARTITION], unclean=True) == {TOPIC_PARTITION: None}
        moves = await admin.list_partition_reassignments()
        assert moves == {TOPIC_PARTITION: Reassignment((2, 3, 0), (2, 3), (0,))}
        assert moves[TOPIC_PARTITION].target == (2, 3)
        await admin.unregister_broker(4)

    with_admin(fake.address, work)
    asked = fake.asked(ApiKey.ALTER_PARTITION_REASSIGNMENTS)[-1]
    assert asked.topics[0].partitions[0].replicas == [2, 3]
    assert fake.asked(ApiKey.ELECT_LEADERS)[-1].election_type == 1
    assert fake.asked(ApiKey.LIST_PARTITION_REASSIGNMENTS)[-1].topics is None


def test_an_old_broker_cannot_keep_the_replication_factor() -> None:
    """So it gets no request."""
    versions = {ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0)}
    with FakeBroker(versions=versions) as fake:

        async def work(admin: Admin) -> None:
            with pytest.raises(
                ApiNotServed, match="does not support allow_replication_factor_change"
            ):
                await admin.alter_partition_reassignments(
                    {TOPIC_PARTITION: [1]}, allow_replication_factor_change=False
                )

        with_admin(fake.address, work)
        assert not fake.asked(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
