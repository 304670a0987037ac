"""Faults of brokers: they are killed, stopped, frozen, lose power, or have a wrong clock."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.faults.data_loss import DataLossLimit
from penstock.sim.faults.fault_context import FaultContext
from penstock.sim.node import BrokerNode


class BrokerRestarts:
    """Starts brokers again after a fault."""

    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self.failing: dict[int, bool] = {}
        """Brokers whose disk calls currently fail, and whether nothing else is wrong with them."""

    def start_all(self) -> None:
        for node in self._context.world.brokers:
            self.start(node)

    def start(self, node: BrokerNode) -> None:
        """Starts a broker, after repairing its disk: on a failing disk it would exit again, as
        it should."""
        if node.state == "down":
            self.repair_disk(node)
            node.start()

    def start_after(self, node: BrokerNode, seconds: float) -> None:
        self._context.later(seconds, lambda: self.start(node))

    def repair_disk(self, node: BrokerNode) -> None:
        if node.id in self.failing:
            del self.failing[node.id]
            self._context.faults.disk_faults(node.name, None)


class BrokerFaults:
    def __init__(
        self, context: FaultContext, restarts: BrokerRestarts, losses: DataLossLimit
    ) -> None:
        self._context = context
        self._world = context.world
        self._shared = context.shared
        self._faults = context.faults
        self._draws = context.draws
        self._restarts = restarts
        self._losses = losses

    def actions(self) -> dict[str, Callable[[], None]]:
        return {
            "kill": self.kill,
            "bounce": self.bounce,
            "power_loss": self.power_loss,
            "power_bounce": self.power_bounce,
            "power_silence": self.power_silence,
            "power_cut": self.power_cut,
            "freeze": self.freeze,
            "stop": self.stop,
            "skew": self.skew,
        }

    def kill(self) -> None:
        self.kill_node(self._context.broker())

    def bounce(self) -> None:
        """Kills a broker and restarts it before its session expires."""
        node = self._context.broker()
        if node.is_up:
            self._faults.kill(node.name)
            self._restarts.start_after(node, self._draws.random() * 0.3)

    def power_loss(self) -> None:
        self.lose_power(self._context.duration_s())

    def power_bounce(self) -> None:
        self.lose_power(self._draws.random() * 0.3)

    def power_silence(self) -> None:
        """A broker loses power and registers again at once, but cannot reach the other brokers for
        a while."""
        node = self._context.broker()
        for other in self._context.names():
            if other != node.name:
                self._faults.clog(node.name, other, 0.5 + 3 * self._draws.random())
        self.lose_power(self._draws.random() * 0.1, node)

    def power_cut(self) -> None:
        """All brokers lose power at the same instant, and come back one by one."""
        if len(self._world.brokers) <= self._losses.brokers_max():
            self._shared.count("power_cuts_of_all")
            for node in self._world.brokers:
                self._losses.allow(node)
                self._faults.power_loss(node.name)
                self._restarts.start_after(
                    node, self._draws.choice((0.1, 1.0, 5.0)) * self._draws.random()
                )

    def freeze(self) -> None:
        node = self._context.broker()
        if node.is_up and not node.is_frozen:
            self._faults.freeze(node.name)
            self._context.later(self._context.duration_s(), lambda: self._faults.resume(node.name))

    def stop(self) -> None:
        """Restarts a broker cleanly, as in a rolling upgrade."""
        node = self._context.broker()
        if node.state == "ready" and not node.is_frozen:
            self._shared.count("fault_stop")
            self._context.timeline.add("", f"{node.name} is stopped cleanly")
            self._context.act(self._stop_and_start(node))

    async def _stop_and_start(self, node: BrokerNode) -> None:
        try:
            await node.stop(timeout_s=20.0)
        except TimeoutError:
            # A broker that is killed, frozen or cut off while it stops never reports that it has
            # stopped. The operator gives up waiting.
            if node.state == "stopping":
                self._faults.kill(node.name)
        await self._shared.rest(self._context.duration_s() / 3)
        self._restarts.start(node)

    def skew(self) -> None:
        node = self._context.broker()
        self._faults.skew(node.name, self._draws.choice((-60_000, -500, 500, 60_000)))

    def lose_power(self, pause_s: float, node: BrokerNode | None = None) -> None:
        node = node or self._context.broker()
        if not node.is_up or not self._losses.allow(node):
            return
        self._faults.power_loss(node.name)
        self._restarts.start_after(node, pause_s)

    def kill_node(self, node: BrokerNode) -> None:
        """Kills a broker that is up, and starts it again later."""
        if node.is_up:
            self._faults.kill(node.name)
            self._restarts.start_after(node, self._context.duration_s())
