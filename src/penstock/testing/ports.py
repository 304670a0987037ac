"""Ports to listen on that nobody else will get.

A port that the system picks is one it also hands out to outgoing connections: while a broker is
down for a restart some client's connection may take it, and a client that keeps knocking at it may
even reach itself. So ports are taken from below the range of outgoing ones.
"""

from __future__ import annotations

import socket
from typing import Final

from penstock.ports import Random

_FIRST: Final = 10_240
_OUTGOING: Final = 32_768
_ATTEMPTS: Final = 200


def free_port(random: Random, host: str = "127.0.0.1") -> int:
    for _ in range(_ATTEMPTS):
        port = _FIRST + random.below(_OUTGOING - _FIRST)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"found no free port from {_FIRST} to {_OUTGOING - 1} on {host}")
