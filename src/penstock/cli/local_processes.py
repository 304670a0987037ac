"""Which process of this machine listens at an address.

A broker's address is in the metadata, its process id is not: to clients elsewhere it would mean
nothing. For a broker of this machine the kernel knows. /proc/net/tcp lists the listening sockets
by inode, /proc/PID/fd who holds them. No file has to be written, kept current or trusted, and it
works for any broker, Kafka's too. Where there is no /proc, or the process belongs to somebody
else, the answer is None.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from io import FileIO
from typing import Final

from penstock.client.address import Address

_LISTEN: Final = "0A"
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


def listening_process(address: Address) -> int | None:
    """The process id, or None for an address elsewhere, or one that cannot be told."""
    if not _is_local(address.host):
        return None
    inodes = {f"socket:[{inode}]" for inode in _inodes(address.port)}
    return next(_holders(inodes), None) if inodes else None


def _is_local(host: str) -> bool:
    """An address belongs to this machine if one can bind to it."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(family, place[0]) for family, _, _, _, place in found)


def _can_bind(family: int, host: str | int) -> bool:
    if ipaddress.ip_address(str(host).partition("%")[0]).is_loopback:
        return True
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _inodes(port: int) -> Iterator[str]:
    for path in _TABLES:
        for line in _read(path).splitlines()[1:]:
            cells = line.split()
            if cells[3] == _LISTEN and int(cells[1].rpartition(":")[2], 16) == port:
                yield cells[9]


def _read(path: str) -> str:
    try:
        with FileIO(path) as file:
            return file.readall().decode()
    except OSError:
        return ""


def _holders(links: set[str]) -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if not name.isdigit():
            continue
        folder = f"/proc/{name}/fd"
        try:
            if any(os.readlink(f"{folder}/{entry}") in links for entry in os.listdir(folder)):
                yield int(name)
        except OSError:
            continue  # it ended, or it is somebody else's
