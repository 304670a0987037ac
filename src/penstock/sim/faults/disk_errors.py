"""Faults of disks: they stall, or their calls fail, and with them the logs of a broker."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.disk.faults import DiskFaults
from penstock.sim.faults.broker_faults import BrokerRestarts
from penstock.sim.faults.data_loss import DataLossLimit
from penstock.sim.faults.fault_context import FaultContext
from penstock.sim.node import BrokerNode


class DiskErrors:
    def __init__(
        self,
        context: FaultContext,
        restarts: BrokerRestarts,
        losses: DataLossLimit,
        disturbed: dict[int, bool],
    ) -> None:
        self._context = context
        self._faults = context.faults
        self._draws = context.draws
        self._restarts = restarts
        self._losses = losses
        self._disturbed = disturbed
        """Brokers whose disks have failed at any time in this run."""
        self._struck: dict[int, bool] = {}
        """Brokers whose disk calls have failed since everything was last healed."""

    def actions(self) -> dict[str, Callable[[], None]]:
        return {
            "stall_disk": self.stall_disk,
            "disk_errors": self.disk_errors,
        }

    def on_healed(self) -> None:
        """Kills the brokers that have lost logs: they open them when they start."""
        self._restarts.failing.clear()
        for node in self._context.world.brokers:
            if self._struck.pop(node.id, False) and self.has_lost_logs(node):
                self._faults.kill(node.name)

    def is_disturbed(self, node: BrokerNode) -> bool:
        """Returns whether its disk has failed at any time in this run."""
        return node.id in self._disturbed

    def stall_disk(self) -> None:
        self._faults.stall_disk(self._context.broker().name, self._context.duration_s() / 2)

    def disk_errors(self) -> None:
        """Makes some disk calls fail, and with them the logs that they were for."""
        node = self._context.broker()
        was_whole = not self._losses.counts(node)
        if node.state != "ready" or not self._losses.allow(node):
            return
        self._restarts.failing[node.id] = was_whole
        self._struck[node.id] = self._disturbed[node.id] = True
        kinds = (
            DiskFaults(fsync_eio=0.2),
            DiskFaults(write_eio=0.1, short_write=0.2),
            DiskFaults(read_eio=0.1),
            DiskFaults(sync_directory_eio=0.2),
        )
        self._faults.disk_faults(node.name, self._draws.choice(kinds))
        self._context.later(self._context.duration_s() / 3, lambda: self._repair(node))

    def _repair(self, node: BrokerNode) -> None:
        """Repairs the disk. Then the broker is restarted, or left to reopen its logs by itself:
        it does so for partitions that another broker leads meanwhile, and needs a restart for
        the others."""
        if node.id not in self._restarts.failing:
            return
        was_whole = self._restarts.failing[node.id]
        self._restarts.repair_disk(node)
        if self.has_lost_logs(node):
            if self._draws.random() < 0.5:
                self._context.shared.count("left_with_lost_logs")
                return
            self._faults.kill(node.name)
            self._restarts.start_after(node, 0.5)
        elif was_whole:
            self._losses.withdraw(node)

    def has_lost_logs(self, node: BrokerNode) -> bool:
        """Returns whether some of its logs are offline, or could not be opened when it started."""
        broker = node.broker
        if broker is None or node.state != "ready":
            return False
        held = [
            broker.replicas.get(topic.name, index)
            for topic in self._context.image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if node.id in partition.replicas
        ]
        return any(each is None or each.log.failure is not None for each in held)
