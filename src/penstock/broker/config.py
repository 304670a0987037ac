"""The configuration of a broker: a TOML file, or the options of `penstock up`.

The keys of the file are the fields of `BrokerConfig`. The table `[kafka]` accepts Kafka's broker
settings by their names (`"group.initial.rebalance.delay.ms" = 0`), and so does `--set` on the
command line. Everything is checked once, here. The error for an unknown name suggests the most
similar known one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final

from penstock.metadata.broker_configs import broker_definition
from penstock.metadata.configs import BROKER_CONFIGS, BrokerConfigs
from penstock.metadata.group_configs import check_bounds
from penstock.metadata.model import PLAINTEXT
from penstock.security.listener_security import ListenerSecurity, SecurityInvalid, parse_security
from penstock.security.listeners import (
    ADVERTISED,
    INTER_BROKER_NAME,
    INTER_BROKER_PROTOCOL,
    LISTENERS,
    PROTOCOL_MAP,
    Listener,
    Listeners,
    ListenersInvalid,
    SecurityProtocol,
    parse_listeners,
)
from penstock.stores import zk_address
from penstock.stores.etcd_address import EtcdAddress, is_etcd, parse_address


class LogFormat(StrEnum):
    HUMAN = "human"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_PRINCIPAL_BUILDER: Final = "principal.builder.class"
METRICS_AUTO: Final = "auto"
METRICS_OFF: Final = "off"
METRICS_OFFSET: Final = 1000
"""With `metrics = auto`, the metrics port is the broker's port plus this."""
_AT_LEAST_ONE: Final = (
    "connections_max",
    "request_bytes_max",
    "flush_threads",
    "open_files_max",
    "metrics_topics_max",
    "metrics_groups_max",
)


class ConfigError(ValueError):
    """The configuration is invalid. The message names the key and says what to write."""


def _key(default: Any, doc: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    broker_id: int = _key(0, "This broker's number, unique in the cluster.")
    host: str = _key("127.0.0.1", "The address to listen on; 0.0.0.0 for all.")
    port: int = _key(9092, "The port to listen on; 0 picks a free one.")
    advertised_host: str = _key(
        "", "The address that clients connect to; empty: the address listened on."
    )
    advertised_port: int = _key(0, "The port that clients connect to; 0: the port listened on.")
    data_dir: str = _key("penstock-data/broker-0", "The directory of the logs.")
    store: str = _key(
        "",
        "The metadata store: a SQLite file if all brokers run on one machine (empty: one in "
        "data_dir), or etcd://HOST:2379,HOST:2379/NAMESPACE?ca=FILE&user=NAME&password_file=FILE, "
        "or zk://HOST:2181,HOST:2181/NAMESPACE with the same options.",
    )
    rack: str = _key(
        "", "The rack or zone of this broker, to spread replicas and read from near ones."
    )
    connections_max: int = _key(
        10_000, "Connections in total; further ones are closed immediately."
    )
    connections_per_address_max: int = _key(5_000, "Connections from one IP address.")
    request_bytes_max: int = _key(100 << 20, "The largest request, in bytes.")
    bytes_in_flight_max: int = _key(
        512 << 20,
        "Memory for requests, and for responses that clients have not received yet, in bytes over "
        "all connections. A quarter is for responses, a quarter for large requests that are still "
        "arriving.",
    )
    idle_timeout_s: float = _key(600.0, "Connections without traffic for this long are closed.")
    open_files_max: int = _key(1_000, "Log files held open at the same time.")
    disk_reserve_bytes: int = _key(256 << 20, "Appends are refused when less than this is free.")
    flush_threads: int = _key(4, "Threads for fsync and other blocking disk operations.")
    session_timeout_s: float = _key(
        0.0,
        "The cluster considers this broker dead if its lease is not renewed for this long; 0: "
        "Kafka's broker.session.timeout.ms, 9 s by default.",
    )
    scrub_bytes_per_s: int = _key(
        4 << 20,
        "How fast stored logs are read again to look for damage, in bytes per second; 0: never.",
    )
    metrics: str = _key(
        "auto",
        "The HTTP address of metrics and health checks, HOST:PORT; auto: 127.0.0.1 with the "
        "broker's port plus 1000, or with any free port if that one is in use; off: none.",
    )
    metrics_token_file: str = _key(
        "",
        "The file with the token that requests for metrics need, as Authorization: Bearer TOKEN. "
        "Needed if other machines can reach the address, unless the environment variable "
        "PENSTOCK_METRICS_TOKEN has it. A new token is used without a restart.",
    )
    metrics_keystore: str = _key(
        "",
        "A PEM file with a key and its certificates: metrics and health checks use TLS. A new "
        "certificate is used without a restart.",
    )
    metrics_topics_max: int = _key(
        1_000, "Topics with their own metrics; all others are summed up."
    )
    metrics_groups_max: int = _key(
        1_000,
        "Pairs of group and topic with their own lag metrics, those furthest behind first; all "
        "others are summed up.",
    )
    log_format: str = _key("human", "How log lines are written to standard error: human or json.")
    log_level: str = _key("info", "The lowest level that is logged: debug, info, warning or error.")
    kafka: tuple[tuple[str, str], ...] = _key(
        (), "Kafka's broker settings, by their names.", secret=True
    )

    def __post_init__(self) -> None:
        if self.broker_id < 0:
            raise ConfigError(f"broker_id is {self.broker_id}: it must be 0 or more")
        for name in ("port", "advertised_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be 0 to 65535")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.scrub_bytes_per_s < 0:
            raise ConfigError(
                f"scrub_bytes_per_s is {self.scrub_bytes_per_s}: it must be 0 or more"
            )
        if not self.session_timeout_s >= 0:
            raise ConfigError(
                f"session_timeout_s is {self.session_timeout_s}: it must be 0 or more"
            )
        for name, _ in self.kafka:
            definition = broker_definition(name)
            if definition is None:
                raise ConfigError(_unknown(name, BROKER_CONFIGS))
            if definition.set_by:
                raise ConfigError(f"{name} cannot be set directly: set {definition.set_by} instead")
        self._check_store()
        self._check_listeners()
        _ = self.metrics_address
        for name, known in (("log_format", LogFormat), ("log_level", LogLevel)):
            if getattr(self, name) not in tuple(known):
                choices = ", ".join(known)
                raise ConfigError(f"{name} is {getattr(self, name)!r}: write one of {choices}")
        try:
            check_bounds(BrokerConfigs(static=dict(self.kafka)))
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _check_store(self) -> None:
        is_zookeeper = zk_address.is_zookeeper(self.store)
        if not is_etcd(self.store) and not is_zookeeper:
            if "://" in self.store:
                # Only the beginning: the rest may contain a password.
                scheme = self.store.partition("://")[0]
                raise ConfigError(
                    f"store begins with {scheme + '://'!r}: write a path, etcd://HOST:PORT or "
                    "zk://HOST:PORT"
                )
            return
        try:
            if is_zookeeper:
                zk_address.parse_address(self.store)
            else:
                parse_address(self.store)
        except ValueError as error:
            raise ConfigError(f"store: {error}") from error

    def _check_listeners(self) -> None:
        settings = dict(self.kafka)
        if LISTENERS in settings and (self.advertised_host or self.advertised_port):
            raise ConfigError(
                f"{LISTENERS} cannot be combined with advertised_host or advertised_port: replace "
                f"these two with {ADVERTISED}"
            )
        for name in (ADVERTISED, PROTOCOL_MAP, INTER_BROKER_NAME, INTER_BROKER_PROTOCOL):
            # Without `listeners`, the only one is in plain text, whatever these settings say.
            if name in settings and LISTENERS not in settings:
                raise ConfigError(f"{name} is set without {LISTENERS}: set {LISTENERS} too")
        try:
            security = self.listener_security
        except (ListenersInvalid, SecurityInvalid) as error:
            raise ConfigError(str(error)) from error
        self._check_used("ssl.", "TLS", any(each.tls for each in security.values()))
        self._check_used("sasl.", "SASL", any(each.sasl for each in security.values()))
        builder = settings.get(_PRINCIPAL_BUILDER, "")
        if builder and not builder.startswith("org.apache.kafka."):
            raise ConfigError(
                f"{_PRINCIPAL_BUILDER} names a Java class, which this broker cannot run, so "
                "clients would get other users than in Kafka: remove the setting"
            )

    def _check_used(self, prefix: str, what: str, is_used: bool) -> None:
        """Refuses settings that ask for security, if no listener has it."""
        for name, _ in self.kafka:
            definition = broker_definition(name)
            if is_used or not name.startswith(prefix) or (definition and definition.no_effect):
                continue
            raise ConfigError(
                f"{name} has no effect, because no listener uses {what}: add such a listener "
                f"to {LISTENERS} and {PROTOCOL_MAP}, or remove the setting"
            )

    @property
    def listeners(self) -> Listeners:
        """The listeners: those in Kafka's setting, or else one for host and port, in plain text."""
        settings = dict(self.kafka)
        if LISTENERS in settings:
            return parse_listeners(settings)
        plain = Listener(PLAINTEXT, self.host, self.port, SecurityProtocol.PLAINTEXT)
        told = replace(plain, host=self.advertised_host or self.host, port=self.advertised_port)
        return Listeners((plain,), (told,), PLAINTEXT)

    @property
    def listener_security(self) -> Mapping[str, ListenerSecurity]:
        """The security settings of each listener, by its name."""
        return parse_security(dict(self.kafka), self.listeners.bound)

    @property
    def main_port(self) -> int:
        """The port of the first listener; 0 for any free one."""
        return self.listeners.bound[0].port

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """The address of the metrics endpoint; None if it is off. Port 0 means any free port."""
        if self.metrics == METRICS_OFF:
            return None
        if self.metrics == METRICS_AUTO:
            port = self.main_port + METRICS_OFFSET if self.main_port else 0
            return "127.0.0.1", port if port <= 65535 else 0
        host, _, port_text = self.metrics.rpartition(":")
        if not host or not port_text.isascii() or not port_text.isdigit():
            raise ConfigError(f"metrics is {self.metrics!r}: write HOST:PORT, auto or off")
        if int(port_text) > 65535:
            raise ConfigError(f"metrics: the port is {port_text}: it must be 0 to 65535")
        return host.removeprefix("[").removesuffix("]"), int(port_text)

    @property
    def without_effect(self) -> list[str]:
        """The settings in the `[kafka]` table that have no effect in Penstock."""
        known = [(name, broker_definition(name)) for name, _ in self.kafka]
        return [name for name, definition in known if definition and definition.no_effect]

    @property
    def store_path(self) -> str:
        """The path of the SQLite file, or the address of the store."""
        return self.store or f"{self.data_dir}/metadata.db"

    @property
    def etcd(self) -> EtcdAddress | None:
        """The address of the etcd store; None if the store is SQLite."""
        return parse_address(self.store) if is_etcd(self.store) else None

    def with_overrides(self, overrides: Mapping[str, str]) -> BrokerConfig:
        """Returns a copy with some settings changed, by field name or by Kafka's name."""
        changed: dict[str, Any] = {}
        kafka = dict(self.kafka)
        types = {key.name: type(getattr(self, key.name)) for key in fields(self)}
        for name, text in overrides.items():
            if broker_definition(name) is not None:
                kafka[name] = text
            elif name in types and name != "kafka":
                changed[name] = _convert(name, text, types[name])
            else:
                raise ConfigError(_unknown(name, [*types, *BROKER_CONFIGS]))
        return replace(self, **changed, kafka=tuple(kafka.items()))


def load_config(path: str) -> BrokerConfig:
    """Reads a TOML file."""
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    kafka = values.pop("kafka", {})
    known = {key.name: type(key.default) for key in fields(BrokerConfig)}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"{path}: {_unknown(name, known)}")
        right = isinstance(value, known[name]) or (known[name] is float and type(value) is int)
        if not right or (isinstance(value, bool) and known[name] is not bool):
            raise ConfigError(
                f"{path}: {name} must be of type {known[name].__name__}, not {value!r}"
            )
    if not isinstance(kafka, dict):
        raise ConfigError(f"{path}: [kafka] must be a table of Kafka's settings")
    pairs = tuple((name, _text(value)) for name, value in kafka.items())
    return BrokerConfig(**values, kafka=pairs)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _convert(name: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise ConfigError(f"{name} must be of type {kind.__name__}, not {text!r}") from error


def _unknown(name: str, known: Mapping[str, object] | list[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    hint = f": did you mean {near[0]}?" if near else "; `penstock broker --print-config` lists all"
    return f"there is no setting {name!r}{hint}"
