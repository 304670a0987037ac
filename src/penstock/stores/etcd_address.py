"""The address of an etcd cluster, and our namespace in it, as one line of a config file.

    etcd://HOST[:PORT][,HOST[:PORT]...][/NAMESPACE][?OPTION=VALUE[&OPTION=VALUE...]]

All members are listed, so that any of them may be down. Clusters that share an etcd each have a
namespace, which is prefixed to every key. The options:

    ca=FILE             the connection uses TLS, and this authority has signed etcd's certificate
    cert=FILE&key=FILE  the connection presents this client certificate
    user=NAME           the broker logs in as this user of etcd
    password_file=FILE  the file with the user's password, or
    password_env=NAME   the environment variable with it

An address never contains the password itself, because addresses appear in config files, on command
lines and in error messages. For the same reason, errors show an address without its options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from penstock.security.addresses import is_loopback

SCHEME: Final = "etcd://"
DEFAULT_PORT: Final = 2379
_OPTIONS: Final = ("ca", "cert", "key", "user", "password_file", "password_env")
_SHAPE: Final = "etcd://HOST:PORT,HOST:PORT/NAMESPACE"
_LOGIN: Final = "?user=NAME&password_file=FILE, or ?user=NAME&password_env=VARIABLE"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """A parsed address. `namespace` is empty, or begins with a slash and does not end with one."""

    endpoints: tuple[str, ...]
    namespace: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    """Empty: no login. Otherwise exactly one of the next two is set."""
    password_file: str = ""
    password_env: str = ""

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(self.endpoints)}{self.namespace}"

    @property
    def is_local(self) -> bool:
        """Whether all members are on this machine."""
        return all(is_loopback(each.rpartition(":")[0].strip("[]")) for each in self.endpoints)


def is_etcd(text: str) -> bool:
    return text.startswith(SCHEME)


def parse_address(text: str) -> EtcdAddress:
    """Parses an address. Raises `ValueError` that says what is wrong and how it should look."""
    if not is_etcd(text):
        raise ValueError(f"{text!r} is not an etcd address: write {_SHAPE}")
    parts = urlsplit(text)
    _, at, hosts = parts.netloc.rpartition("@")
    shown = f"{SCHEME}{hosts}{parts.path}"
    if at:
        raise ValueError(
            f"{shown!r} has a user name or a password before its first member: write {_LOGIN}"
        )
    if parts.fragment:
        raise ValueError(f"{shown!r} has a # in its options: write %23 instead")
    names = [name for name in hosts.split(",") if name]
    if not names:
        raise ValueError(f"{shown!r} names no etcd member: write {_SHAPE}")
    endpoints = tuple(_endpoint(name, shown) for name in names)
    if len(set(endpoints)) != len(endpoints):
        raise ValueError(f"{shown!r} names a member twice: name each once")
    namespace = unquote(parts.path).strip("/")
    options = _options(parts.query, shown)
    return EtcdAddress(endpoints, f"/{namespace}" if namespace else "", **options)


def _endpoint(name: str, shown: str) -> str:
    host, colon, port = name.rpartition(":")
    if not colon or name.endswith("]"):
        host, port = name, str(DEFAULT_PORT)
    if host.startswith("[") is not host.endswith("]") or (":" in host and host[0] != "["):
        raise ValueError(f"{shown!r}: write the IPv6 address {name!r} in brackets, [::1]:2379")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
        raise ValueError(f"{shown!r}: {name!r} is not HOST:PORT; write {_SHAPE}")
    return f"{host}:{int(port)}"


def _options(query: str, shown: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, values in parse_qs(query, keep_blank_values=True).items():
        if name == "password":
            raise ValueError(
                f"{shown!r} contains a password, which others can read in the config file or the "
                f"list of processes: write {_LOGIN}"
            )
        if name not in _OPTIONS:
            raise ValueError(
                f"{shown!r}: there is no option {name!r}; the options are {', '.join(_OPTIONS)}"
            )
        if len(values) != 1 or not values[0]:
            raise ValueError(f"{shown!r}: option {name} must have one value")
        options[name] = values[0]
    if ("cert" in options) is not ("key" in options):
        raise ValueError(f"{shown!r}: cert and key belong together, give both")
    if "cert" in options and "ca" not in options:
        raise ValueError(
            f"{shown!r}: give ca too, the file with the CA certificate that verifies the server's"
        )
    passwords = ("password_file" in options) + ("password_env" in options)
    if passwords != ("user" in options):
        raise ValueError(
            f"{shown!r}: give user with either password_file or password_env, not both: write "
            f"{_LOGIN}"
        )
    return options
