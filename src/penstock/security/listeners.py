"""Kafka's listeners: where a broker listens, what it advertises, and which endpoint a client gets.

A listener has a name, and `listener.security.protocol.map` says which security protocol the name
means. Clients and other brokers learn the advertised endpoints. A response contains only endpoints
of the listener that the request came in on, so that a client inside a network is not sent outside.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from penstock.wire.errors import ErrorCode

LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
INTER_BROKER_NAME: Final = "inter.broker.listener.name"
INTER_BROKER_PROTOCOL: Final = "security.inter.broker.protocol"

DEFAULT_LISTENERS: Final = "PLAINTEXT://:9092"
ENDPOINTS_MAX: Final = 64
"""How many listeners a broker may have."""
LISTENER_NOT_FOUND_VERSION: Final = 6
"""The first version of Metadata that knows LISTENER_NOT_FOUND."""

_HOST_CHARS_MAX: Final = 255
_PORT_MAX: Final = 65_535
_NAME: Final = re.compile(r"[A-Z0-9][A-Z0-9_-]{0,248}")
"""Kafka also accepts a dot, but then it is not clear to which listener a setting such as
`listener.name.a.ssl.client.auth` belongs."""
_HOST: Final = re.compile(r"[0-9A-Za-z._-]*")
_WILDCARDS: Final = frozenset(("", "0.0.0.0", "::"))  # noqa: S104 - compared, not bound to


class ListenersInvalid(ValueError):
    """The settings of the listeners are invalid. The message names the setting."""


class SecurityProtocol(StrEnum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Listener:
    """An address with the name and the protocol of its listener: one to listen on, or one to
    connect to."""

    name: str
    """In upper case, as Kafka compares names."""
    host: str
    """Without brackets. Empty for every address of the machine."""
    port: int
    protocol: SecurityProtocol

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listeners of one broker."""

    bound: tuple[Listener, ...]
    """Where it listens."""
    advertised: tuple[Listener, ...]
    """What clients and brokers are told to connect to, as configured. A listener that is not here
    is not told to anyone."""
    inter_broker: str
    """The name of the listener that other brokers connect to."""

    def endpoints(self, ports: Mapping[str, int], machine_host: str) -> tuple[Listener, ...]:
        """Returns what to advertise once the broker listens on `ports` (by name of the listener).

        `machine_host` stands in for a host that is not configured, or is every address.
        """
        return tuple(
            replace(
                each,
                host=machine_host if each.host in _WILDCARDS else each.host,
                port=each.port or ports[each.name],
            )
            for each in self.advertised
        )


def parse_listeners(settings: Mapping[str, str]) -> Listeners:
    """Reads the listeners from a broker's settings. Raises `ListenersInvalid`.

    Example:
        >>> found = parse_listeners({"listeners": "SSL://:9093",
        ...                          "security.inter.broker.protocol": "SSL"})
        >>> found.bound[0].port
        9093
    """
    protocols = _protocol_map(settings.get(PROTOCOL_MAP))
    bound = _parse(LISTENERS, settings.get(LISTENERS) or DEFAULT_LISTENERS, protocols)
    _check_ports(bound)
    advertised = bound
    if settings.get(ADVERTISED):
        advertised = _parse(ADVERTISED, settings[ADVERTISED], protocols)
        _check_advertised(advertised, bound)
    inter_broker = _inter_broker(settings, protocols)
    if inter_broker not in {each.name for each in advertised}:
        key = INTER_BROKER_NAME if settings.get(INTER_BROKER_NAME) else INTER_BROKER_PROTOCOL
        raise ListenersInvalid(
            f"brokers connect to each other through the listener {inter_broker} ({key}), which is "
            f"not among those that are advertised ({_names(advertised)}): set {INTER_BROKER_NAME} "
            "to one of them"
        )
    return Listeners(bound, advertised, inter_broker)


def _names(listeners: Sequence[Listener]) -> str:
    return ", ".join(each.name for each in listeners)


def _protocol_map(text: str | None) -> Mapping[str, SecurityProtocol]:
    """Returns name -> protocol. Without a setting, each protocol's name is a listener's name."""
    if text is None or not text.strip():
        return {protocol.value: protocol for protocol in SecurityProtocol}
    found: dict[str, SecurityProtocol] = {}
    for entry in _entries(PROTOCOL_MAP, text):
        name, _, protocol = (part.strip().upper() for part in entry.rpartition(":"))
        if not _NAME.fullmatch(name) or protocol not in SecurityProtocol.__members__:
            raise ListenersInvalid(
                f"{PROTOCOL_MAP}: {entry!r} is not NAME:PROTOCOL with one of the protocols "
                f"{', '.join(SecurityProtocol)}"
            )
        if name in found:
            raise ListenersInvalid(f"{PROTOCOL_MAP} has two entries for {name}: keep one")
        found[name] = SecurityProtocol(protocol)
    return found


def _entries(key: str, text: str) -> list[str]:
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise ListenersInvalid(f"{key} has an empty entry: remove the extra comma")
    if len(entries) > ENDPOINTS_MAX:
        raise ListenersInvalid(f"{key} has more than {ENDPOINTS_MAX} entries")
    return entries


def _parse(key: str, text: str, protocols: Mapping[str, SecurityProtocol]) -> tuple[Listener, ...]:
    found: dict[str, Listener] = {}
    for entry in _entries(key, text):
        name, host, port = _split(key, entry)
        protocol = protocols.get(name)
        if protocol is None:
            raise ListenersInvalid(
                f"{key}: no security protocol is defined for the listener {name}: add "
                f"{name}:PROTOCOL to {PROTOCOL_MAP}"
            )
        if name in found:
            raise ListenersInvalid(
                f"{key} has two listeners with the name {name}: give each its own name and map the "
                f"names in {PROTOCOL_MAP}"
            )
        found[name] = Listener(name, host, port, protocol)
    return tuple(found.values())


def _split(key: str, entry: str) -> tuple[str, str, int]:
    """Returns name, host and port of `NAME://host:port`."""
    name, separator, address = entry.partition("://")
    host, colon, port = address.rpartition(":")
    name = name.upper()
    if not separator or not colon or not _NAME.fullmatch(name):
        raise ListenersInvalid(
            f"{key}: {entry!r} is not a listener: write NAME://host:port, such as SSL://:9093"
        )
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > _PORT_MAX:
        raise ListenersInvalid(
            f"{key}: the port of {entry!r} is not a number from 0 (any free port) to {_PORT_MAX}"
        )
    return name, _host(key, entry, host), int(port)


def _host(key: str, entry: str, host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        address = host[1:-1]
        try:
            ipaddress.IPv6Address(address)
        except ValueError as error:
            raise ListenersInvalid(
                f"{key}: {entry!r} has no valid IPv6 address between the brackets"
            ) from error
        return address
    if ":" in host:
        raise ListenersInvalid(
            f"{key}: write the IPv6 address of {entry!r} in brackets, such as SSL://[::1]:9093"
        )
    if not _HOST.fullmatch(host) or len(host) > _HOST_CHARS_MAX:
        raise ListenersInvalid(f"{key}: {entry!r} has no valid host name or address")
    return host


def _check_ports(listeners: Sequence[Listener]) -> None:
    """Each listener needs its own port. One with an IPv4 and one with an IPv6 address may share
    one."""
    by_port: dict[int, list[Listener]] = {}
    for each in listeners:
        if each.port:
            by_port.setdefault(each.port, []).append(each)
    for port, shared in by_port.items():
        versions = sorted(_ip_version(each.host) for each in shared)
        if len(shared) > 1 and versions != [4, 6]:
            raise ListenersInvalid(
                f"{LISTENERS}: {_names(shared)} have the same port {port}: give each listener its "
                "own port; only one with an IPv4 and one with an IPv6 address can share one"
            )


def _ip_version(host: str) -> int:
    """Returns 4 or 6 for an address, and 0 for a name."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def _check_advertised(advertised: Sequence[Listener], bound: Sequence[Listener]) -> None:
    names = {each.name for each in bound}
    for each in advertised:
        if each.name not in names:
            raise ListenersInvalid(
                f"{ADVERTISED} has {each.name}, which is not in {LISTENERS} ({_names(bound)}): "
                "advertise only listeners that exist"
            )
        if each.host and each.host in _WILDCARDS:
            raise ListenersInvalid(
                f"{ADVERTISED}: no client can connect to {each.host}, which means every address: "
                f"write the host name that clients use for {each.name}"
            )


def _inter_broker(settings: Mapping[str, str], protocols: Mapping[str, SecurityProtocol]) -> str:
    name = settings.get(INTER_BROKER_NAME, "").strip().upper()
    protocol = settings.get(INTER_BROKER_PROTOCOL, "").strip()
    if name and protocol:
        raise ListenersInvalid(
            f"{INTER_BROKER_NAME} and {INTER_BROKER_PROTOCOL} are both set: set only one of them"
        )
    if name:
        if name not in protocols:
            raise ListenersInvalid(
                f"{INTER_BROKER_NAME} is {name}, which is not in {PROTOCOL_MAP}: add an entry"
            )
        return name
    if protocol and protocol not in SecurityProtocol.__members__:
        raise ListenersInvalid(
            f"{INTER_BROKER_PROTOCOL} is {protocol!r}; it must be one of "
            f"{', '.join(SecurityProtocol)}"
        )
    return protocol or SecurityProtocol.PLAINTEXT.value


def encode_endpoints(endpoints: Sequence[Listener]) -> list[dict[str, str | int]]:
    """Returns a broker's endpoints as values for JSON, for its registration in the store."""
    return [
        {
            "name": each.name,
            "host": each.host,
            "port": each.port,
            "protocol": each.protocol.value,
        }
        for each in endpoints
    ]


def decode_endpoints(value: object) -> tuple[Listener, ...]:
    """Returns the endpoints that `encode_endpoints` encoded. Raises `ListenersInvalid`.

    A broker of a later version may have written more fields. They are ignored.
    """
    if not isinstance(value, list) or len(value) > ENDPOINTS_MAX:
        raise ListenersInvalid("the endpoints of a broker are not a list")
    endpoints: dict[str, Listener] = {}
    for each in value:
        match each:
            case {"name": str(name), "host": str(host), "port": int(port), "protocol": str(text)}:
                pass
            case _:
                raise ListenersInvalid(f"{each!r} is not an endpoint of a broker")
        is_valid = (
            _NAME.fullmatch(name)
            and name not in endpoints
            and 1 <= len(host) <= _HOST_CHARS_MAX
            and type(port) is int
            and 1 <= port <= _PORT_MAX
            and text in SecurityProtocol.__members__
        )
        if not is_valid:
            raise ListenersInvalid(f"{each!r} is not an endpoint of a broker")
        endpoints[name] = Listener(name, host, port, SecurityProtocol(text))
    return tuple(endpoints.values())


def endpoint_for(endpoints: Sequence[Listener], name: str) -> Listener | None:
    """Returns the endpoint of a broker that belongs into the response to a request that came in on
    the listener `name`. None if the broker does not have that listener: then it is left out."""
    for each in endpoints:
        if each.name == name:
            return each
    return None


def missing_endpoint_error(metadata_version: int) -> ErrorCode:
    """Returns the error of a partition whose leader does not have the listener of the request."""
    if metadata_version >= LISTENER_NOT_FOUND_VERSION:
        return ErrorCode.LISTENER_NOT_FOUND
    return ErrorCode.LEADER_NOT_AVAILABLE
