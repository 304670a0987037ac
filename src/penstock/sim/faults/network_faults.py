"""Faults of the network between brokers, and between clients and brokers."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.faults.broker_faults import BrokerFaults
from penstock.sim.faults.fault_context import FaultContext
from penstock.sim.node import BrokerNode
from penstock.txns.formats import TOPIC as DECISIONS


class NetworkFaults:
    def __init__(self, context: FaultContext, brokers: BrokerFaults) -> None:
        self._context = context
        self._world = context.world
        self._faults = context.faults
        self._draws = context.draws
        self._brokers = brokers
        self._trap: str | None = None
        """The prefix of a partition's name. The next append to such a partition cuts off
        its leader."""

    def actions(self) -> dict[str, Callable[[], None]]:
        return {
            "partition": self.partition,
            "one_way": self.one_way,
            "isolate": self.isolate,
            "part_client": self.part_client,
            "clog": self.clog,
            "reset": self.reset,
            "slow_link": self.slow_link,
            "slow_reader": self.slow_reader,
            "refuse": self.refuse,
            "cut_at_append": self.cut_at_append,
        }

    def disarm(self) -> None:
        self._trap = None

    def partition(self) -> None:
        names = self._context.names()
        self._draws.shuffle(names)
        cut = self._draws.randint(1, len(names) - 1)
        self._part(names[:cut], names[cut:], one_way=False)

    def one_way(self) -> None:
        one, other = self._context.pair()
        self._part([one], [other], one_way=True)

    def isolate(self) -> None:
        node = self._context.broker()
        also_store = self._draws.random() < 0.5
        self._faults.isolate(node.name, also_store=also_store)
        self._context.later(self._context.duration_s(), self._heal_network)

    def part_client(self) -> None:
        client = self._draws.choice(sorted(self._world.clients))
        node = self._context.broker()
        self._part([client], [node.name], one_way=self._draws.random() < 0.5)

    def _part(self, one: list[str], other: list[str], *, one_way: bool) -> None:
        self._faults.partition(one, other, one_way=one_way)
        self._context.later(self._context.duration_s(), self._heal_network)

    def _heal_network(self) -> None:
        self._faults.heal(network=True, store=True, nodes=False)

    def clog(self) -> None:
        one, other = self._context.pair()
        self._faults.clog(one, other, self._context.duration_s())

    def reset(self) -> None:
        one, other = self._context.pair()
        if self._draws.random() < 0.5:
            other = self._draws.choice(sorted(self._world.clients))
        self._faults.reset_connections(one, other, chance=self._draws.choice((0.3, 1.0)))

    def slow_link(self) -> None:
        one, other = self._context.pair()
        bandwidth = self._draws.choice((None, 2_000, 50_000))
        self._faults.slow_link(
            one, other, self._draws.choice((0.1, 0.5, 2.0)), bandwidth_bytes_per_s=bandwidth
        )
        self._context.later(self._context.duration_s(), self._heal_network)

    def slow_reader(self) -> None:
        node = self._context.broker()
        self._faults.slow_reader(node.name, self._draws.choice((500, 5_000)))
        self._context.later(
            self._context.duration_s(), lambda: self._faults.slow_reader(node.name, None)
        )

    def refuse(self) -> None:
        one, other = self._context.pair()
        self._faults.refuse(one, other)
        self._context.later(
            self._context.duration_s(), lambda: self._faults.refuse(one, other, on=False)
        )

    def cut_at_append(self) -> None:
        """Cuts a leader off from the other brokers right after an append. Clients may still reach
        it. Soon it is killed, or loses power, or stays isolated for a while."""
        self._trap = self._draws.choice(("", DECISIONS, DECISIONS))

    def on_led_append(self, broker_id: int, partition_name: str) -> None:
        if self._trap is None or not partition_name.startswith(self._trap):
            return
        self._trap = None
        node = self._world.brokers[broker_id]
        self._context.shared.count("cut_off_at_append")
        self._part(
            [node.name],
            [name for name in self._context.names() if name != node.name],
            one_way=False,
        )
        end = self._draws.choice((self._brokers.kill_node, self._lose_power, None))
        if end is not None:
            self._context.later(self._draws.choice((0.02, 0.1, 0.5)), lambda: end(node))

    def _lose_power(self, node: BrokerNode) -> None:
        self._brokers.lose_power(self._context.duration_s(), node)
