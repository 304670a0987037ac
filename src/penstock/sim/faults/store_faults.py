"""Faults of the metadata store, and of the brokers' connections to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.ports import WatchEvent
from penstock.sim.faults.fault_context import FaultContext


class StoreFaults:
    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self._faults = context.faults
        self._draws = context.draws
        self._cuts_due = False
        self._in_sync: dict[tuple[str, int], int] = {}

    def actions(self) -> dict[str, Callable[[], None]]:
        return {
            "cut_store": self.cut_store,
            "cut_at_commit": self.cut_at_commit,
            "store_outage": self.store_outage,
            "store_replies": self.store_replies,
            "slow_store": self.slow_store,
            "store_compact": self.store_compact,
            "watch_lag": self.watch_lag,
        }

    def disarm(self) -> None:
        self._cuts_due = False

    def cut_store(self) -> None:
        node = self._context.broker()
        self._faults.cut_store(node.name)
        self._context.later(
            self._context.duration_s(), lambda: self._faults.cut_store(node.name, on=False)
        )

    def cut_at_commit(self) -> None:
        """The next time a replica joins an ISR, the leader is cut off from the store and does not
        learn of it."""
        self._cuts_due = True
        self._leaders_of_grown()

    def on_store(self, events: Sequence[WatchEvent]) -> None:
        if not self._cuts_due:
            return
        leaders = self._leaders_of_grown()
        if leaders:
            self._cuts_due = False
            node = self._context.world.brokers[self._draws.choice(leaders)]
            self._faults.cut_store(node.name)
            self._context.later(
                4 + 8 * self._draws.random(),
                lambda: self._faults.cut_store(node.name, on=False),
            )

    def _leaders_of_grown(self) -> list[int]:
        """Returns the leaders of partitions that have gained in-sync replicas since the
        last call."""
        leaders = []
        for topic in self._context.image.topics.values():
            for index, partition in enumerate(topic.partitions):
                before = self._in_sync.get((topic.name, index), len(partition.isr))
                self._in_sync[topic.name, index] = len(partition.isr)
                if len(partition.isr) > before and partition.leader >= 0:
                    leaders.append(partition.leader)
        return leaders

    def store_outage(self) -> None:
        self._faults.store_outage()
        self._context.later(
            self._context.duration_s() / 2, lambda: self._faults.store_outage(on=False)
        )

    def store_replies(self) -> None:
        self._faults.lose_store_replies(self._draws.choice((0.1, 0.4)))
        self._context.later(
            self._context.duration_s(), lambda: self._faults.lose_store_replies(0.0)
        )

    def slow_store(self) -> None:
        """Slows down every access to the store's disk."""
        self._faults.slow_store(self._draws.choice((0.1, 0.4, 1.0)))
        self._context.later(self._context.duration_s(), lambda: self._faults.slow_store(0.0))

    def store_compact(self) -> None:
        self._faults.store_compact()

    def watch_lag(self) -> None:
        self._faults.lag_watches(self._draws.choice((0.5, 2.0)))
        self._context.later(self._context.duration_s(), lambda: self._faults.lag_watches(0.0))
