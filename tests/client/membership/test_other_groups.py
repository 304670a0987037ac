"""Tests members of groups that divide something other than the partitions of topics."""

from __future__ import annotations

import asyncio

from client.membership.live_group import Seat, run_case
from client.membership.machine_driver import Rig
from client.open_clusters import cluster_of
from penstock.client.admin.groups import describe_group
from penstock.client.membership.assignors import COOPERATIVE_STICKY
from penstock.client.membership.listener import Listener
from penstock.client.membership.member import GroupMember
from penstock.client.membership.settings import MembershipOptions
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import JoinGroupRequest


def test_a_member_names_the_protocol_type_of_its_group() -> None:
    rig = Rig(protocol_type="pipelines")
    rig.polls()
    assert rig.asks(JoinGroupRequest).protocol_type == "pipelines"
    rig.joins(generation=4)
    assert not rig.machine.knows_assignment
    assert rig.syncs().protocol_type == "pipelines"
    assert rig.machine.knows_assignment


async def until_owned(member: GroupMember, names: set[str]) -> None:
    async with asyncio.timeout(patient(60.0)):
        while {each.topic for each in member.assignment} != names or not member.is_stable:
            await member.poll()
            await asyncio.sleep(0.02)


def test_a_leader_counts_what_it_is_told(live_broker: Broker) -> None:
    """The names need not be topics. What a member disowns is assigned again."""
    group = live_broker.new_name("group")
    existing = {"a": 1, "b": 1}

    async def count(names: tuple[str, ...]) -> dict[str, int]:
        return {name: existing[name] for name in names if name in existing}

    async def case() -> None:
        async with cluster_of(live_broker.bootstrap) as cluster:
            seat = Seat(cluster, group)
            options = MembershipOptions(
                group,
                assignors=(COOPERATIVE_STICKY,),
                heartbeat_interval_ms=50,
                session_timeout_ms=int(patient(10_000)),
                metadata_max_age_ms=50,
                enable_auto_commit=False,
                protocol_type="things",
            )
            member = GroupMember(cluster, options, seat, count)
            told: list[list[TopicPartition]] = []
            member.subscribe(["a", "b", "c"], Listener(on_assigned=told.append))
            await until_owned(member, {"a", "b"})
            assert member.knows_assignment
            existing["c"] = 1
            await until_owned(member, {"a", "b", "c"})
            described = await describe_group(cluster, group)
            assert described.protocol_type == "things"
            generation = member.generation
            member.disown([TopicPartition("b", 0)], "tried")
            assert member.assignment == {TopicPartition("a", 0), TopicPartition("c", 0)}
            await until_owned(member, {"a", "b", "c"})
            assert member.generation > generation
            assert [TopicPartition("b", 0)] in told
            await member.close(patient(30.0))

    run_case(case())
