"""What a client uses of its surroundings. Tests and the simulator can replace it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.net.sockets import SocketNetwork
from penstock.ports import Clock, Executor, Network, Random
from penstock.runtime import SystemClock, SystemRandom


@dataclass(frozen=True, slots=True)
class ClientEnv:
    network: Network
    clock: Clock
    random: Random
    executor: Executor | None = None
    """Hashes passwords and reads certificates. None: threads of the event loop."""


def default_environment() -> ClientEnv:
    """Returns real sockets, the system's clock and the system's randomness."""
    return ClientEnv(SocketNetwork(), SystemClock(), SystemRandom())
