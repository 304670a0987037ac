"""Episodes: sequences of faults that need the cluster to themselves, each with its own check.

Ordinary faults overlap, so little can be required while they last. An episode first heals
everything and waits until every replica is in sync. No other fault begins before it ends. So it can
remove what must not be removed twice (all data of one broker), and it can require an answer while
the fault lasts:

bit_rot        one bit of a synced batch flips, above the stored recovery point of a killed broker
empty_disk     a killed broker comes back with a new disk
lone_survivor  all brokers but one are down, and that one restarts: committed records are readable
double_failover
               the leader dies while one follower is behind; that one leads, appends and dies too
unheard_join   a replica joins the ISR, and its leader cannot learn whether it did
slow_leases    the store is slow, but fast enough for leases: no broker loses its own
full_store     the store accepts no writes, and sometimes all disks are full as well: brokers stay
               up, and committed records are readable
rebuilt_table  a compacted topic's policy is changed to `delete`, then a replica is rebuilt
full_disk      the disk of a leader is full: other brokers take over, and writes continue

Episodes about topics that change are in `topic_episodes`, and those about keys in `key_episodes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from penstock.aio import Admin
from penstock.sim.faults.cluster_under_test import ANSWER_S, ClusterUnderTest
from penstock.sim.faults.key_episodes import KeyEpisodes
from penstock.sim.faults.topic_episodes import TopicEpisodes
from penstock.sim.history import READERS, TABLE
from penstock.sim.node import BrokerNode

NOTED_S: Final = 6.0
"""Without faults, the high watermark is on every replica's disk this long after a commit."""
OFFSETS: Final = "__consumer_offsets"
UNHEARD_S: Final = 9.0
"""A leader stops asking the store for the outcome of a commit before this time."""
ROOMS: Final = (0, 5_000, 1 << 20)
"""Bytes that are left on a full disk: less than brokers reserve."""
EXCHANGE_S_MAX: Final = 1.0
"""The time of a request to a slow store and its reply: less than one attempt may take."""

_ARRIVAL_S: Final = 0.5
"""What a broker sent before it was killed has arrived after this time."""


class Episodes:
    def __init__(self, cluster: ClusterUnderTest) -> None:
        self.draws = cluster.draws
        self._cluster = cluster
        self._world = cluster.world
        self._shared = cluster.shared
        self._image = cluster.image
        self._actions = cluster.actions
        self._play: Mapping[str, Callable[[], Awaitable[bool]]] = {
            "bit_rot": self._bit_rot,
            "empty_disk": self._empty_disk,
            "lone_survivor": self._lone_survivor,
            "double_failover": self._double_failover,
            "unheard_join": self._unheard_join,
            "slow_leases": self._slow_leases,
            "full_store": self._full_store,
            "full_disk": self._full_disk,
            "rebuilt_table": self._rebuilt_table,
            **TopicEpisodes(cluster).episodes,
            **KeyEpisodes(cluster).episodes,
        }

    async def run(self, name: str) -> None:
        """Runs one episode. Skips it if the cluster does not settle in time, or does not
        allow it."""
        self._actions.tell("", f"episode {name}: all faults are healed first")
        self._actions.calm()
        if await self._cluster.settles() and await self._play[name]():
            self._shared.count(f"episode_{name}")
        else:
            self._shared.count("episodes_skipped")

    # Disks that lose synced data

    async def _bit_rot(self) -> bool:
        node = self._cluster.spoilable()
        if node is None:
            return False
        self._actions.faults.kill(node.name)
        has_rotted = self._cluster.rot(node, self._cluster.copied(node))
        await self._shared.rest(self._cluster.pause_s())
        self._actions.start(node)
        return has_rotted

    async def _empty_disk(self) -> bool:
        node = self._cluster.spoilable()
        if node is None:
            return False
        return await self._lose_disk(node)

    async def _lose_disk(self, node: BrokerNode) -> bool:
        """Restarts the broker with an empty disk. Returns False if it had to keep its disk.

        It keeps its disk if it is the last in-sync replica of a partition: that disk may not be
        lost. This is decided only after the broker was killed and what it had sent has arrived, for
        it may have removed the other replicas from the ISR at the last moment (seed 218). It also
        keeps its disk if an earlier fault, a clean stop, has started it again (seed 225).
        """
        self._actions.faults.kill(node.name)
        await self._shared.rest(max(_ARRIVAL_S, self._cluster.pause_s()))
        may_lose = node.process is None and all(
            any(each != node.id for each in (*partition.isr, *partition.eligible_leaders))
            for topic in self._image.topics.values()
            for partition in topic.partitions
            if node.id in partition.replicas
        )
        if may_lose:
            self._actions.tell("", f"FAULT {node.name} gets an empty disk")
            node.disk.wipe()
            self._cluster.invariants.on_wiped(node.id)
        self._actions.start(node)
        return may_lose

    async def _rebuilt_table(self) -> bool:
        """Records that compaction has removed stay missing, whatever the policy is later."""
        partition_name = f"{TABLE}-0"
        node = self._cluster.spoilable() if self._shared.scenario.tables else None
        if node is None or node.id not in self._cluster.replicas_of(partition_name):
            return False
        await self._cluster.demand_policy("delete")
        if not await self._lose_disk(node):
            await self._cluster.demand_policy("compact")
            return False
        limit_s = ANSWER_S + 2 * self._shared.scenario.session_timeout_s
        lives = self._cluster.lives()

        def is_rebuilt() -> bool:
            partition = self._cluster.partition(partition_name)
            epoch = self._cluster.lives().get(node.id)
            return (
                partition is not None
                and epoch is not None
                and epoch != lives.get(node.id)
                and node.id in partition.isr
                and partition.member_epoch(node.id) == epoch
            )

        # If it is not rebuilt, the policy stays, and the cluster does not recover in the end.
        if await self._cluster.wait(is_rebuilt, limit_s):
            await self._cluster.demand_policy("compact")
        return True

    # One broker left

    async def _lone_survivor(self) -> bool:
        committed = self._cluster.committed()
        await self._shared.rest(NOTED_S)
        if self._shared.over.is_set():
            return False
        survivor = self.draws.choice(self._world.brokers)
        others = [node for node in self._world.brokers if node is not survivor]
        # A replica may have left the ISR since the cluster settled. Then it need not lead.
        in_sync = {
            partition_name
            for partition_name in (*committed, f"{OFFSETS}-0")
            if survivor.id in self._cluster.isr_of(partition_name)
        }
        for node in others:
            self._actions.faults.kill(node.name)
        await self._shared.rest(self._cluster.pause_s())
        self._actions.faults.kill(survivor.name)
        await self._shared.rest(self.draws.random())
        self._actions.start(survivor)
        held = {
            partition_name: end
            for partition_name, end in committed.items()
            if partition_name in in_sync and end
        }
        what = f"reading what was committed from {survivor.name}, the only broker that is up"
        await self._cluster.demand(what, lambda: self._cluster.read(held))
        if self._shared.scenario.members and f"{OFFSETS}-0" in in_sync:
            what = f"loading a coordinator on {survivor.name}, the only broker that is up"
            await self._cluster.demand(what, self._ask_group)
        for node in others:
            self._actions.start(node)
        return True

    # Two leaders in a row

    async def _double_failover(self) -> bool:
        """The last of three leaders has records of the first that the second never had, and
        no records of the second. A follower must not truncate to where its leader's epoch
        ends (KIP-279)."""
        partition_names = [
            partition_name
            for partition_name in self._shared.scenario.partition_names
            if len(replicas := self._cluster.replicas_of(partition_name)) == 3
            and self._cluster.leader_of(partition_name) in replicas
        ]
        if not partition_names:
            return False
        partition_name = self.draws.choice(partition_names)
        first = self._world.brokers[self._cluster.leader_of(partition_name)]
        second, third = (
            self._world.brokers[each]
            for each in self._cluster.replicas_of(partition_name)
            if each != first.id
        )
        faults, limit_s = self._actions.faults, 2 * self._shared.scenario.session_timeout_s + 5
        faults.clog(first.name, second.name, limit_s)
        await self._cluster.wait(
            lambda: (
                self._cluster.end(third, partition_name) > self._cluster.end(second, partition_name)
            ),
            3.0,
        )
        faults.kill(first.name)
        faults.partition([second.name], [third.name])
        if await self._cluster.wait(lambda: self._has_appended(second, partition_name), limit_s):
            faults.kill(second.name)
            await self._cluster.wait(
                lambda: self._cluster.leader_of(partition_name) == third.id, limit_s
            )
        faults.heal(store=False, nodes=False)
        for node in (first, second):
            self._actions.start(node)
        return True

    async def _unheard_join(self) -> bool:
        """The leader must count the replica as in sync until it knows the outcome. Its session
        lasts longer than that."""
        partition_names = [
            partition_name
            for partition_name in self._shared.scenario.partition_names
            if len(self._cluster.replicas_of(partition_name)) > 1
            and self._cluster.leader_of(partition_name) >= 0
        ]
        if not partition_names or self._shared.scenario.session_timeout_s < UNHEARD_S:
            return False
        partition_name = self.draws.choice(partition_names)
        leader = self._cluster.leader_of(partition_name)
        others = [each for each in self._cluster.replicas_of(partition_name) if each != leader]
        follower = self._world.brokers[self.draws.choice(others)]
        self._actions.faults.kill(follower.name)
        await self._cluster.wait(
            lambda: follower.id not in self._cluster.isr_of(partition_name), ANSWER_S
        )
        self._actions.cut_at_join()
        self._actions.start(follower)
        await self._cluster.wait(
            lambda: follower.id in self._cluster.isr_of(partition_name), ANSWER_S
        )
        await self._shared.rest(UNHEARD_S)
        self._actions.faults.heal(network=False, nodes=False)
        return True

    def _has_appended(self, node: BrokerNode, partition_name: str) -> bool:
        """Returns whether it leads, and has appended in its current leader epoch."""
        hosted = self._cluster.hosted(node, partition_name)
        term = None if hosted is None else hosted.leadership
        return term is not None and self._cluster.end(node, partition_name) > term.start_offset

    # The store

    async def _slow_leases(self) -> bool:
        session_s = self._shared.scenario.session_timeout_s
        before = self._cluster.note_lives()
        self._actions.faults.slow_store(min(session_s / 5, EXCHANGE_S_MAX) / 2)
        await self._shared.rest(3 * session_s)
        self._actions.faults.slow_store(0.0)
        self._cluster.expect_lives("keeping leases while the store is slow", before)
        return True

    async def _full_store(self) -> bool:
        """Meanwhile brokers must commit changes: a follower falls behind."""
        before, committed = self._cluster.note_lives(), self._cluster.committed()
        faults, scenario = self._actions.faults, self._shared.scenario
        faults.full_store()
        if self.draws.random() < 0.5:
            # The store is on the same disk as the logs.
            for node in self._world.brokers:
                faults.fill_disk(node.name, self.draws.choice(ROOMS))
        one, other = self.draws.sample(self._world.brokers, 2)
        faults.clog(one.name, other.name, 2 * scenario.lag_max_ms / 1000)
        faults.clog(other.name, one.name, 2 * scenario.lag_max_ms / 1000)
        await self._shared.rest(2 * scenario.session_timeout_s)
        await self._cluster.demand(
            "reading what was committed while the store is full",
            lambda: self._cluster.read(committed),
            # A broker that has lost its lease cannot register again, and no other can take over.
            is_excused=lambda: self._cluster.lost_to_earlier_faults(before),
        )
        faults.full_store(on=False)
        faults.heal(network=False)
        self._cluster.expect_lives("staying up while the store is full", before)
        return True

    async def _full_disk(self) -> bool:
        cluster = self._cluster
        partition_names = [
            partition_name
            for partition_name in self._shared.scenario.partition_names
            if cluster.leader_of(partition_name) >= 0
            and len(cluster.replicas_of(partition_name))
            > max(1, cluster.min_insync(partition_name))
        ]
        if not partition_names:
            return False
        partition_name = self.draws.choice(partition_names)
        before = cluster.note_lives()
        name = self._world.brokers[cluster.leader_of(partition_name)].name
        self._actions.faults.fill_disk(name, self.draws.choice(ROOMS))
        what = f"writing to {partition_name} while the disk of its leader is full"
        await cluster.demand(what, partial(cluster.write, partition_name))
        self._actions.faults.heal(network=False, store=False)
        cluster.expect_lives("staying up while the disk is full", before)
        return True

    async def _ask_group(self) -> None:
        async def ask(admin: Admin) -> None:
            await admin.group_offsets(READERS)

        await self._cluster.by_admin(ask)
