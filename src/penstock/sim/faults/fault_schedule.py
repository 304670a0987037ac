"""Decides which faults happen in a run, and when. The seed determines both.

Time is divided into periods. A quarter of them are quiet: everything is healed when they start. In
the others faults arrive at random intervals, and each has its own duration. The number of brokers
that may be missing data that they had written is limited by what the product promises
(`Scenario.losses_max`). A broker that lost power counts as missing data until it is in sync again
in all its partitions, with its current broker epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.sim.actors.client_processes import ClientProcesses
from penstock.sim.actors.shared_state import SharedState
from penstock.sim.checkers.invariants import Invariants
from penstock.sim.faults.broker_faults import BrokerFaults, BrokerRestarts
from penstock.sim.faults.client_faults import ClientFaults
from penstock.sim.faults.cluster_under_test import ClusterUnderTest, FaultActions
from penstock.sim.faults.data_loss import DataLossLimit
from penstock.sim.faults.disk_errors import DiskErrors
from penstock.sim.faults.episodes import Episodes
from penstock.sim.faults.fault_context import FaultContext
from penstock.sim.faults.key_faults import KeyFaults
from penstock.sim.faults.network_faults import NetworkFaults
from penstock.sim.faults.operator_actions import OperatorActions
from penstock.sim.faults.store_faults import StoreFaults
from penstock.sim.scenario import (
    CLIENT_FAULTS,
    EDGE_FAULTS,
    FAULTS,
    KEY_FAULTS,
    WORKER_FAULTS,
)
from penstock.sim.timeline import Timeline
from penstock.sim.world import World

QUIET_SHARE: Final = 0.25


class FaultSchedule:
    """Causes faults during the load, until `shared.over`. Reads the metadata from the invariants,
    which have it exactly as the store has it."""

    def __init__(
        self,
        world: World,
        shared: SharedState,
        invariants: Invariants,
        timeline: Timeline,
        actors: ClientProcesses,
    ) -> None:
        context = FaultContext(world, shared, timeline, invariants.metadata.image)
        losses = DataLossLimit(context)
        operators = OperatorActions(context, losses, lambda: invariants.metadata.image)
        restarts = BrokerRestarts(context)
        brokers = BrokerFaults(context, restarts, losses)
        disks = DiskErrors(context, restarts, losses, invariants.disturbed)
        keys = KeyFaults(context, restarts, disks)
        network = NetworkFaults(context, brokers)
        store = StoreFaults(context)
        clients = ClientFaults(context, actors)
        self._world = world
        self._shared = shared
        self._scenario = shared.scenario
        self._draws = context.draws
        self._context = context
        self._restarts = restarts
        self._disks = disks
        self._keys = keys
        self._network = network
        self._store = store
        self._actions: dict[str, Callable[[], None]] = {
            **brokers.actions(),
            **disks.actions(),
            **keys.actions(),
            **network.actions(),
            **store.actions(),
            **clients.actions(),
            **operators.actions(),
        }
        """By the name of a fault in `scenario`: causes it."""
        actions = FaultActions(
            context.faults,
            self.heal,
            restarts.start,
            losses.allow,
            store.cut_at_commit,
            timeline.add,
        )
        self._episodes = Episodes(
            ClusterUnderTest(world, shared, invariants, operators.operator, actions)
        )
        invariants.on_led_append = network.on_led_append
        world.store.listen(store.on_store)

    async def run(self) -> None:
        """Causes faults until the load is over."""
        if not self._scenario.faults:
            await self._shared.over.wait()
            return
        async with asyncio.TaskGroup() as actions:
            self._context.actions = actions
            while not self._shared.over.is_set():
                end_s = self._world.now + self._scenario.period_s
                episodes = self._scenario.episodes
                if episodes and self._episodes.draws.random() < self._scenario.episode_share:
                    await self._episodes.run(self._episodes.draws.choice(episodes))
                elif self._draws.random() < QUIET_SHARE:
                    self.heal()
                    await self._wait_until(end_s)
                else:
                    await self._period(end_s)
        self._context.actions = None

    async def _period(self, end_s: float) -> None:
        """Causes random faults until the period ends."""
        names = [*self._scenario.faults]
        rates = FAULTS | CLIENT_FAULTS | EDGE_FAULTS | KEY_FAULTS | WORKER_FAULTS
        weights = [rates[name] for name in names]
        while not self._shared.over.is_set():
            next_s = self._world.now + self._draws.expovariate(1 / self._scenario.fault_mean_s)
            await self._wait_until(min(next_s, end_s))
            if next_s >= end_s or self._shared.over.is_set():
                return
            name = self._draws.choices(names, weights)[0]
            self._actions[name]()

    async def _wait_until(self, end_s: float) -> None:
        while self._world.now < end_s and not self._shared.over.is_set():
            due_s = self._context.next_undo_s(end_s)
            # Rest for a minimum time: a difference of times can be too small to advance the clock.
            await self._shared.rest(max(0.001, min(due_s, end_s) - self._world.now))
            self._context.undo_due()

    def heal(self) -> None:
        """Heals all faults, and restarts brokers that are down or have lost logs."""
        self._context.timeline.add("", "all faults are healed")
        self._store.disarm()
        self._network.disarm()
        self._context.undo_all()
        self._context.faults.heal()
        self._disks.on_healed()
        self._keys.on_healed()
        self._restarts.start_all()
