"""The address of an etcd cluster, and our namespace in it, as one line of a config file.

    etcd://HOST[:PORT][,HOST[:PORT]...][/NAMESPACE][?ca=FILE[&cert=FILE&key=FILE]]

All members are listed, so that any of them may be down. Clusters that share an etcd each have a
namespace, which is prefixed to every key. With `ca` the connection uses TLS, and with `cert` and
`key` it presents a client certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

SCHEME: Final = "etcd://"
DEFAULT_PORT: Final = 2379
_OPTIONS: Final = ("ca", "cert", "key")
_SHAPE: Final = "etcd://HOST:PORT,HOST:PORT/NAMESPACE"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """A parsed address. `namespace` is empty, or begins with a slash and does not end with one."""

    endpoints: tuple[str, ...]
    namespace: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(self.endpoints)}{self.namespace}"


def is_etcd(text: str) -> bool:
    return text.startswith(SCHEME)


def parse_address(text: str) -> EtcdAddress:
    """Parses an address. Raises `ValueError` that says what is wrong and how it should look."""
    if not is_etcd(text):
        raise ValueError(f"{text!r} is not an etcd address: write {_SHAPE}")
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise ValueError(
            f"{text!r} has a user name: identify this broker to etcd with a certificate instead, "
            "?ca=FILE&cert=FILE&key=FILE"
        )
    names = [name for name in parts.netloc.split(",") if name]
    if not names:
        raise ValueError(f"{text!r} names no etcd member: write {_SHAPE}")
    endpoints = tuple(_endpoint(name, text) for name in names)
    if len(set(endpoints)) != len(endpoints):
        raise ValueError(f"{text!r} names a member twice: name each once")
    namespace = unquote(parts.path).strip("/")
    options = _options(parts.query, text)
    return EtcdAddress(endpoints, f"/{namespace}" if namespace else "", **options)


def _endpoint(name: str, text: str) -> str:
    host, colon, port = name.rpartition(":")
    if not colon or name.endswith("]"):
        host, port = name, str(DEFAULT_PORT)
    if host.startswith("[") is not host.endswith("]") or (":" in host and host[0] != "["):
        raise ValueError(f"{text!r}: write the IPv6 address {name!r} in brackets, [::1]:2379")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
        raise ValueError(f"{text!r}: {name!r} is not HOST:PORT; write {_SHAPE}")
    return f"{host}:{int(port)}"


def _options(query: str, text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, values in parse_qs(query, keep_blank_values=True).items():
        if name not in _OPTIONS:
            raise ValueError(
                f"{text!r}: there is no option {name!r}; the options are ca, cert and key"
            )
        if len(values) != 1 or not values[0]:
            raise ValueError(f"{text!r}: option {name} must name one file")
        options[name] = values[0]
    if ("cert" in options) is not ("key" in options):
        raise ValueError(f"{text!r}: cert and key belong together, give both")
    if "cert" in options and "ca" not in options:
        raise ValueError(
            f"{text!r}: give ca too, the file with the CA certificate that verifies etcd's own"
        )
    return options
