"""Actions of operators: they elect leaders, move replicas, add brokers, create, change and delete
topics, and delete records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from penstock.aio import Admin
from penstock.client.errors import ClientError
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from penstock.sim.access_plan import ADMIN
from penstock.sim.actors.shared_state import Actor
from penstock.sim.faults.data_loss import DataLossLimit
from penstock.sim.faults.fault_context import FaultContext
from penstock.sim.faults.topic_changes import ALTER, TopicRecreation, delete_records, draw_change
from penstock.sim.scenario import consumer_group_name
from penstock.spark.deployments.topics import WORKERS_GROUP
from penstock.topic_partition import TopicPartition
from penstock.wire.java import partition_of
from penstock.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)

_BROKERS_MAX: Final = 6
_SCRATCH_MAX: Final = 2


class OperatorActions:
    def __init__(
        self, context: FaultContext, losses: DataLossLimit, image: Callable[[], ClusterImage]
    ) -> None:
        self._image = image
        self._context = context
        self._world = context.world
        self._shared = context.shared
        self._draws = context.draws
        self._losses = losses
        self._scratches = 0
        node = context.world.client("operator")
        self.operator = Actor(
            context.shared, node.env, "operator", context.world.draws("operator"), user=ADMIN
        )
        self._spawn_there = node.spawn

    def actions(self) -> dict[str, Callable[[], None]]:
        return {
            "grow": self.grow,
            "prefer": self.prefer,
            "move": self.move,
            "move_coordinator": self.move_coordinator,
            "scratch": self.scratch,
            "delete_records": self.delete_records,
            "alter_topic": self.alter_topic,
            "recreate_topic": self.recreate_topic,
        }

    def grow(self) -> None:
        """Adds a broker, to which partitions may be moved."""
        if len(self._world.brokers) < _BROKERS_MAX:
            node = self._world.add_broker()
            self._context.timeline.add("", f"{node.name} is new")
            self._shared.count("fault_grow")
            node.start()

    def prefer(self) -> None:
        self._prefer(
            TopicPartition.parse(self._draws.choice(self._context.scenario.partition_names))
        )

    def _prefer(self, topic_partition: TopicPartition) -> None:
        request = ElectLeadersRequest(
            topic_partitions=[
                ElectLeadersRequest.Topic(topic_partition.topic, [topic_partition.partition])
            ],
            timeout_ms=2_000,
        )
        self._ask("prefer", request, ElectLeadersResponse)

    def move(self) -> None:
        """Moves a partition to other replicas, as many as before. Sometimes cancels
        the reassignment."""
        topic_partition = TopicPartition.parse(
            self._draws.choice(self._context.scenario.partition_names)
        )
        count = self._context.scenario.topic_of(str(topic_partition)).replication_factor
        ids = [node.id for node in self._world.brokers]
        targets = None if self._draws.random() < 0.2 else self._draws.sample(ids, count)
        self._move(topic_partition, targets)

    def move_coordinator(self) -> None:
        """Lets another broker lead the group of the workers, a consumer group or a share group, or
        the states of share groups and delay topics. A broker that learns of it late still answers
        for them."""
        coordinators = self._coordinators()
        topic_partition = (
            self._draws.choice(coordinators) if len(coordinators) > 1 else coordinators[0]
        )
        partition = self._image().partition(*topic_partition)
        if partition is None:
            return
        others = [each for each in partition.replicas if each != partition.leader]
        self._draws.shuffle(others)
        self._move(topic_partition, [*others, partition.leader])
        self._prefer(topic_partition)

    def _coordinators(self) -> list[TopicPartition]:
        """Returns the partitions whose leaders coordinate something in this run."""
        scenario = self._context.scenario
        groups = [WORKERS_GROUP] if scenario.workers else []
        groups += map(consumer_group_name, range(len(scenario.consumer_groups)))
        shares, delays = scenario.shares, scenario.delays
        groups += () if shares is None else shares.names
        plan = shares or delays
        states = 0 if plan is None else plan.state_partitions
        return [
            *(
                TopicPartition(OFFSETS_TOPIC, partition_of(group, scenario.offsets_partitions))
                for group in groups
            ),
            *(TopicPartition(SHARE_STATE_TOPIC, index) for index in range(states)),
        ]

    def _move(self, topic_partition: TopicPartition, targets: list[int] | None) -> None:
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=2_000,
            topics=[
                AlterPartitionReassignmentsRequest.Topic(
                    topic_partition.topic,
                    [
                        AlterPartitionReassignmentsRequest.Partition(
                            topic_partition.partition, targets
                        )
                    ],
                )
            ],
        )
        self._ask("move", request, AlterPartitionReassignmentsResponse)

    def scratch(self) -> None:
        """Creates a topic, and deletes it while transactions are open on it."""
        if len(self._shared.scratch) >= _SCRATCH_MAX:
            return
        self._scratches += 1
        name, replicas = f"scratch{self._scratches}", self._draws.choice((1, 2, 3))
        pause_s = self._context.duration_s()

        async def make(admin: Admin) -> None:
            self._shared.scratch.append(name)
            try:
                await admin.create_topic(name, 1, replicas)
                await self._shared.rest(pause_s)
            finally:
                self._shared.scratch.remove(name)
            await admin.delete_topic(name)
            self._shared.count("topics_deleted")

        self._by_admin("scratch", make)

    def delete_records(self) -> None:
        partition_names = self._context.scenario.deletable
        if not partition_names:
            return
        partition_name, share, shared = (
            self._draws.choice(partition_names),
            self._draws.random(),
            self._shared,
        )

        async def delete(admin: Admin) -> None:
            at = TopicPartition.parse(partition_name)
            begun_ms, found = shared.now_ms(), (await admin.list_offsets({at: "latest"}))[at]
            offset = 0 if found is None else int(found.offset * share)
            await delete_records(self.operator, admin, partition_name, offset, begun_ms)

        self._by_admin("delete records", delete)

    def alter_topic(self) -> None:
        """Changes a topic's durability, min.insync.replicas or cleanup policy."""
        change = draw_change(self.operator, self._draws, len(self._losses))
        if change is not None:
            self._by_admin(ALTER, change)

    def recreate_topic(self) -> None:
        self._by_admin("make a topic again", TopicRecreation(self.operator, self._draws).run)

    def _by_admin(self, what: str, work: Callable[[Admin], Awaitable[None]]) -> None:
        keywords: dict[str, Any] = {**self.operator.keywords, "default_api_timeout_ms": 5_000}

        async def ask() -> None:
            try:
                async with Admin(
                    self._shared.bootstrap, env=self.operator.env, **keywords
                ) as admin:
                    await work(admin)
            except ClientError:
                pass
            finally:
                self._shared.requests.remove(what)

        self._shared.requests.append(what)
        self._run_there(what, ask())

    def _ask(self, name: str, request: Any, response_class: Any) -> None:
        async def ask() -> None:
            with suppress(ClientError):
                async with self.operator.cluster() as cluster:
                    connection = await cluster.controller_connection()
                    await connection.call(request, response_class)
                    self._shared.count(f"asked_{name}")

        self._run_there(name, ask())

    def _run_there(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs the work in the operator's process."""
        self._context.timeline.add("", f"the operator asks: {what}")
        task = self._spawn_there(work)

        async def wait() -> None:
            await task

        self._context.act(wait())
