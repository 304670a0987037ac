"""Faults of clients and actions of operators during a run: a part of `fault_schedule`.

Clients are killed, frozen, and separated from what they have sent: their bytes arrive long after
they gave up the connection and continued on another one. Operators elect leaders, move replicas,
add brokers, create, change and delete topics, and delete records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from penstock.aio import Admin
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.sim.actors.cast import Actors
from penstock.sim.actors.stage import CLIENT_KEYWORDS, Actor, Stage, parse_place
from penstock.sim.faults.cluster_faults import ClusterFaults
from penstock.sim.faults.topic_changes import Rebirth, draw_change
from penstock.sim.history import INFO, OK, Deleted
from penstock.sim.scenario import Scenario
from penstock.sim.story import Timeline, Told
from penstock.sim.world import World
from penstock.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)

_BROKERS_MAX: Final = 6
_SCRATCH_MAX: Final = 2


class ClientFaults:
    """The part of `FaultSchedule` that concerns clients and operators."""

    def __init__(self, world: World, stage: Stage, timeline: Timeline, actors: Actors) -> None:
        self._world = world
        self._faults: Any = Told(timeline, ClusterFaults(world))
        self._timeline = timeline
        self._stage = stage
        self._actors = actors
        self._scenario: Scenario = stage.scenario
        self._draws = world.draws("mischief")
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self._actions: asyncio.TaskGroup | None = None
        self._scratches = 0
        self._wounded: dict[int, int] = {}
        """By broker: the broker epoch it had when it lost data."""
        node = world.client("operator")
        self._operator = Actor(stage, node.env, "operator", world.draws("operator"))
        self._spawn_there = node.spawn

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._undo.append((self._world.now + seconds, undo))

    def _duration_s(self) -> float:
        return self._draws.choice((0.3, 1.0, 3.0, 8.0, 15.0)) * (0.5 + self._draws.random())

    # Faults of clients

    def _do_kill_client(self) -> None:
        self._kill_one("kill_client", self._actors.mortal)

    def _do_kill_writer(self) -> None:
        """Kills a client, mostly in the middle of a transaction. A new one takes over its
        transactional id."""
        self._kill_one("kill_writer", self._actors.writers)

    def _kill_one(self, fault: str, names: list[str]) -> None:
        if names:
            name = self._draws.choice(names)
            self._timeline.add("", f"{name} is killed, and started again")
            self._stage.count(f"fault_{fault}")
            self._actors.restart(name)

    def _do_freeze_client(self) -> None:
        """Freezes a client. It continues where it was, perhaps after its transaction has ended and
        another client has taken over its transactional id."""
        name = self._draws.choice(self._actors.names)
        self._faults.freeze(name)
        self._later(self._duration_s(), lambda: self._faults.resume(name))

    def _do_stall_client(self) -> None:
        """Delays what a client has sent, until it has given up and sent it again on
        another connection."""
        name = self._draws.choice(self._actors.writers or self._actors.names)
        nodes = self._world.brokers
        if self._draws.random() < 0.6:
            # This one broker may be the coordinator, while everything else goes on.
            nodes = [self._draws.choice(nodes)]
        for node in nodes:
            self._faults.stall_connections(name, node.name, 2 + 12 * self._draws.random())

    # Actions of operators

    def _do_grow(self) -> None:
        """Adds a broker, to which partitions may be moved."""
        if len(self._world.brokers) < _BROKERS_MAX:
            node = self._world.add_broker()
            self._timeline.add("", f"{node.name} is new")
            self._stage.count("fault_grow")
            node.start()

    def _do_prefer(self) -> None:
        place = parse_place(self._draws.choice(self._scenario.places))
        request = ElectLeadersRequest(
            topic_partitions=[ElectLeadersRequest.Topic(place.topic, [place.partition])],
            timeout_ms=2_000,
        )
        self._ask("prefer", request, ElectLeadersResponse)

    def _do_move(self) -> None:
        """Moves a partition to other replicas, as many as before. Sometimes cancels
        the reassignment."""
        place = parse_place(self._draws.choice(self._scenario.places))
        count = self._scenario.topic_of(str(place)).replication_factor
        ids = [node.id for node in self._world.brokers]
        targets = None if self._draws.random() < 0.2 else self._draws.sample(ids, count)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=2_000,
            topics=[
                AlterPartitionReassignmentsRequest.Topic(
                    place.topic,
                    [AlterPartitionReassignmentsRequest.Partition(place.partition, targets)],
                )
            ],
        )
        self._ask("move", request, AlterPartitionReassignmentsResponse)

    def _do_scratch(self) -> None:
        """Creates a topic, and deletes it while transactions are open on it."""
        if len(self._stage.scratch) >= _SCRATCH_MAX:
            return
        self._scratches += 1
        name, replicas = f"scratch{self._scratches}", self._draws.choice((1, 2, 3))
        pause_s = self._duration_s()

        async def make(admin: Admin) -> None:
            self._stage.scratch.append(name)
            try:
                await admin.create_topic(name, 1, replicas)
                await self._stage.rest(pause_s)
            finally:
                self._stage.scratch.remove(name)
            await admin.delete_topic(name)
            self._stage.count("topics_deleted")

        self._by_admin("scratch", make)

    def _do_delete_records(self) -> None:
        places = self._scenario.deletable
        if not places:
            return
        place, share, stage = self._draws.choice(places), self._draws.random(), self._stage

        async def delete(admin: Admin) -> None:
            at, begun_ms = parse_place(place), stage.now_ms()
            found = (await admin.list_offsets({at: "latest"}))[at]
            offset = 0 if found is None else int(found.offset * share)
            entry = Deleted(
                process=self._operator.name,
                status=INFO,
                begun_ms=begun_ms,
                ended_ms=begun_ms,
                place=place,
                offset=offset,
            )
            # Recorded before the deletion: a reader may be the first to see it.
            stage.history.add(entry)
            await admin.delete_records({at: offset})
            stage.history.add(replace(entry, status=OK, ended_ms=stage.now_ms()))
            stage.count("records_deleted", offset)

        self._by_admin("delete records", delete)

    def _do_alter_topic(self) -> None:
        """Changes a topic's durability, min.insync.replicas or cleanup policy."""
        change = draw_change(self._operator, self._draws, len(self._wounded))
        if change is not None:
            self._by_admin("alter a topic", change)

    def _do_recreate_topic(self) -> None:
        self._by_admin("make a topic again", Rebirth(self._operator, self._draws).run)

    def _by_admin(self, what: str, work: Callable[[Admin], Awaitable[None]]) -> None:
        keywords: dict[str, Any] = {**CLIENT_KEYWORDS, "default_api_timeout_ms": 5_000}

        async def ask() -> None:
            with suppress(ClientError):
                async with Admin(
                    self._stage.bootstrap, env=self._operator.env, **keywords
                ) as admin:
                    await work(admin)

        self._run_there(what, ask())

    def _ask(self, name: str, request: Any, response_class: Any) -> None:
        async def ask() -> None:
            env = self._operator.env
            config = self._stage.cluster_config()
            with suppress(ClientError):
                async with Cluster(config, env.network, env.clock, env.random) as cluster:
                    connection = await cluster.controller_connection()
                    await connection.call(request, response_class)
                    self._stage.count(f"asked_{name}")

        self._run_there(name, ask())

    def _run_there(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs the work in the operator's process."""
        self._timeline.add("", f"the operator asks: {what}")
        task = self._spawn_there(work)

        async def wait() -> None:
            await task

        self._act(wait())

    def _act(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._actions is not None
        self._actions.create_task(work)
