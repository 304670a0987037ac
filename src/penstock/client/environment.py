"""The network, clock and randomness of a client, which tests and the simulator can replace."""

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
    """Returns real sockets, the system's clock and the system's randomness."""
    return ClientEnv(SocketNetwork(), SystemClock(), SystemRandom())
