"""All faults that the simulator can cause, as methods that take node names and count what they do.

The scenario decides which fault happens when. `heal` undoes all faults, but does not restart
dead nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.sim.disk.faults import DiskFaults
from penstock.sim.key_service import KeyService
from penstock.sim.network.link import Link
from penstock.sim.network.machine import Machine
from penstock.sim.node import BrokerNode, Node
from penstock.sim.world import World


class ClusterFaults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._draws = world.draws("faults")

    # The network

    def partition(
        self, side_a: Sequence[str], side_b: Sequence[str], *, one_way: bool = False
    ) -> None:
        """Blocks all traffic from one side to the other, and back unless `one_way`."""
        self._count("partition_one_way" if one_way else "partition")
        self._tell(f"partition {' '.join(side_a)} {'->' if one_way else '|'} {' '.join(side_b)}")
        for a in side_a:
            for b in side_b:
                self._link(a, b).block()
                if not one_way:
                    self._link(b, a).block()

    def isolate(self, name: str, *, also_store: bool = False) -> None:
        """Cuts one node off from all others."""
        self.partition([name], [other for other in self._world.nodes if other != name])
        if also_store:
            self.cut_store(name)

    def clog(self, source: str, target: str, seconds: float) -> None:
        """Delivers nothing in one direction for a while, then everything, in order."""
        self._count("clog")
        self._tell(f"{source} -> {target} is clogged for {seconds:.3f} s")
        link = self._link(source, target)
        link.clogged_until = max(link.clogged_until, self._world.loop.now + seconds)

    def slow_link(
        self,
        source: str,
        target: str,
        delay_s: float,
        bandwidth_bytes_per_s: float | None = None,
    ) -> None:
        self._count("slow_link")
        self._tell(f"{source} -> {target} takes {delay_s:.3f} s more")
        link = self._link(source, target)
        link.extra_s = delay_s
        link.bandwidth_bytes_per_s = bandwidth_bytes_per_s

    def reset_connections(self, one: str, other: str, chance: float = 1.0) -> int:
        """Resets connections between two nodes, at both ends. Bytes in transit are lost."""
        network = self._world.network
        times = network.reset_between(self._machine(one), self._machine(other), chance, self._draws)
        self._count("reset", times)
        self._tell(f"{times} connections between {one} and {other} are reset")
        return times

    def stall_connections(
        self, source: str, target: str, seconds: float, chance: float = 1.0
    ) -> int:
        """Delays the bytes on existing connections from one node to the other. New
        connections work."""
        times = self._world.network.stall_between(
            self._machine(source), self._machine(target), seconds, chance, self._draws
        )
        self._count("stall_connections", times)
        self._tell(f"{times} connections {source} -> {target} stall for {seconds:.3f} s")
        return times

    def refuse(self, source: str, target: str, *, on: bool = True) -> None:
        self._count("refuse", int(on))
        self._tell(f"connects from {source} to {target} are {'refused' if on else 'accepted'}")
        self._link(source, target).refused = on

    def slow_reader(self, name: str, bytes_per_s: float | None) -> None:
        self._count("slow_reader", int(bytes_per_s is not None))
        self._tell(f"{name} reads {bytes_per_s} bytes a second")
        self._machine(name).read_bytes_per_s = bytes_per_s

    # The key provider

    def cut_keys(self, name: str, *, on: bool = True) -> None:
        self._count("cut_keys", int(on))
        self._tell(f"{name} {'loses' if on else 'finds'} the key provider")
        if on:
            self._keys.away[name] = None
        else:
            self._keys.away.pop(name, None)

    def slow_keys(self, seconds: float) -> None:
        self._count("slow_keys", int(seconds > 0))
        self._tell(f"the key provider takes {seconds:.3f} s")
        self._keys.delay_s = seconds

    def rotate_key(self, key_name: str) -> None:
        self._count("rotate_key")
        self._tell(f"{key_name} is rotated")
        self._keys.rotate(key_name)

    def drop_key(self, key_name: str, *, on: bool = True) -> None:
        self._count("drop_key", int(on))
        self._tell(f"{key_name} is {'dropped' if on else 'back'}")
        if on:
            self._keys.dropped[key_name] = None
        else:
            self._keys.dropped.pop(key_name, None)

    @property
    def _keys(self) -> KeyService:
        assert self._world.keys is not None, "this world has no key provider"
        return self._world.keys

    # The store

    def cut_store(self, name: str, *, on: bool = True) -> None:
        self._count("cut_store", int(on))
        self._tell(f"{name} {'loses' if on else 'finds'} the store")
        self._world.store.cut(name, on)

    def store_outage(self, *, on: bool = True) -> None:
        self._count("store_outage", int(on))
        self._tell(f"the store is {'gone' if on else 'back'}")
        self._world.store.set_outage(on)

    def lose_store_replies(self, chance: float) -> None:
        """Commits are applied, but their replies are lost."""
        self._count("lose_store_replies")
        store = self._world.store
        store.config = replace(store.config, lost_reply_chance=chance)

    def lose_store_requests(self, chance: float) -> None:
        self._count("lose_store_requests")
        store = self._world.store
        store.config = replace(store.config, lost_request_chance=chance)

    def slow_store(self, seconds: float) -> None:
        """Makes every request take this much longer, each way."""
        self._count("slow_store", int(seconds > 0))
        self._tell(f"the store takes {seconds:.3f} s more each way")
        self._world.store.extra_delay_s = seconds

    def full_store(self, *, on: bool = True) -> None:
        self._count("full_store", int(on))
        self._tell(f"the store {'is full' if on else 'has room again'}")
        self._world.store.full = on

    def store_compact(self) -> None:
        """Discards old revisions. Watches that are behind cannot resume."""
        self._count("store_compact")
        self._tell("the store forgets old changes")
        self._world.store.compact()

    def lag_watches(self, seconds: float) -> None:
        self._count("lag_watches", int(seconds > 0))
        self._tell(f"watches lag {seconds:.3f} s")
        self._world.store.extra_lag_s = seconds

    def lag_watch(self, name: str, seconds: float) -> None:
        """Makes one node receive changes later than the others."""
        self._count("lag_watch", int(seconds > 0))
        self._tell(f"the watch of {name} lags {seconds:.3f} s")
        self._world.store.lags_s[name] = seconds

    # Nodes

    def kill(self, name: str) -> None:
        self._count("kill")
        self._node(name).kill()

    def power_loss(self, name: str) -> None:
        self._count("power_loss")
        self._broker(name).power_loss()

    def freeze(self, name: str) -> None:
        self._count("freeze")
        self._node(name).freeze()

    def resume(self, name: str) -> None:
        self._node(name).resume()

    def skew(self, name: str, milliseconds: int) -> None:
        self._count("skew", int(milliseconds != 0))
        self._tell(f"the wall clock of {name} is {milliseconds} ms ahead")
        self._node(name).skew_ms = milliseconds

    def slow(self, name: str, step_s: float) -> None:
        self._count("slow", int(step_s > 0))
        self._tell(f"every step of {name} takes {step_s} s")
        self._node(name).slow_s = step_s

    def stall_disk(self, name: str, seconds: float) -> None:
        self._count("stall_disk")
        self._tell(f"the disk of {name} stalls for {seconds:.3f} s")
        self._broker(name).stall_disk(seconds)

    def disk_faults(self, name: str, faults: DiskFaults | None) -> None:
        """Makes disk calls fail at random. None ends it."""
        self._count("disk_faults", int(faults is not None))
        self._tell(f"the disk of {name} {'fails now and then' if faults else 'is well'}")
        disk = self._broker(name).disk
        if faults is None:
            disk.heal()
        else:
            disk.set_faults(faults)

    def fill_disk(self, name: str, room_bytes: int) -> None:
        """Leaves only this much free space on a broker's disk."""
        self._count("fill_disk")
        self._tell(f"the disk of {name} has {room_bytes} bytes left")
        self._broker(name).disk.leave_room(room_bytes)

    def heal(self, *, network: bool = True, store: bool = True, nodes: bool = True) -> None:
        """Undoes all faults. Dead nodes stay dead."""
        self._tell("everything heals")
        world = self._world
        if network:
            world.network.heal()
        if store:
            world.store.heal()
        if nodes:
            for node in world.nodes.values():
                node.resume()
                node.skew_ms = 0
                node.slow_s = 0.0
                if isinstance(node, BrokerNode):
                    node.disk.heal()
                    node.disk.capacity_bytes = world.config.capacity_bytes

    # Names

    def _node(self, name: str) -> Node:
        found = self._world.nodes.get(name)
        if found is None:
            raise KeyError(f"there is no node {name!r}: they are {', '.join(self._world.nodes)}")
        return found

    def _broker(self, name: str) -> BrokerNode:
        node = self._node(name)
        if not isinstance(node, BrokerNode):
            raise TypeError(f"{name} is not a broker, and has no disk")
        return node

    def _machine(self, name: str) -> Machine:
        return self._node(name).machine

    def _link(self, source: str, target: str) -> Link:
        return self._world.network.link(self._machine(source), self._machine(target))

    def _count(self, name: str, times: int = 1) -> None:
        if times:
            self._world.count(f"fault_{name}", times)

    def _tell(self, text: str) -> None:
        self._world.tell(f"fault: {text}")
