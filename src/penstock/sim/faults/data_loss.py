"""Limits how many brokers may be missing data that they had written but not synced."""

from __future__ import annotations

from penstock.sim.faults.fault_context import FaultContext
from penstock.sim.node import BrokerNode


class DataLossLimit:
    """A broker that may have lost data counts until it is in sync again in all its partitions, with
    its current broker epoch."""

    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self._lost: dict[int, int] = {}
        """By broker: the broker epoch it had when it lost data."""

    def __len__(self) -> int:
        return len(self._lost)

    def counts(self, node: BrokerNode) -> bool:
        """Returns whether the broker may be missing data at present."""
        self._forget_recovered()
        return node.id in self._lost

    def withdraw(self, node: BrokerNode) -> None:
        """Counts the broker as whole again, if it still runs: it has lost nothing."""
        info = self._context.image.brokers.get(node.id)
        if info is not None and self._lost.get(node.id) == info.broker_epoch:
            del self._lost[node.id]

    def allow(self, node: BrokerNode) -> bool:
        """Returns whether the broker may lose data that it has written but not synced. If so, the
        broker is counted as if it had."""
        self._forget_recovered()
        if len({*self._lost, node.id}) > self.brokers_max():
            return False
        info = self._context.image.brokers.get(node.id)
        self._lost[node.id] = -1 if info is None else info.broker_epoch
        return True

    def brokers_max(self) -> int:
        """Returns how many brokers may lose data at once. The weakest promise of any topic in
        this run decides: an operator may have switched a topic to `replicated`, or to fewer
        in-sync replicas."""
        return min(self._context.scenario.losses_max, self._context.shared.losses_max)

    def _forget_recovered(self) -> None:
        image = self._context.image
        for broker_id in [*self._lost]:
            info = image.brokers.get(broker_id)
            if info is None or info.broker_epoch == self._lost[broker_id]:
                continue
            if all(
                broker_id in partition.isr
                and partition.member_epoch(broker_id) == info.broker_epoch
                for topic in image.topics.values()
                for partition in topic.partitions
                if broker_id in partition.replicas
            ):
                del self._lost[broker_id]
