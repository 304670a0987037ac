"""The doors a client has to the world: handed in by tests and the simulator, real otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.net.sockets import SocketNetwork
from penstock.ports import Clock, Network, Random
from penstock.runtime import SystemClock, SystemRandom


@dataclass(frozen=True, slots=True)
class ClientEnv:
    network: Network
    clock: Clock
    random: Random


def default_environment() -> ClientEnv:
    """Sockets, the system's clock and its randomness."""
    return ClientEnv(SocketNetwork(), SystemClock(), SystemRandom())
