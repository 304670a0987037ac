"""Decides which faults happen in a run, and when. The seed determines both.

Time is divided into periods. A quarter of them are quiet: everything is healed when they start. In
the others faults arrive at random intervals, and each has its own duration. The number of brokers
that may be missing data that they had written is limited by what the product promises
(`Scenario.losses_max`). A broker that lost power counts as missing data until it is in sync again
in all its partitions, with its current broker epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.ports import WatchEvent
from penstock.sim.actors.cast import Actors
from penstock.sim.actors.stage import Stage
from penstock.sim.checkers.invariants import Invariants
from penstock.sim.disk.faults import DiskFaults
from penstock.sim.faults.client_faults import ClientFaults
from penstock.sim.faults.episodes import Episodes
from penstock.sim.faults.scene import Hands, Scene
from penstock.sim.node import BrokerNode
from penstock.sim.scenario import CLIENT_FAULTS, EDGE_FAULTS, FAULTS
from penstock.sim.story import Timeline
from penstock.sim.world import World
from penstock.txns.formats import TOPIC as DECISIONS

QUIET_SHARE: Final = 0.25


class FaultSchedule(ClientFaults):
    """Causes faults during the load, until `stage.over`. It reads the metadata from the invariants,
    which have it exactly as the store has it."""

    def __init__(
        self,
        world: World,
        stage: Stage,
        invariants: Invariants,
        timeline: Timeline,
        actors: Actors,
    ) -> None:
        super().__init__(world, stage, timeline, actors)
        self._image = invariants.metadata.image
        self._disturbed = invariants.disturbed
        self._failing: dict[int, bool] = {}
        """Brokers whose disk calls currently fail, and whether nothing else is wrong with them."""
        self._struck: dict[int, bool] = {}
        """Brokers whose disk calls have failed since everything was last healed."""
        self._cuts_due = False
        self._in_sync: dict[tuple[str, int], int] = {}
        self._trap: str | None = None
        """The prefix of a partition's name. The next append to such a partition cuts off
        its leader."""
        invariants.on_led_append = self._on_led_append
        hands = Hands(
            self._faults,
            self._calm,
            self._start,
            self._may_wound,
            self._do_cut_at_commit,
            timeline.add,
        )
        self._episodes = Episodes(Scene(world, stage, invariants, self._operator, hands))
        world.store.listen(self._on_store)

    async def run(self) -> None:
        """Causes faults until the load is over."""
        if not self._scenario.faults:
            await self._stage.over.wait()
            return
        async with asyncio.TaskGroup() as actions:
            self._actions = actions
            while not self._stage.over.is_set():
                end_s = self._world.now + self._scenario.period_s
                episodes = self._scenario.episodes
                if episodes and self._episodes.draws.random() < self._scenario.episode_share:
                    await self._episodes.run(self._episodes.draws.choice(episodes))
                elif self._draws.random() < QUIET_SHARE:
                    self._calm()
                    await self._wait_until(end_s)
                else:
                    await self._period(end_s)
        self._actions = None

    async def _period(self, end_s: float) -> None:
        """Causes random faults until the period ends."""
        names = [*self._scenario.faults]
        weights = [(FAULTS | CLIENT_FAULTS | EDGE_FAULTS)[name] for name in names]
        while not self._stage.over.is_set():
            next_s = self._world.now + self._draws.expovariate(1 / self._scenario.fault_mean_s)
            await self._wait_until(min(next_s, end_s))
            if next_s >= end_s or self._stage.over.is_set():
                return
            name = self._draws.choices(names, weights)[0]
            getattr(self, f"_do_{name}")()

    async def _wait_until(self, end_s: float) -> None:
        while self._world.now < end_s and not self._stage.over.is_set():
            due_s = min([at for at, _ in self._undo], default=end_s)
            # Rest for a minimum time: a difference of times can be too small to advance the clock.
            await self._stage.rest(max(0.001, min(due_s, end_s) - self._world.now))
            self._undo_due()

    def _undo_due(self) -> None:
        now = self._world.now
        due = [undo for at, undo in self._undo if at <= now]
        self._undo = [entry for entry in self._undo if entry[0] > now]
        for undo in due:
            undo()

    def _calm(self) -> None:
        """Heals all faults, and restarts brokers that are down or have lost logs."""
        self._timeline.add("", "all faults are healed")
        due, self._undo = self._undo, []
        self._cuts_due, self._trap = False, None
        for _, undo in due:
            undo()
        self._faults.heal()
        self._failing.clear()
        for node in self._world.brokers:
            if self._struck.pop(node.id, False) and self._has_lost_logs(node):
                self._faults.kill(node.name)
        self._start_dead()

    def mend(self) -> None:
        """Ends all faults when the load is over."""
        self._calm()

    def _start_dead(self) -> None:
        for node in self._world.brokers:
            self._start(node)

    def _start(self, node: BrokerNode) -> None:
        """Starts a broker, after repairing its disk: on a failing disk it would exit again, as
        it should."""
        if node.state == "down":
            self._repair_disk(node)
            node.start()

    # Drawing

    def _broker(self) -> BrokerNode:
        """Returns a random broker, more often one that leads a partition."""
        brokers = self._world.brokers
        if self._draws.random() < 0.5:
            image = self._image
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
                return self._draws.choice(led)
        return self._draws.choice(brokers)

    def _pair(self) -> tuple[str, str]:
        one, other = self._draws.sample(self._world.brokers, 2)
        return one.name, other.name

    def _names(self) -> list[str]:
        return [node.name for node in self._world.brokers]

    def _start_after(self, node: BrokerNode, seconds: float) -> None:
        self._later(seconds, lambda: self._start(node))

    # Broker failures

    def _do_kill(self) -> None:
        node = self._broker()
        if node.is_up:
            self._faults.kill(node.name)
            self._start_after(node, self._duration_s())

    def _do_bounce(self) -> None:
        """Kills a broker and restarts it before its session expires."""
        node = self._broker()
        if node.is_up:
            self._faults.kill(node.name)
            self._start_after(node, self._draws.random() * 0.3)

    def _do_power_loss(self) -> None:
        self._lose_power(self._duration_s())

    def _do_power_bounce(self) -> None:
        self._lose_power(self._draws.random() * 0.3)

    def _do_power_silence(self) -> None:
        """A broker loses power and registers again at once, but cannot reach the other brokers for
        a while."""
        node = self._broker()
        for other in self._names():
            if other != node.name:
                self._faults.clog(node.name, other, 0.5 + 3 * self._draws.random())
        self._lose_power(self._draws.random() * 0.1, node)

    def _lose_power(self, pause_s: float, node: BrokerNode | None = None) -> None:
        node = node or self._broker()
        if not node.is_up or not self._may_wound(node):
            return
        self._faults.power_loss(node.name)
        self._start_after(node, pause_s)

    def _do_power_cut(self) -> None:
        """All brokers lose power at the same instant, and come back one by one."""
        if len(self._world.brokers) <= self._losses_max():
            self._stage.count("power_cuts_of_all")
            for node in self._world.brokers:
                self._may_wound(node)
                self._faults.power_loss(node.name)
                self._start_after(node, self._draws.choice((0.1, 1.0, 5.0)) * self._draws.random())

    def _may_wound(self, node: BrokerNode) -> bool:
        """Returns whether the broker may lose data that it has written but not synced. If so, the
        broker is counted as if it had."""
        self._heal_wounds()
        if len({*self._wounded, node.id}) > self._losses_max():
            return False
        info = self._image.brokers.get(node.id)
        self._wounded[node.id] = -1 if info is None else info.broker_epoch
        return True

    def _losses_max(self) -> int:
        """Returns how many brokers may lose data at once. The weakest promise of any topic in
        this run decides: an operator may have switched a topic to `replicated`, or to fewer
        in-sync replicas."""
        return min(self._scenario.losses_max, self._stage.losses_max)

    def _heal_wounds(self) -> None:
        image = self._image
        for broker_id in [*self._wounded]:
            info = image.brokers.get(broker_id)
            if info is None or info.broker_epoch == self._wounded[broker_id]:
                continue
            if all(
                broker_id in partition.isr
                and partition.member_epoch(broker_id) == info.broker_epoch
                for topic in image.topics.values()
                for partition in topic.partitions
                if broker_id in partition.replicas
            ):
                del self._wounded[broker_id]

    def _do_freeze(self) -> None:
        node = self._broker()
        if node.is_up and not node.is_frozen:
            self._faults.freeze(node.name)
            self._later(self._duration_s(), lambda: self._faults.resume(node.name))

    def _do_stop(self) -> None:
        """Restarts a broker cleanly, as in a rolling upgrade."""
        node = self._broker()
        if node.state == "ready" and not node.is_frozen:
            self._stage.count("fault_stop")
            self._timeline.add("", f"{node.name} is stopped cleanly")
            self._act(self._stop_and_start(node))

    async def _stop_and_start(self, node: BrokerNode) -> None:
        try:
            await node.stop(timeout_s=20.0)
        except TimeoutError:
            # A broker that is killed, frozen or cut off while it stops never reports that it has
            # stopped. The operator gives up waiting.
            if node.state == "stopping":
                self._faults.kill(node.name)
        await self._stage.rest(self._duration_s() / 3)
        self._start(node)

    # The network

    def _do_partition(self) -> None:
        names = self._names()
        self._draws.shuffle(names)
        cut = self._draws.randint(1, len(names) - 1)
        self._part(names[:cut], names[cut:], one_way=False)

    def _do_one_way(self) -> None:
        one, other = self._pair()
        self._part([one], [other], one_way=True)

    def _do_isolate(self) -> None:
        node = self._broker()
        also_store = self._draws.random() < 0.5
        self._faults.isolate(node.name, also_store=also_store)
        self._later(self._duration_s(), self._heal_network)

    def _do_part_client(self) -> None:
        client = self._draws.choice(sorted(self._world.clients))
        node = self._broker()
        self._part([client], [node.name], one_way=self._draws.random() < 0.5)

    def _part(self, one: list[str], other: list[str], *, one_way: bool) -> None:
        self._faults.partition(one, other, one_way=one_way)
        self._later(self._duration_s(), self._heal_network)

    def _heal_network(self) -> None:
        self._faults.heal(network=True, store=True, nodes=False)

    def _do_clog(self) -> None:
        one, other = self._pair()
        self._faults.clog(one, other, self._duration_s())

    def _do_reset(self) -> None:
        one, other = self._pair()
        if self._draws.random() < 0.5:
            other = self._draws.choice(sorted(self._world.clients))
        self._faults.reset_connections(one, other, chance=self._draws.choice((0.3, 1.0)))

    def _do_slow_link(self) -> None:
        one, other = self._pair()
        bandwidth = self._draws.choice((None, 2_000, 50_000))
        self._faults.slow_link(
            one, other, self._draws.choice((0.1, 0.5, 2.0)), bandwidth_bytes_per_s=bandwidth
        )
        self._later(self._duration_s(), self._heal_network)

    def _do_slow_reader(self) -> None:
        node = self._broker()
        self._faults.slow_reader(node.name, self._draws.choice((500, 5_000)))
        self._later(self._duration_s(), lambda: self._faults.slow_reader(node.name, None))

    def _do_refuse(self) -> None:
        one, other = self._pair()
        self._faults.refuse(one, other)
        self._later(self._duration_s(), lambda: self._faults.refuse(one, other, on=False))

    # The store

    def _do_cut_store(self) -> None:
        node = self._broker()
        self._faults.cut_store(node.name)
        self._later(self._duration_s(), lambda: self._faults.cut_store(node.name, on=False))

    def _do_cut_at_commit(self) -> None:
        """The next time a replica joins an ISR, the leader is cut off from the store and does not
        learn of it."""
        self._cuts_due = True
        self._leaders_of_grown()

    def _on_store(self, events: Sequence[WatchEvent]) -> None:
        if not self._cuts_due:
            return
        leaders = self._leaders_of_grown()
        if leaders:
            self._cuts_due = False
            node = self._world.brokers[self._draws.choice(leaders)]
            self._faults.cut_store(node.name)
            self._later(
                4 + 8 * self._draws.random(),
                lambda: self._faults.cut_store(node.name, on=False),
            )

    def _leaders_of_grown(self) -> list[int]:
        """Returns the leaders of partitions that have gained in-sync replicas since the
        last call."""
        leaders = []
        for topic in self._image.topics.values():
            for index, partition in enumerate(topic.partitions):
                before = self._in_sync.get((topic.name, index), len(partition.isr))
                self._in_sync[topic.name, index] = len(partition.isr)
                if len(partition.isr) > before and partition.leader >= 0:
                    leaders.append(partition.leader)
        return leaders

    def _do_cut_at_append(self) -> None:
        """Cuts a leader off from the other brokers right after an append. Clients may still reach
        it. Soon it is killed, or loses power, or stays isolated for a while."""
        self._trap = self._draws.choice(("", DECISIONS, DECISIONS))

    def _on_led_append(self, broker_id: int, place: str) -> None:
        if self._trap is None or not place.startswith(self._trap):
            return
        self._trap = None
        node = self._world.brokers[broker_id]
        self._stage.count("cut_off_at_append")
        self._part(
            [node.name], [name for name in self._names() if name != node.name], one_way=False
        )
        end = self._draws.choice((self._kill_cut_off, self._lose_cut_off, None))
        if end is not None:
            self._later(self._draws.choice((0.02, 0.1, 0.5)), lambda: end(node))

    def _kill_cut_off(self, node: BrokerNode) -> None:
        if node.is_up:
            self._faults.kill(node.name)
            self._start_after(node, self._duration_s())

    def _lose_cut_off(self, node: BrokerNode) -> None:
        self._lose_power(self._duration_s(), node)

    def _do_store_outage(self) -> None:
        self._faults.store_outage()
        self._later(self._duration_s() / 2, lambda: self._faults.store_outage(on=False))

    def _do_store_replies(self) -> None:
        self._faults.lose_store_replies(self._draws.choice((0.1, 0.4)))
        self._later(self._duration_s(), lambda: self._faults.lose_store_replies(0.0))

    def _do_slow_store(self) -> None:
        """Slows down every access to the store's disk."""
        self._faults.slow_store(self._draws.choice((0.1, 0.4, 1.0)))
        self._later(self._duration_s(), lambda: self._faults.slow_store(0.0))

    def _do_store_compact(self) -> None:
        self._faults.store_compact()

    def _do_watch_lag(self) -> None:
        self._faults.lag_watches(self._draws.choice((0.5, 2.0)))
        self._later(self._duration_s(), lambda: self._faults.lag_watches(0.0))

    # Disks and clocks

    def _do_stall_disk(self) -> None:
        self._faults.stall_disk(self._broker().name, self._duration_s() / 2)

    def _do_disk_errors(self) -> None:
        """Makes some disk calls fail, and with them the logs that they were for."""
        node = self._broker()
        self._heal_wounds()
        was_whole = node.id not in self._wounded
        if node.state != "ready" or not self._may_wound(node):
            return
        self._failing[node.id] = was_whole
        self._struck[node.id] = self._disturbed[node.id] = True
        kinds = (
            DiskFaults(fsync_eio=0.2),
            DiskFaults(write_eio=0.1, short_write=0.2),
            DiskFaults(read_eio=0.1),
            DiskFaults(sync_directory_eio=0.2),
        )
        self._faults.disk_faults(node.name, self._draws.choice(kinds))
        self._later(self._duration_s() / 3, lambda: self._repair(node))

    def _repair(self, node: BrokerNode) -> None:
        """Repairs the disk. Then the broker is restarted, or left to reopen its logs by itself:
        it does so for partitions that another broker leads meanwhile, and needs a restart for
        the others."""
        if node.id not in self._failing:
            return
        was_whole = self._failing[node.id]
        self._repair_disk(node)
        if self._has_lost_logs(node):
            if self._draws.random() < 0.5:
                self._stage.count("left_with_lost_logs")
                return
            self._faults.kill(node.name)
            self._start_after(node, 0.5)
        elif was_whole and self._is_in_the_life_of_its_wound(node):
            del self._wounded[node.id]

    def _is_in_the_life_of_its_wound(self, node: BrokerNode) -> bool:
        info = self._image.brokers.get(node.id)
        return info is not None and self._wounded.get(node.id) == info.broker_epoch

    def _repair_disk(self, node: BrokerNode) -> None:
        if node.id in self._failing:
            del self._failing[node.id]
            self._faults.disk_faults(node.name, None)

    def _has_lost_logs(self, node: BrokerNode) -> bool:
        """Returns whether some of its logs are offline, or could not be opened when it started."""
        broker = node.broker
        if broker is None or node.state != "ready":
            return False
        held = [
            broker.replicas.get(topic.name, index)
            for topic in self._image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if node.id in partition.replicas
        ]
        return any(each is None or each.log.failure is not None for each in held)

    def _do_skew(self) -> None:
        node = self._broker()
        self._faults.skew(node.name, self._draws.choice((-60_000, -500, 500, 60_000)))
