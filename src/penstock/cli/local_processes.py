"""Finds the process on this machine that listens at an address.

A broker's address is in the cluster metadata, but its process id is not, since it means nothing to
clients on other machines. For a broker on this machine the kernel knows the process: /proc/net/tcp
lists the listening sockets with their inodes, /proc/PID/fd the sockets of each process. No file
has to be written, kept up to date or trusted, and this also works for Kafka's brokers. If there is
no /proc, or the process belongs to another user, the answer is None.
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
    """Returns the process id; None if the address is on another machine or the id is not known."""
    here = _local_addresses(address.host)
    inodes = {f"socket:[{inode}]" for inode in _inodes(here, address.port)} if here else set()
    return next(_holders(inodes), None) if inodes else None


def _local_addresses(host: str) -> frozenset[_Ip]:
    """Returns the addresses of the host that belong to this machine: those it can bind to."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return frozenset()
    return frozenset(
        _ip(address[0]) for family, _, _, _, address in found if _can_bind(family, address[0])
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
    """Yields the inodes of sockets that listen on the port at one of the addresses, or at all."""
    for path in _TABLES:
        for line in read_text(path).splitlines()[1:]:
            cells = line.split()
            host, _, number = cells[1].rpartition(":")
            if cells[3] == _LISTEN and int(number, 16) == port:
                bound = _unpacked(host)
                if bound.is_unspecified or bound in addresses:
                    yield cells[9]


def _unpacked(text: str) -> _Ip:
    """Parses an address of /proc: four-byte words, each in this machine's byte order."""
    data = bytes.fromhex(text)
    words = (data[at : at + 4] for at in range(0, len(data), 4))
    if sys.byteorder == "little":
        words = (word[::-1] for word in words)
    found = ipaddress.ip_address(b"".join(words))
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def read_text(path: str) -> str:
    """Returns the content of a system file; empty if it cannot be read."""
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
            continue  # the process ended, or belongs to another user
