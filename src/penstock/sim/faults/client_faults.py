"""Faults of clients.

Clients are killed, frozen, and separated from what they have sent: their bytes arrive long after
they gave up the connection and continued on another one.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.actors.client_processes import ClientProcesses
from penstock.sim.faults.fault_context import FaultContext


class ClientFaults:
    def __init__(self, context: FaultContext, actors: ClientProcesses) -> None:
        self._context = context
        self._faults = context.faults
        self._draws = context.draws
        self._actors = actors

    def actions(self) -> dict[str, Callable[[], None]]:
        return {
            "kill_client": self.kill_client,
            "kill_writer": self.kill_writer,
            "freeze_client": self.freeze_client,
            "stall_client": self.stall_client,
        }

    def kill_client(self) -> None:
        self._kill_one("kill_client", self._actors.mortal)

    def kill_writer(self) -> None:
        """Kills a client, mostly in the middle of a transaction. A new one takes over its
        transactional id."""
        self._kill_one("kill_writer", self._actors.writers)

    def _kill_one(self, fault: str, names: list[str]) -> None:
        if names:
            name = self._draws.choice(names)
            self._context.timeline.add("", f"{name} is killed, and started again")
            self._context.shared.count(f"fault_{fault}")
            self._actors.restart(name)

    def freeze_client(self) -> None:
        """Freezes a client. It continues where it was, perhaps after its transaction has ended and
        another client has taken over its transactional id."""
        name = self._draws.choice(self._actors.names)
        self._faults.freeze(name)
        self._context.later(self._context.duration_s(), lambda: self._faults.resume(name))

    def stall_client(self) -> None:
        """Delays what a client has sent, until it has given up and sent it again on
        another connection."""
        name = self._draws.choice(
            [*self._actors.writers, *self._actors.owners] or self._actors.names
        )
        nodes = self._context.world.brokers
        if self._draws.random() < 0.6:
            # This one broker may be the coordinator, while everything else goes on.
            nodes = [self._draws.choice(nodes)]
        for node in nodes:
            self._faults.stall_connections(name, node.name, 2 + 12 * self._draws.random())
