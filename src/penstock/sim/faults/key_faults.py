"""Faults of the key provider of encrypted topics: it is away, slow, or a key is rotated.

A log that a broker cannot open without its key stays offline until the broker can, or is restarted.
No record is lost by that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.sim.faults.broker_faults import BrokerRestarts
from penstock.sim.faults.disk_errors import DiskErrors
from penstock.sim.faults.fault_context import FaultContext
from penstock.sim.history import INFO, OK, Probe
from penstock.sim.key_service import KeyService
from penstock.sim.node import STARTING, BrokerNode
from penstock.sim.scenario import key_of
from penstock.storage.log import Log


@dataclass(frozen=True, slots=True)
class OpenLogs:
    """The logs that a broker had open when it lost the key provider."""

    life: int
    begun_ms: float
    logs: list[Log]

    def lost(self, node: BrokerNode) -> list[Log]:
        """Returns those that are offline. A broker that stops closes its logs, and a log is deleted
        when its partition moves: these are not lost."""
        broker = node.broker
        if broker is None or node.life != self.life or broker.replicas.broker_epoch < 0:
            return []
        offline = broker.replicas.offline
        return [log for log in self.logs if (log.topic, log.partition) in offline]


class KeyFaults:
    def __init__(self, context: FaultContext, restarts: BrokerRestarts, disks: DiskErrors) -> None:
        self._context = context
        self._faults = context.faults
        self._draws = context.draws
        self._restarts = restarts
        self._disks = disks
        self._struck: dict[str, None] = {}
        """Brokers that could not reach the provider since everything was last healed."""
        self._open: dict[str, OpenLogs] = {}

    def actions(self) -> dict[str, Callable[[], None]]:
        return {
            "key_outage": self.key_outage,
            "key_restart": self.key_restart,
            "slow_keys": self.slow_keys,
            "rotate_key": self.rotate_key,
        }

    def on_healed(self) -> None:
        """Brings the provider back. Kills the brokers that have lost logs meanwhile, or are opening
        them: they open all of them when they start."""
        keys = self._context.world.keys
        if keys is None:
            return
        keys.away.clear()
        keys.dropped.clear()
        keys.delay_s = 0.0
        for node in self._context.world.brokers:
            if node.name in self._struck and (
                node.state == STARTING or self._disks.has_lost_logs(node)
            ):
                self._faults.kill(node.name)
        self._struck.clear()

    def key_outage(self) -> None:
        """The provider is away, for one broker or for all."""
        everyone = self._draws.random() < 0.4
        nodes = [*self._context.world.brokers] if everyone else [self._context.broker()]
        for node in nodes:
            self._cut(node)
        self._context.later(self._context.duration_s(), lambda: self._connect(nodes))

    def key_restart(self) -> None:
        """A broker is killed, and the provider is away when it starts."""
        node = self._context.broker()
        if not node.is_up:
            return
        self._cut(node)
        self._faults.kill(node.name)
        self._restarts.start_after(node, self._draws.random())
        self._context.later(self._context.duration_s(), lambda: self._connect([node]))

    def slow_keys(self) -> None:
        """Each call of the provider takes longer."""
        self._faults.slow_keys(self._draws.choice((0.1, 0.5, 2.0)))
        self._context.later(self._context.duration_s(), lambda: self._faults.slow_keys(0.0))

    def rotate_key(self) -> None:
        self._faults.rotate_key(key_of(self._draws.choice(self._context.scenario.encrypted)))

    @property
    def _keys(self) -> KeyService:
        keys = self._context.world.keys
        assert keys is not None, "these faults are only for scenarios with encryption"
        return keys

    def _cut(self, node: BrokerNode) -> None:
        self._struck[node.name] = None
        self._faults.cut_keys(node.name)
        logs = [] if node.broker is None else [hosted.log for hosted in node.broker.replicas]
        is_open = [log for log in logs if log.failure is None]
        self._open[node.name] = OpenLogs(node.life, self._context.shared.now_ms(), is_open)

    def _connect(self, nodes: list[BrokerNode]) -> None:
        for node in nodes:
            self._faults.cut_keys(node.name, on=False)
            self._check_open(node)

    def _check_open(self, node: BrokerNode) -> None:
        """Checks that logs that were open stayed open: their data keys are in memory."""
        before = self._open.pop(node.name, None)
        if before is None or before.life != node.life or self._disks.is_disturbed(node):
            return
        lost = before.lost(node)
        error = f"{node.name}: {lost[0].directory}: {lost[0].failure}" if lost else ""
        shared = self._context.shared
        shared.history.add(
            Probe(
                process="key provider",
                status=INFO if error else OK,
                begun_ms=before.begun_ms,
                ended_ms=shared.now_ms(),
                error=error,
                what="keeping logs open without the key provider",
            )
        )
