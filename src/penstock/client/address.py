"""Parses the addresses of brokers. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

DEFAULT_PORT: Final = 9092


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """Parses `HOST[:PORT],...`; IPv6 addresses are in brackets. Raises `ValueError` with the
    reason."""
    addresses = tuple(_parse(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("no broker address is given: write HOST:PORT, such as localhost:9092")
    return addresses


def _parse(text: str) -> Address:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text} is not an address: write IPv6 as [::1]:9092")
        port = rest[1:]
    elif text.count(":") > 1:
        raise ValueError(f"{text} is not an address: write IPv6 in brackets, such as [::1]:9092")
    else:
        host, _, port = text.partition(":")
    if not host:
        raise ValueError(f"{text} has no host: write HOST:PORT, such as localhost:9092")
    if not port:
        return Address(host, DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text} has no valid port: write a number from 1 to 65535")
    return Address(host, int(port))
