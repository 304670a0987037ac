"""What episodes use: the state of the cluster, its faults, and demands that must be met.

An episode causes faults through the `FaultActions` of `fault_schedule`, so that both know which
brokers may be missing data. The result of a demand goes into the history as a `Probe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.aio import Admin, Consumer, Producer
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.replication.follower_shell import is_damaged
from penstock.client.errors import ClientError
from penstock.metadata.model import Partition
from penstock.sim.actors.readers import BytesConsumer
from penstock.sim.actors.shared_state import Actor, SharedState
from penstock.sim.checkers.final_checks import send_one
from penstock.sim.checkers.invariants import Invariants
from penstock.sim.crash.bit_rot import rot_above_recovery_point
from penstock.sim.history import INFO, OK, TABLE, Probe
from penstock.sim.node import BrokerNode
from penstock.sim.store import Expiry
from penstock.sim.world import World
from penstock.topic_partition import TopicPartition

SETTLE_S: Final = 25.0
ANSWER_S: Final = 30.0
"""What must work during an episode works within this time plus two session timeouts."""


@dataclass(frozen=True, slots=True)
class FaultActions:
    """The actions of `fault_schedule` that episodes use."""

    faults: Any
    calm: Callable[[], None]
    start: Callable[[BrokerNode], None]
    may_wound: Callable[[BrokerNode], bool]
    cut_at_join: Callable[[], None]
    """Cuts off the leader of the next partition that a replica joins from the store."""
    tell: Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Lives:
    """The registrations of all brokers when an episode began."""

    epochs: Mapping[int, int]
    """By broker: its broker epoch."""
    late: frozenset[int]
    """Leases that an earlier fault may still cost (`StoreModel.late_leases`)."""
    at: float
    """The time of the loop."""
    at_ms: float
    """The time of the history."""


class ClusterUnderTest:
    def __init__(
        self,
        world: World,
        shared: SharedState,
        invariants: Invariants,
        operator: Actor,
        actions: FaultActions,
    ) -> None:
        self.draws = world.draws("episodes")
        self.world = world
        self.shared = shared
        self.invariants = invariants
        self.image = invariants.metadata.image
        self.operator = operator
        self.actions = actions
        self.spawn = world.client("operator").spawn

    # The state of the cluster

    async def settles(self) -> bool:
        end_s = self.world.now + SETTLE_S
        while not self.is_settled():
            if self.world.now >= end_s or self.shared.over.is_set():
                return False
            await self.shared.rest(0.5)
        return not self.shared.over.is_set()

    def is_settled(self) -> bool:
        """Returns whether all brokers are up, all replicas in sync, and no log is damaged
        or offline."""
        if any(node.state != "ready" for node in self.world.brokers):
            return False
        partitions = [
            partition for topic in self.image.topics.values() for partition in topic.partitions
        ]
        if any({*each.isr} != {*each.replicas} or each.is_moving for each in partitions):
            return False
        lives = self.lives()
        if any(
            each.member_epoch(member) != lives.get(member)
            for each in partitions
            for member in each.isr
        ):
            # It is in the ISR with the broker epoch of an earlier run.
            return False
        return not any(
            hosted.log.failure is not None or is_damaged(hosted.log)
            for node in self.world.brokers
            if node.broker is not None
            for hosted in node.broker.replicas
        )

    def committed(self) -> dict[str, int]:
        truths = self.invariants.truths
        return {
            partition_name: truths[partition_name].end_offset
            for partition_name in self.shared.scenario.partition_names
            if partition_name in truths
        }

    def lives(self) -> dict[int, int]:
        return {each.broker_id: each.broker_epoch for each in self.image.brokers.values()}

    def note_lives(self) -> Lives:
        late = self.world.store.late_leases()
        return Lives(self.lives(), late, self.world.loop.now, self.shared.now_ms())

    def partition(self, partition_name: str) -> Partition | None:
        at = TopicPartition.parse(partition_name)
        return self.image.partition(at.topic, at.partition)

    def replicas_of(self, partition_name: str) -> tuple[int, ...]:
        partition = self.partition(partition_name)
        return () if partition is None else partition.replicas

    def isr_of(self, partition_name: str) -> tuple[int, ...]:
        partition = self.partition(partition_name)
        return () if partition is None else partition.isr

    def leader_of(self, partition_name: str) -> int:
        partition = self.partition(partition_name)
        return -1 if partition is None else partition.leader

    def hosted(self, node: BrokerNode, partition_name: str) -> HostedPartition | None:
        at = TopicPartition.parse(partition_name)
        return None if node.broker is None else node.broker.replicas.get(at.topic, at.partition)

    def end(self, node: BrokerNode, partition_name: str) -> int:
        hosted = self.hosted(node, partition_name)
        return -1 if hosted is None else hosted.log.end_offset

    def setting(self, partition_name: str) -> tuple[str, int]:
        """Returns the durability and min.insync.replicas of its topic that were requested last."""
        topic = self.shared.scenario.topic_of(partition_name)
        return self.shared.settings.get(topic.name, (topic.durability, topic.min_insync))

    def min_insync(self, partition_name: str) -> int:
        """Returns min.insync.replicas of its topic. If the store has another value than was
        requested last, because the request failed or is still under way, returns the larger one."""
        topic = self.image.topics.get(self.shared.scenario.topic_of(partition_name).name)
        applied = 0 if topic is None else int(topic.configs.get("min.insync.replicas", 0))
        return max(applied, self.setting(partition_name)[1])

    def copied(self, node: BrokerNode) -> list[str]:
        """Returns the topic partitions that the broker and at least one other have."""
        return [
            f"{topic.name}-{index}"
            for topic in self.image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if node.id in partition.replicas and len(partition.replicas) > 1
        ]

    def pause_s(self) -> float:
        return self.draws.choice((0.1, 2.0, 2 * self.shared.scenario.session_timeout_s))

    async def wait(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Waits until the condition holds, and returns whether it did in time. Checks often enough
        to react before the network does."""
        end_s = self.world.now + limit_s
        while not holds():
            if self.world.now >= end_s or self.shared.over.is_set():
                return False
            await self.world.sleep(0.005)
        return True

    # Disks that lose synced data

    def spoilable(self) -> BrokerNode | None:
        """Returns a broker that may lose everything: each of its partitions has another replica."""
        partitions = [
            partition for topic in self.image.topics.values() for partition in topic.partitions
        ]
        nodes = [
            node
            for node in self.world.brokers
            if all(len(each.replicas) > 1 for each in partitions if node.id in each.replicas)
        ]
        self.draws.shuffle(nodes)
        return next((node for node in nodes if self.actions.may_wound(node)), None)

    def rot(self, node: BrokerNode, partition_names: list[str]) -> bool:
        """Flips a bit of a synced batch of a broker that is down. Returns False if there is none
        above a stored recovery point."""
        logs, keys = f"{node.config.data_dir}/logs", self.world.keys
        data_key = None if keys is None else keys.data_key
        rotted = rot_above_recovery_point(node.disk, logs, partition_names, self.draws, data_key)
        if rotted is not None:
            self.actions.tell("", f"FAULT rot of {rotted} on {node.name}")
        return rotted is not None

    # Expectations

    def expect_lives(self, what: str, before: Lives) -> None:
        """Requires that no broker has registered again, and that no lease has expired. Leases that
        an earlier fault has cost are not counted."""
        after = self.lives()
        lost = {each for each, epoch in before.epochs.items() if after.get(each) != epoch}
        lost -= self.lost_to_earlier_faults(before)
        lost |= self._holders(lambda each: each.renewed_at > before.at)
        error = f"brokers {sorted(lost)} lost their lease" if lost else ""
        self.probe(what, before.at_ms, error)

    def lost_to_earlier_faults(self, before: Lives) -> set[int]:
        """Returns the brokers whose lease was late when the episode began, and has expired before
        another renewal arrived.

        An earlier fault may have lost a renewal or its answer. The broker waits for the answer
        before it sends another renewal. If its session is short, the lease expires meanwhile, after
        the fault was healed (seed 356).
        """
        return self._holders(
            lambda each: each.lease in before.late and each.renewed_at <= before.at
        )

    def _holders(self, counts: Callable[[Expiry], bool]) -> set[int]:
        """Returns the brokers that held the expired leases that count."""
        names = {each.holder for each in self.world.store.expiries if counts(each)}
        return {node.id for node in self.world.brokers if node.name in names}

    async def demand(
        self,
        what: str,
        work: Callable[[], Awaitable[None]],
        is_excused: Callable[[], object] = lambda: False,
    ) -> None:
        """Requires that the work succeeds in time, in the operator's process, unless the failure is
        excused. The load may end meanwhile."""
        begun_ms, error = self.shared.now_ms(), ""
        limit_s = ANSWER_S + 2 * self.shared.scenario.session_timeout_s

        async def attempt() -> None:
            async with asyncio.timeout(limit_s):
                while True:
                    try:
                        return await work()
                    except ClientError as failed:
                        nonlocal error
                        error = str(failed)
                        await asyncio.sleep(0.5)

        try:
            await self.spawn(attempt())
        except TimeoutError:
            error = f"it took too long; {error or 'there was no error'}"
        else:
            error = ""
        if not error or not is_excused():
            self.probe(what, begun_ms, error)

    async def demand_policy(self, policy: str) -> None:
        """Sets the cleanup policy of the compacted topic."""

        async def alter(admin: Admin) -> None:
            await admin.alter_configs(topic=TABLE, set_values={"cleanup.policy": policy})

        await self.demand(f"setting {TABLE} to {policy}", lambda: self.by_admin(alter))

    def probe(self, what: str, begun_ms: float, error: str) -> None:
        self.shared.history.add(
            Probe(
                process=self.operator.name,
                status=INFO if error else OK,
                begun_ms=begun_ms,
                ended_ms=self.shared.now_ms(),
                error=error,
                what=what,
            )
        )

    # Client actions

    async def read(self, ends: Mapping[str, int]) -> None:
        """Reads every topic partition from its start to the given offset."""
        wanted = {TopicPartition.parse(partition_name): end for partition_name, end in ends.items()}
        consumer: BytesConsumer = Consumer(
            self.shared.bootstrap,
            env=self.operator.env,
            auto_offset_reset="earliest",
            **{**self.operator.keywords, "default_api_timeout_ms": 10_000},
        )
        topic_partitions: list[TopicPartition] = [*wanted]
        if not topic_partitions:
            return
        async with consumer:
            consumer.assign(topic_partitions)
            consumer.seek_to_beginning(*topic_partitions)
            while any((consumer.known_position(at) or 0) < wanted[at] for at in topic_partitions):
                await consumer.poll(timeout_ms=500)

    async def write(self, partition_name: str) -> None:
        """Writes one record with acks=all."""
        keywords: dict[str, Any] = {
            **self.operator.keywords,
            "delivery_timeout_ms": 5_000,
            "max_block_ms": 5_000,
        }
        operator = self.operator
        async with Producer(self.shared.bootstrap, env=operator.env, **keywords) as producer:
            await send_one(operator, producer, partition_name)

    async def by_admin(
        self, work: Callable[[Admin], Coroutine[Any, Any, None]], timeout_ms: int = 10_000
    ) -> None:
        """Runs the work with an admin client. The caller must be in the operator's process.
        Raises `ClientError`."""
        keywords: dict[str, Any] = {**self.operator.keywords, "default_api_timeout_ms": timeout_ms}
        async with Admin(self.shared.bootstrap, env=self.operator.env, **keywords) as admin:
            await work(admin)
