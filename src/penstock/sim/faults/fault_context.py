"""What all faults of a run share: the cluster, the random draws, and what must be undone later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.metadata.image import ClusterImage
from penstock.sim.actors.shared_state import SharedState
from penstock.sim.faults.cluster_faults import ClusterFaults
from penstock.sim.node import BrokerNode
from penstock.sim.scenario import Scenario
from penstock.sim.timeline import RecordedCalls, Timeline
from penstock.sim.world import World


class FaultContext:
    def __init__(
        self, world: World, shared: SharedState, timeline: Timeline, image: ClusterImage
    ) -> None:
        self.world = world
        self.shared = shared
        self.timeline = timeline
        self.image = image
        """The metadata exactly as the store has it."""
        self.scenario: Scenario = shared.scenario
        self.faults: Any = RecordedCalls(timeline, ClusterFaults(world))
        self.draws = world.draws("mischief")
        self.actions: asyncio.TaskGroup | None = None
        """While faults are caused: the tasks that take longer than one step."""
        self._undo: list[tuple[float, Callable[[], None]]] = []

    # Time

    def later(self, seconds: float, undo: Callable[[], None]) -> None:
        """Undoes a fault after this time, or when all faults are healed."""
        self._undo.append((self.world.now + seconds, undo))

    def next_undo_s(self, default_s: float) -> float:
        return min([at for at, _ in self._undo], default=default_s)

    def undo_due(self) -> None:
        now = self.world.now
        due = [undo for at, undo in self._undo if at <= now]
        self._undo = [entry for entry in self._undo if entry[0] > now]
        for undo in due:
            undo()

    def undo_all(self) -> None:
        due, self._undo = self._undo, []
        for _, undo in due:
            undo()

    def act(self, work: Coroutine[Any, Any, None]) -> None:
        assert self.actions is not None
        self.actions.create_task(work)

    # Draws

    def duration_s(self) -> float:
        return self.draws.choice((0.3, 1.0, 3.0, 8.0, 15.0)) * (0.5 + self.draws.random())

    def broker(self) -> BrokerNode:
        """Returns a random broker, more often one that leads a partition."""
        brokers = self.world.brokers
        if self.draws.random() < 0.5:
            image = self.image
            leaders = sorted(
                {
                    partition.leader
                    for topic in image.topics.values()
                    for partition in topic.partitions
                    if partition.leader >= 0
                }
            )
            led = [node for node in brokers if node.id in leaders]
            if led:
                return self.draws.choice(led)
        return self.draws.choice(brokers)

    def pair(self) -> tuple[str, str]:
        one, other = self.draws.sample(self.world.brokers, 2)
        return one.name, other.name

    def names(self) -> list[str]:
        return [node.name for node in self.world.brokers]
