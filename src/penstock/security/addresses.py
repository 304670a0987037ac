"""IP addresses: their one form, the networks that one client can have all of, and limits by
address."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

_NETWORK_BITS: Final = 64
_SITE_BITS: Final = 48


def canonical(address: str) -> str:
    """Returns the one form of an address, without the zone of an IPv6 address.

    An IPv4 address in IPv6 form is the IPv4 address. Raises `ValueError` if it is no address.
    """
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.IPv6Address(int(parsed)))
    return str(parsed)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach the host: its address, or localhost.

    Other names are not looked up.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """Returns the /64 network of an IPv6 address: one client can use all addresses of it.

    Of an IPv4 address, it is the address. A text that is no address stays as it is.
    """
    return _prefix(address, _NETWORK_BITS)


def site_of(address: str) -> str:
    """Returns the /48 network of an IPv6 address: one organization can use all of it.

    Other texts are treated as in `network_of`.
    """
    return _prefix(address, _SITE_BITS)


def parse_limits(text: str) -> dict[str, int]:
    """Reads limits by host, such as `host1:10,10.0.0.7:20,::1:30`.

    An address is in its one form, a host name as it was written. Raises `ValueError`.
    """
    found: dict[str, int] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        host, _, limit = (part.strip() for part in entry.rpartition(":"))
        host = host.removeprefix("[").removesuffix("]")
        if not host or not (limit.isascii() and limit.isdigit()):
            raise ValueError(f"{entry!r} is not HOST:COUNT, such as 10.0.0.7:20")
        if is_address(host):
            host = canonical(host)
        if host in found:
            raise ValueError(f"{host} has two limits: remove one")
        found[host] = int(limit)
    return found


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _prefix(address: str, bits: int) -> str:
    try:
        name = canonical(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((name, bits), strict=False)) if ":" in name else name
