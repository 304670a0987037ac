"""Chooses ports to listen on that no other program will take.

The system also assigns the ports that it picks to outgoing connections. While a broker is down for
a restart, a client's connection could take such a port, and a client that keeps retrying could even
connect to itself. So ports come from below the range of outgoing ones. Each worker of pytest-xdist
uses a separate part of that range. Otherwise a worker could take the port of another worker's
broker while it restarts.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from penstock.ports import Random

_FIRST: Final = 10_240
_OUTGOING: Final = 32_768
_ATTEMPTS: Final = 200


def free_port(random: Random, host: str = "127.0.0.1") -> int:
    ports = _own_range()
    for _ in range(_ATTEMPTS):
        port = ports[random.below(len(ports))]
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"there is no free port from {ports[0]} to {ports[-1]} on {host}")


def _own_range() -> range:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "")
    if not (worker.isdecimal() and workers.isdecimal()):
        return range(_FIRST, _OUTGOING)
    # A worker that replaces another has a number above the count of workers.
    return range(_FIRST + int(worker) % int(workers), _OUTGOING, int(workers))
