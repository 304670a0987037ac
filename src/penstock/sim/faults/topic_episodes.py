"""Episodes about topics that change at the worst moment: see `episodes`.

min_insync         min.insync.replicas changes while only the leader is in sync: it must comply
durability_switch  a topic is switched to `fsync`; a follower loses power before it has synced
missed_deletion    a broker is down while a topic is deleted and created again
queued_deletion    a broker with a stalled disk gets a change and the deletion at the same time
reborn_restart     a leader restarts with uncommitted records of a topic that was created again
take_back          a replica is moved away and back before its broker learns of either
replaced_move      a reassignment that replaces another names a replica no more that has one of the
                   last copies; then the broker with the other copy loses power
deleted_branch     a leader dies with uncommitted records; its successor deletes its own at the
                   same offsets
eligible_deletion  records are deleted while a replica is down that may lead next; it leads
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from penstock.aio import Admin
from penstock.client.errors import ClientError, TopicNotFound
from penstock.sim.actors.sends import Answered, batch_of, produce
from penstock.sim.faults.cluster_under_test import ANSWER_S, ClusterUnderTest
from penstock.sim.faults.topic_changes import ALTER, REBORN, TopicRecreation, delete_records
from penstock.sim.node import BrokerNode
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

NAME: Final = f"{REBORN}3"
PARTITION_NAME: Final = f"{NAME}-0"
FILLER: Final = "filler"
NOTED_S: Final = 6.0
"""Brokers store their offsets more often than this."""
HEARD_S: Final = 5.0
"""A broker that can reach the store knows of a change after this time."""
STALL_S: Final = 6.0
LAG_S: Final = 6.0
UNSYNCED: Final = 3
"""Records that are committed and not on the follower's disk."""


class TopicEpisodes:
    def __init__(self, cluster: ClusterUnderTest) -> None:
        self._cluster = cluster
        self._shared = cluster.shared
        self._draws = cluster.draws
        self._actions = cluster.actions
        self.episodes: Mapping[str, Callable[[], Awaitable[bool]]] = {
            "min_insync": self._min_insync,
            "durability_switch": self._durability_switch,
            "missed_deletion": self._reborn(self._miss_deletion),
            "queued_deletion": self._reborn(self._queue_deletion),
            "reborn_restart": self._reborn(self._restart_reborn),
            "take_back": self._take_back,
            "replaced_move": self._replaced_move,
            "deleted_branch": self._deleted_branch,
            "eligible_deletion": self._eligible_deletion,
        }

    # Settings

    async def _min_insync(self) -> bool:
        # A request of an earlier fault must not change the setting during the episode.
        await self._cluster.wait(lambda: ALTER not in self._shared.requests, ANSWER_S)
        partition_names = [
            partition_name
            for partition_name in self._shared.scenario.partition_names
            if self._cluster.setting(partition_name)[0] == "fsync"
            and len(self._cluster.replicas_of(partition_name)) > 1
            and self._cluster.leader_of(partition_name) >= 0
        ]
        if not partition_names:
            return False
        partition_name = self._draws.choice(partition_names)
        before = self._cluster.setting(partition_name)
        leader = self._cluster.leader_of(partition_name)
        others = [
            self._cluster.world.brokers[each]
            for each in self._cluster.replicas_of(partition_name)
            if each != leader
        ]
        for node in others:
            self._actions.faults.kill(node.name)
        if await self._cluster.wait(
            lambda: self._cluster.isr_of(partition_name) == (leader,), ANSWER_S
        ):
            await self._demand_setting(partition_name, ("fsync", 1))
            await self._cluster.demand(
                f"writing to {partition_name} after min.insync.replicas was lowered to 1",
                lambda: self._cluster.write(partition_name),
            )
            await self._demand_setting(partition_name, ("fsync", 2))
            await self._cluster.world.sleep(HEARD_S)
            await self._cluster.spawn(self._expect_refusal(partition_name))
        for node in others:
            self._actions.start(node)
        await self._demand_setting(partition_name, before)
        return True

    async def _expect_refusal(self, partition_name: str) -> None:
        begun_ms, error = self._shared.now_ms(), ""
        try:
            await self._cluster.write(partition_name)
        except ClientError:
            pass
        else:
            in_sync = self._cluster.isr_of(partition_name)
            error = f"it was acknowledged, but the ISR is {in_sync}" if len(in_sync) < 2 else ""
        what = f"refusing a write to {partition_name} below min.insync.replicas=2"
        self._cluster.probe(what, begun_ms, error)

    async def _durability_switch(self) -> bool:
        partition_names = [
            partition_name
            for partition_name in self._shared.scenario.written
            if self._cluster.setting(partition_name)[1] > 1
            and len(self._cluster.replicas_of(partition_name)) > 2
            and self._cluster.leader_of(partition_name) >= 0
        ]
        if not partition_names:
            return False
        partition_name = self._draws.choice(partition_names)
        least = self._cluster.setting(partition_name)[1]
        self._shared.losses_max = min(self._shared.losses_max, least - 1)
        await self._demand_setting(partition_name, ("replicated", least))
        await self._cluster.world.sleep(HEARD_S)
        others = [
            each
            for each in self._cluster.isr_of(partition_name)
            if each != self._cluster.leader_of(partition_name)
        ]
        if not others:
            return False
        node = self._cluster.world.brokers[self._draws.choice(others)]
        self._actions.faults.stall_disk(node.name, STALL_S)
        await self._cluster.wait(
            lambda: self._unsynced(node, partition_name) >= UNSYNCED, STALL_S / 2
        )
        await self._demand_setting(partition_name, ("fsync", least))
        if node.id in self._cluster.isr_of(partition_name) and self._actions.may_wound(node):
            self._actions.faults.power_loss(node.name)
            await self._shared.rest(self._cluster.pause_s())
            self._actions.start(node)
        return True

    def _unsynced(self, node: BrokerNode, partition_name: str) -> int:
        hosted = self._cluster.hosted(node, partition_name)
        committed = self._cluster.committed().get(partition_name, 0)
        return 0 if hosted is None else committed - hosted.log.recovery_point

    async def _demand_setting(self, partition_name: str, setting: tuple[str, int]) -> None:
        topic = TopicPartition.parse(partition_name).topic
        durability, least = self._shared.settings[topic] = setting
        values = {"durability": durability, "min.insync.replicas": str(least)}

        async def alter(admin: Admin) -> None:
            await admin.alter_configs(topic=topic, set_values=values)

        what = f"setting {topic} to {durability} and min.insync.replicas={least}"
        await self._cluster.demand(what, lambda: self._cluster.by_admin(alter))

    # Topics that are created again

    def _reborn(
        self, work: Callable[[Admin, TopicRecreation, BrokerNode], Coroutine[Any, Any, None]]
    ) -> Callable[[], Awaitable[bool]]:
        """Returns an episode with a topic that has old records on all its replicas, and one
        chosen replica."""

        async def begin(admin: Admin) -> None:
            reborn = TopicRecreation(self._cluster.operator, self._draws, NAME)
            await self._delete(admin, NAME)
            brokers = self._cluster.world.brokers
            await reborn.make(admin, 3)
            await reborn.write("old")
            replicas = self._cluster.replicas_of(PARTITION_NAME)
            node = brokers[self._draws.choice(replicas)]
            leader = brokers[self._cluster.leader_of(PARTITION_NAME)]
            await self._cluster.wait(
                lambda: (
                    self._cluster.end(node, PARTITION_NAME)
                    == self._cluster.end(leader, PARTITION_NAME)
                ),
                ANSWER_S,
            )
            await work(admin, reborn, node)

        async def play() -> bool:
            try:
                await self._cluster.spawn(self._cluster.by_admin(begin))
            except ClientError:
                return False
            return True

        return play

    async def _miss_deletion(self, admin: Admin, reborn: TopicRecreation, node: BrokerNode) -> None:
        self._actions.faults.kill(node.name)
        try:
            # Its registration lasts a while longer than the broker, so it becomes a replica of the
            # new topic.
            await self._delete(admin, NAME)
            made = await reborn.make(admin, 3)
            await self._cluster.world.sleep(self._cluster.pause_s())
        finally:
            self._actions.start(node)
        if made:
            await self._look_when_whole(admin, reborn)

    async def _queue_deletion(
        self, admin: Admin, reborn: TopicRecreation, node: BrokerNode
    ) -> None:
        replicas = len(self._cluster.replicas_of(PARTITION_NAME))
        self._actions.faults.stall_disk(node.name, STALL_S)
        # The broker waits for its disk to create this topic, and applies no other change meanwhile.
        with suppress(ClientError):
            await admin.create_topic(FILLER, 1, len(self._cluster.world.brokers))
        await admin.alter_configs(topic=NAME, set_values={"retention.ms": "100000000"})
        await self._delete(admin, NAME)
        await self._cluster.world.sleep(STALL_S + HEARD_S)
        await self._delete(admin, FILLER)
        if await reborn.make(admin, replicas):
            await self._look_when_whole(admin, reborn)

    async def _restart_reborn(
        self, admin: Admin, reborn: TopicRecreation, node: BrokerNode
    ) -> None:
        replicas = len(self._cluster.replicas_of(PARTITION_NAME))
        await self._cluster.world.sleep(NOTED_S)
        await self._delete(admin, NAME)
        await reborn.make(admin, replicas)
        partition = self._cluster.partition(PARTITION_NAME)
        if partition is None or partition.leader < 0:
            return
        leader = self._cluster.world.brokers[partition.leader]
        for each in partition.replicas:
            if each != leader.id:
                other = self._cluster.world.brokers[each]
                self._actions.faults.clog(leader.name, other.name, 1.0)
        await self._write_alone(PARTITION_NAME)
        self._actions.faults.kill(leader.name)
        await self._cluster.world.sleep(0.1)
        self._actions.start(leader)

    async def _write_alone(self, partition_name: str) -> None:
        """Writes one record with acks=1. The history does not record it: no client reads
        this topic."""
        operator = self._cluster.operator
        batch = batch_of(operator, [operator.next_value()[1]])
        async with operator.cluster() as cluster:
            with suppress(Answered):
                await produce(cluster, partition_name, batch, 1, lambda: None)

    async def _look_when_whole(self, admin: Admin, reborn: TopicRecreation) -> None:
        def is_whole() -> bool:
            replicas = self._cluster.replicas_of(PARTITION_NAME)
            return bool(replicas) and {*self._cluster.isr_of(PARTITION_NAME)} == {*replicas}

        if await self._cluster.wait(is_whole, ANSWER_S):
            await reborn.look(admin)

    async def _delete(self, admin: Admin, name: str) -> None:
        with suppress(TopicNotFound):
            await admin.delete_topic(name)

    # Records that are deleted

    async def _deleted_branch(self) -> bool:
        """The replica comes back with records that were never committed, exactly up to the offset
        where the log of its leader starts. It must not be taken for a copy."""
        partition_names = [
            partition_name
            for partition_name in self._shared.scenario.deletable
            if self._cluster.leader_of(partition_name) >= 0
            and len(self._cluster.isr_of(partition_name))
            > max(1, self._cluster.min_insync(partition_name))
        ]
        if not partition_names:
            return False
        partition_name = self._draws.choice(partition_names)
        leader = self._cluster.world.brokers[self._cluster.leader_of(partition_name)]
        for each in self._cluster.replicas_of(partition_name):
            if each != leader.id:
                self._actions.faults.clog(
                    leader.name, self._cluster.world.brokers[each].name, STALL_S
                )

        def committed() -> int:
            return self._cluster.committed().get(partition_name, 0)

        # The followers have not answered for longer than a reply takes: what is not committed now
        # stays with this leader.
        await self._cluster.world.sleep(0.2)
        has_branch = await self._cluster.wait(
            lambda: self._cluster.end(leader, partition_name) > committed(), STALL_S / 4
        )
        end = self._cluster.end(leader, partition_name)
        if not has_branch or self._cluster.leader_of(partition_name) != leader.id:
            return False
        self._actions.faults.kill(leader.name)
        try:
            await self._cluster.wait(lambda: committed() >= end, ANSWER_S)
            if committed() < end:
                return False
            await self._cluster.spawn(self._delete_up_to(partition_name, end))
        except ClientError:
            return False
        finally:
            self._actions.start(leader)
        await self._cluster.wait(
            lambda: leader.id in self._cluster.isr_of(partition_name), ANSWER_S
        )
        return True

    async def _eligible_deletion(self) -> bool:
        """A deletion that was acknowledged must hold for the replica too that went last."""
        brokers = self._cluster.world.brokers
        partition_names = [
            partition_name
            for partition_name in self._shared.scenario.deletable
            if self._cluster.setting(partition_name)[1] > 1
            and self._cluster.setting(partition_name)[0] == "fsync"
            and self._cluster.committed().get(partition_name, 0) > 0
            and self._cluster.leader_of(partition_name) >= 0
        ]
        if not partition_names:
            return False
        partition_name = self._draws.choice(partition_names)
        least = self._cluster.setting(partition_name)[1]
        leader = brokers[self._cluster.leader_of(partition_name)]
        others = [
            brokers[each] for each in self._cluster.isr_of(partition_name) if each != leader.id
        ]
        stopped = []
        try:
            while len(self._cluster.isr_of(partition_name)) >= least and others:
                stopped.append(others.pop())
                self._actions.faults.kill(stopped[-1].name)
                await self._cluster.wait(
                    partial(self._is_out, partition_name, stopped[-1]), ANSWER_S
                )
            if not stopped or leader.id != self._cluster.leader_of(partition_name):
                return False
            with suppress(ClientError):
                end = self._cluster.committed()[partition_name]
                await self._cluster.spawn(self._delete_up_to(partition_name, end))
            for node in (leader, *others):
                self._actions.faults.kill(node.name)
            self._actions.start(stopped[-1])
            await self._cluster.wait(
                lambda: self._cluster.leader_of(partition_name) == stopped[-1].id, ANSWER_S
            )
        finally:
            for node in brokers:
                self._actions.start(node)
        return True

    def _is_out(self, partition_name: str, node: BrokerNode) -> bool:
        return node.id not in self._cluster.isr_of(partition_name)

    async def _delete_up_to(self, partition_name: str, offset: int) -> None:
        operator = self._cluster.operator
        await self._cluster.by_admin(
            lambda admin: delete_records(operator, admin, partition_name, offset)
        )

    # Replicas that move

    async def _take_back(self) -> bool:
        """The leader must not count fetches that the replica makes before it learns that it was
        moved away: then it deletes its log."""
        brokers = self._cluster.world.brokers
        partition_names = [
            partition_name
            for partition_name in self._shared.scenario.partition_names
            if 1 < len(self._cluster.replicas_of(partition_name)) < len(brokers)
            and self._cluster.leader_of(partition_name) >= 0
        ]
        if not partition_names:
            return False
        partition_name = self._draws.choice(partition_names)
        replicas, leader = (
            self._cluster.replicas_of(partition_name),
            self._cluster.leader_of(partition_name),
        )
        gone = brokers[self._draws.choice([each for each in replicas if each != leader])]
        spare = self._draws.choice([node.id for node in brokers if node.id not in replicas])
        targets = tuple(spare if each == gone.id else each for each in replicas)
        self._actions.faults.lag_watch(gone.name, LAG_S)
        try:
            for wanted in (targets, replicas):
                await self._cluster.spawn(self._move(partition_name, wanted))
                await self._cluster.wait(partial(self._is_on, partition_name, wanted), LAG_S / 2)
        except ClientError:
            return False
        finally:
            await self._shared.rest(2 * LAG_S)
            self._actions.faults.lag_watch(gone.name, 0.0)
        return True

    async def _replaced_move(self) -> bool:
        """Only the leader and an added replica are in sync. The second request would leave the
        leader alone with its records, which are not on its disk yet."""
        brokers = self._cluster.world.brokers
        partition_names = [
            partition_name
            for partition_name in self._shared.scenario.written
            if self._cluster.setting(partition_name)[1] == 2
            and 1 < len(self._cluster.replicas_of(partition_name)) < len(brokers)
            and self._cluster.leader_of(partition_name) >= 0
        ]
        if not partition_names:
            return False
        partition_name = self._draws.choice(partition_names)
        self._shared.losses_max = min(self._shared.losses_max, 1)
        await self._demand_setting(partition_name, ("replicated", 2))
        await self._cluster.world.sleep(HEARD_S)
        replicas = self._cluster.replicas_of(partition_name)
        leader = brokers[self._cluster.leader_of(partition_name)]
        others = [brokers[each] for each in replicas if each != leader.id]
        spare = self._draws.choice([node.id for node in brokers if node.id not in replicas])
        for node in others:
            self._actions.faults.kill(node.name)
        try:
            await self._leave_two_copies(partition_name, leader, spare, replicas)
        except ClientError:
            return False
        finally:
            for node in (leader, *others):
                self._actions.start(node)
        return True

    async def _leave_two_copies(
        self, partition_name: str, leader: BrokerNode, spare: int, replicas: tuple[int, ...]
    ) -> None:
        alone, two = {leader.id}, {leader.id, spare}
        isr_of = self._cluster.isr_of
        await self._cluster.wait(lambda: {*isr_of(partition_name)} == alone, ANSWER_S)
        # The others are down, so this reassignment does not complete.
        targets = tuple(spare if each == leader.id else each for each in replicas)
        await self._cluster.spawn(self._move(partition_name, targets))
        if not await self._cluster.wait(lambda: {*isr_of(partition_name)} == two, ANSWER_S):
            return
        self._actions.faults.stall_disk(leader.name, STALL_S)
        await self._cluster.wait(
            lambda: self._unsynced(leader, partition_name) >= UNSYNCED, STALL_S / 2
        )
        await self._cluster.spawn(self._move(partition_name, replicas))
        if {*isr_of(partition_name)} <= two and self._actions.may_wound(leader):
            self._actions.faults.power_loss(leader.name)
            await self._shared.rest(self._cluster.pause_s())

    def _is_on(self, partition_name: str, replicas: tuple[int, ...]) -> bool:
        return {*self._cluster.replicas_of(partition_name)} == {*replicas}

    async def _move(self, partition_name: str, targets: tuple[int, ...]) -> None:
        at = TopicPartition.parse(partition_name)
        moved = AlterPartitionReassignmentsRequest.Partition(at.partition, [*targets])
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=2_000,
            topics=[AlterPartitionReassignmentsRequest.Topic(at.topic, [moved])],
        )
        async with self._cluster.operator.cluster() as cluster:
            connection = await cluster.controller_connection()
            await connection.call(request, AlterPartitionReassignmentsResponse)
