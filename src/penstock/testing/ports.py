"""Ports to listen on that nobody else will get.

A port that the system picks is one it also hands out to outgoing connections: while a broker is
down for a restart some client's connection may take it, and a client that keeps knocking at it may
even reach itself. So ports are taken from below the range of outgoing ones. Workers of pytest-xdist
each take theirs from a part of it, lest one gets what another's broker has left for a moment.
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
    raise OSError(f"found no free port from {ports[0]} to {ports[-1]} on {host}")


def _own_range() -> range:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "")
    if not (worker.isdecimal() and workers.isdecimal()):
        return range(_FIRST, _OUTGOING)
    # Of workers that replace others the number goes on.
    return range(_FIRST + int(worker) % int(workers), _OUTGOING, int(workers))
