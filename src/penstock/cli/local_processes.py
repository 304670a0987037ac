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
import sys
from collections.abc import Iterator
from io import FileIO
from typing import Final

from penstock.client.address import Address

_LISTEN: Final = "0A"
_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


def listening_process(address: Address) -> int | None:
    """The process id, or None for an address elsewhere, or one that cannot be told."""
    here = _local_addresses(address.host)
    inodes = {f"socket:[{inode}]" for inode in _inodes(here, address.port)} if here else set()
    return next(_holders(inodes), None) if inodes else None


def _local_addresses(host: str) -> frozenset[_Ip]:
    """Those of the host's addresses that belong to this machine: one can bind to them."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return frozenset()
    return frozenset(
        _ip(place[0]) for family, _, _, _, place in found if _can_bind(family, place[0])
    )


def _ip(host: str | int) -> _Ip:
    return ipaddress.ip_address(str(host).partition("%")[0])


def _can_bind(family: int, host: str | int) -> bool:
    if _ip(host).is_loopback:
        return True
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _inodes(addresses: frozenset[_Ip], port: int) -> Iterator[str]:
    """Sockets that listen on the port, at one of the addresses or at all there are."""
    for path in _TABLES:
        for line in read_text(path).splitlines()[1:]:
            cells = line.split()
            host, _, number = cells[1].rpartition(":")
            if cells[3] == _LISTEN and int(number, 16) == port:
                bound = _unpacked(host)
                if bound.is_unspecified or bound in addresses:
                    yield cells[9]


def _unpacked(text: str) -> _Ip:
    """An address as /proc writes it: words of four bytes, each in the order of this machine."""
    data = bytes.fromhex(text)
    words = (data[at : at + 4] for at in range(0, len(data), 4))
    if sys.byteorder == "little":
        words = (word[::-1] for word in words)
    found = ipaddress.ip_address(b"".join(words))
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def read_text(path: str) -> str:
    """What the system says there; nothing where it says nothing, or not to us."""
    try:
        with FileIO(path) as file:
            return file.readall().decode(errors="replace")
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
