# ruff: noqa: RUF009 (`option` is `field` with a reader; nothing it returns is shared or changed)
"""The options of the clients: Kafka's names in Python spelling, parsed and validated once.

Each client has a frozen dataclass that defines its options: their defaults, how they are parsed and
what they mean. This is the only description of an option. `option_help` shows it in `help()`, and
the tables in docs/CLIENTS.md are written from it. Everything behind the constructors takes that
object and never a dict. `parse` makes one from keywords, which `option_keywords` declares for type
checkers.

Some defaults depend on other options, as in Java's client. Idempotence is turned off when other
options exclude it, unless `enable_idempotence` was given explicitly: then it is an error.
`delivery_timeout_ms` grows with `linger_ms` and `request_timeout_ms` unless it is given, and
`heartbeat_interval_ms` shrinks to a third of a short session timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, Self

from penstock.client import group_options, profiles
from penstock.client import option_hints as hints
from penstock.client import option_values as values
from penstock.client.address import Address
from penstock.client.cluster import ClusterConfig
from penstock.client.connection import ConnectionConfig
from penstock.client.errors import OptionError
from penstock.client.interceptors import ConsumerInterceptor, ProducerInterceptor
from penstock.client.option_values import (
    ACKS_ALL,
    INT32_MAX,
    GroupProtocol,
    IsolationLevel,
    ResetPolicy,
)
from penstock.client.routers import CallableRouter, DefaultRouter, Router
from penstock.client.security_options import (
    SecurityOptions,
    check_security,
    option,
    security_settings,
    warn_of_plain_passwords,
)
from penstock.records.batch import Codec

ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
IDEMPOTENT_IN_FLIGHT_MAX: Final = 5
"""A broker remembers this many batches per producer and partition to detect duplicates."""
_DELIVERY_TIMEOUT_MS: Final = 120_000
_HEARTBEAT_MS: Final = 3_000
PARTITION_FETCH_BYTES: Final = 1 << 20
"""The default limit on one partition's share of a fetch. Tables use a larger one."""
_MEMORY_MAX: Final = 1 << 40
_RESPONSE_SLACK: Final = 16 << 20
_LEVELS: Final[Mapping[Codec, tuple[int, int]]] = {
    Codec.GZIP: (1, 9),
    Codec.LZ4: (1, 17),
    Codec.ZSTD: (-131072, 22),
}


def _router(name: str, given: Any) -> Router:
    if isinstance(given, Router):
        return given
    if isinstance(given, type) or not callable(given):
        raise values.refused(name, given, "give a router, or a function (topic, key, count) -> int")
    return CallableRouter(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(SecurityOptions):
    """The options that every client has."""

    kind: ClassVar[str] = "any client"

    bootstrap: tuple[Address, ...] = option((), values.bootstrap, "")
    """The first argument of a constructor, and so not listed among its options."""
    client_id: str = option(
        "penstock", values.text, "The name of this client in the broker's logs and quotas."
    )
    request_timeout_ms: int = option(
        30_000, values.whole(1), "How long to wait for the response to one request."
    )
    retry_backoff_ms: int = option(
        100, values.whole(0), "How long to wait before the second attempt. Doubles, with jitter."
    )
    retry_backoff_max_ms: int = option(
        1_000, values.whole(0), "The longest wait between two attempts."
    )
    metadata_max_age_ms: int = option(
        300_000, values.whole(1), "Topics and leaders are looked up again at least this often."
    )
    socket_connection_setup_timeout_ms: int = option(
        10_000, values.whole(1), "How long a connection may take to open."
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            given = getattr(self, each.name)
            object.__setattr__(self, each.name, each.metadata["read"](each.name, given))
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            raise OptionError(
                f"retry_backoff_max_ms ({self.retry_backoff_max_ms}) is less than "
                f"retry_backoff_ms ({self.retry_backoff_ms}): raise it"
            )
        check_security(self)

    @classmethod
    def parse(cls, bootstrap_servers: str | Sequence[str], keywords: Mapping[str, Any]) -> Self:
        """Returns the options for a constructor's arguments, or raises `OptionError`.

        `profile:NAME` in place of an address takes both from a profile.
        """
        if isinstance(bootstrap_servers, str) and bootstrap_servers.startswith(profiles.PREFIX):
            profile = profiles.load(bootstrap_servers.removeprefix(profiles.PREFIX))
            bootstrap_servers = profile.bootstrap
            keywords = {**profile.options(), **keywords}
        known = cls.names()
        for name in keywords:
            if name not in known:
                others = {each.kind: each.names() for each in _ALL if each is not cls}
                raise hints.unknown(name, known, others)
        values.bootstrap("bootstrap_servers", bootstrap_servers)
        # mypy cannot match keywords from a mapping with fields of several types.
        options = cls(bootstrap=bootstrap_servers, **cls._completed(keywords))  # type: ignore[arg-type]
        warn_of_plain_passwords(options)
        return options

    @classmethod
    def names(cls) -> frozenset[str]:
        return frozenset(each.name for each in fields(cls)) - {"bootstrap"}

    @classmethod
    def _completed(cls, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keywords, completed with the defaults that depend on them."""
        return dict(keywords)

    def connection_config(self) -> ConnectionConfig:
        return ConnectionConfig(
            client_id=self.client_id,
            connect_timeout_s=self.socket_connection_setup_timeout_ms / 1000,
            request_timeout_s=self.request_timeout_ms / 1000,
            security=security_settings(self),
        )

    def cluster_config(self) -> ClusterConfig:
        return ClusterConfig(
            bootstrap=self.bootstrap,
            connection=self.connection_config(),
            deadline_s=self._deadline_ms() / 1000,
            retry_backoff_s=self.retry_backoff_ms / 1000,
            retry_backoff_max_s=self.retry_backoff_max_ms / 1000,
        )

    def _deadline_ms(self) -> int:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """The options of producers."""

    kind: ClassVar[str] = "producers"

    acks: int = option(
        ACKS_ALL,
        values.acks,
        'Which replicas acknowledge a batch: all in-sync ones ("all"), the leader (1), or '
        "none (0).",
        shown='"all"',
    )
    enable_idempotence: bool = option(
        True,
        values.flag,
        'Retries store each record once and keep the order. Off by default unless acks is "all".',
    )
    compression_type: Codec = option(
        Codec.NONE, values.codec, 'How batches are compressed: "gzip", "snappy", "lz4" or "zstd".'
    )
    compression_level: int | None = option(
        None,
        values.maybe(values.whole(-131072, 22)),
        "The level for gzip, lz4 or zstd. None is the codec's default.",
        kafka="compression.<codec>.level",
    )
    batch_size: int = option(
        16_384,
        values.whole(0),
        "The size of a partition's batch in bytes. A larger record gets a batch of its own.",
    )
    linger_ms: int = option(
        5, values.whole(0), "How long a batch that is not full waits for more records."
    )
    buffer_memory: int = option(
        32 << 20,
        values.whole(1, _MEMORY_MAX),
        "How many bytes of records may wait for their acknowledgement. Beyond it `send` waits.",
    )
    max_block_ms: int = option(
        60_000,
        values.whole(0),
        "How long `send` waits for buffer memory or for a topic's metadata before it fails.",
    )
    max_request_size: int = option(
        1 << 20, values.whole(1), "The largest request in bytes, and so the largest record."
    )
    max_in_flight_requests_per_connection: int = option(
        5, values.whole(1), "How many requests to one broker may be without a response."
    )
    delivery_timeout_ms: int = option(
        _DELIVERY_TIMEOUT_MS,
        values.whole(1),
        "How long a record is tried before its delivery fails, all waits and attempts included. "
        "At least `linger_ms` + `request_timeout_ms`.",
    )
    retries: int = option(
        INT32_MAX,
        values.whole(0),
        "How many attempts follow the first. Set `delivery_timeout_ms` instead.",
    )
    transactional_id: str | None = option(
        None,
        values.maybe(values.name_text),
        "Enables `transaction()`. A newer producer with the same id fences this one.",
    )
    transaction_timeout_ms: int = option(
        60_000, values.whole(1), "The broker aborts a transaction that is open for longer."
    )
    router: Router | None = option(
        None,
        values.maybe(_router),
        "Chooses the partition of records sent without one. None is `routers.DefaultRouter()`.",
        kafka="partitioner.class",
    )
    partitioner_ignore_keys: bool = option(
        False, values.flag, "The default router treats all records as if they had no key."
    )
    partitioner_adaptive_partitioning_enable: bool = option(
        True, values.flag, "The default router prefers partitions with less unsent data."
    )
    allow_auto_create_topics: bool = option(
        True, values.flag, "Lets the broker create topics that do not exist.", kafka=""
    )
    interceptors: tuple[ProducerInterceptor, ...] = option(
        (),
        values.objects("on_send", "producer interceptors"),
        "Objects that see each record before it is sent, and its outcome.",
        kafka="interceptor.classes",
    )

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)
        if self.enable_idempotence:
            self._check_idempotence()
        elif self.transactional_id is not None:
            raise OptionError("transactional_id needs enable_idempotence: do not set it to False")
        least_ms = min(self.linger_ms + self.request_timeout_ms, INT32_MAX)
        if self.delivery_timeout_ms < least_ms:
            raise OptionError(
                f"delivery_timeout_ms ({self.delivery_timeout_ms}) leaves no time for one attempt: "
                f"give at least linger_ms + request_timeout_ms = {least_ms}, or lower those"
            )
        if self.buffer_memory < self.batch_size:
            raise OptionError(
                f"buffer_memory ({self.buffer_memory}) is too small for one batch: "
                f"give at least batch_size = {self.batch_size}"
            )
        if self.compression_level is not None:
            self._check_level(self.compression_level)
        if self.router is not None and self.partitioner_ignore_keys:
            raise OptionError("partitioner_ignore_keys needs the default router: leave out router")

    def _check_idempotence(self) -> None:
        if self.acks != ACKS_ALL:
            raise OptionError(
                f'enable_idempotence needs acks="all", but acks is {self.acks}: change one of them'
            )
        if self.max_in_flight_requests_per_connection > IDEMPOTENT_IN_FLIGHT_MAX:
            raise OptionError(
                "enable_idempotence allows max_in_flight_requests_per_connection of at most "
                f"{IDEMPOTENT_IN_FLIGHT_MAX}, but it is "
                f"{self.max_in_flight_requests_per_connection}: lower it"
            )
        if not self.retries:
            raise OptionError("enable_idempotence needs retries, but retries is 0: raise it")

    def _check_level(self, level: int) -> None:
        if self.compression_type not in _LEVELS:
            name = self.compression_type.name.lower()
            raise OptionError(f'compression_type "{name}" has no compression_level: leave it out')
        least, most = _LEVELS[self.compression_type]
        values.whole(least, most)("compression_level", level)

    @classmethod
    def _completed(cls, keywords: Mapping[str, Any]) -> dict[str, Any]:
        completed = dict(keywords)
        if "enable_idempotence" not in keywords:
            in_flight = keywords.get("max_in_flight_requests_per_connection", 1)
            completed["enable_idempotence"] = (
                values.acks("acks", keywords.get("acks", "all")) == ACKS_ALL
                and not (isinstance(in_flight, int) and in_flight > IDEMPOTENT_IN_FLIGHT_MAX)
                and keywords.get("retries", 1) != 0
            )
        if "delivery_timeout_ms" not in keywords:
            wholes = [keywords.get("linger_ms", 5), keywords.get("request_timeout_ms", 30_000)]
            if all(isinstance(number, int) for number in wholes):
                least_ms = min(sum(wholes), INT32_MAX)
                completed["delivery_timeout_ms"] = max(_DELIVERY_TIMEOUT_MS, least_ms)
        return completed

    def make_router(self) -> Router:
        """Returns the router that these options specify."""
        return self.router or DefaultRouter(
            ignore_keys=self.partitioner_ignore_keys,
            adaptive=self.partitioner_adaptive_partitioning_enable,
        )

    def _deadline_ms(self) -> int:
        return self.max_block_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """The options of consumers."""

    kind: ClassVar[str] = "consumers"

    group_id: str | None = option(
        None,
        values.maybe(values.name_text),
        "The group that shares the partitions and stores the committed offsets.",
    )
    group_instance_id: str | None = option(
        None,
        values.maybe(values.name_text),
        "Identifies this member across restarts. If it is back within the session timeout, it "
        "keeps its partitions.",
    )
    group_protocol: GroupProtocol = option(
        values.CLASSIC,
        values.group_protocol,
        'What assigns partitions: a member of the group ("classic"), or the broker ("consumer", '
        "KIP-848).",
    )
    group_remote_assignor: str | None = option(
        None,
        values.maybe(values.name_text),
        'The broker\'s assignor, such as "uniform" or "range". None is the broker\'s default.',
    )
    client_rack: str = option(
        "", values.text, "Reads from a replica in this rack, if the broker offers one."
    )
    auto_offset_reset: ResetPolicy = option(
        ResetPolicy("latest"),
        values.reset_policy,
        'Where to begin without a committed offset: "earliest", "latest", "none" (an error), a '
        "datetime, or a timedelta before now.",
    )
    enable_auto_commit: bool = option(
        True, values.flag, "Commits positions automatically. Off without a group."
    )
    auto_commit_interval_ms: int = option(
        5_000, values.whole(0), "How often positions are committed automatically."
    )
    max_poll_records: int = option(
        500, values.whole(1), "How many records one `poll` returns at most."
    )
    max_poll_interval_ms: int = option(
        300_000, values.whole(1), "A member that does not poll for this long leaves the group."
    )
    session_timeout_ms: int = option(
        45_000, values.whole(1), "The group removes a member that sends no heartbeat for this long."
    )
    heartbeat_interval_ms: int = option(
        _HEARTBEAT_MS,
        values.whole(1),
        "How often heartbeats are sent. By default at most a third of the session timeout.",
    )
    rebalance_timeout_ms: int = option(
        300_000,
        values.whole(1),
        "How long a rebalance waits for this member. `max_poll_interval_ms` if that is given.",
        kafka="",
    )
    partition_assignment_strategy: tuple[Any, ...] = option(
        ("range", "cooperative-sticky"),
        values.strategies(ASSIGNORS),
        'How a group divides its partitions: "range", "roundrobin", "sticky" or '
        '"cooperative-sticky", in order of preference.',
    )
    fetch_min_bytes: int = option(
        1, values.whole(0), "A fetch waits until there are this many bytes."
    )
    fetch_max_bytes: int = option(
        50 << 20, values.whole(1), "A fetch returns no more bytes than this."
    )
    max_partition_fetch_bytes: int = option(
        PARTITION_FETCH_BYTES,
        values.whole(1),
        "A fetch returns no more bytes than this from one partition.",
    )
    fetch_max_wait_ms: int = option(
        500, values.whole(0), "A fetch waits no longer than this for `fetch_min_bytes`."
    )
    queued_bytes_max: int = option(
        64 << 20, values.whole(1, _MEMORY_MAX), "How many bytes are prefetched.", kafka=""
    )
    isolation_level: IsolationLevel = option(
        IsolationLevel.READ_UNCOMMITTED,
        values.isolation_level,
        '"read_committed" leaves out records of aborted and of open transactions.',
    )
    check_crcs: bool = option(
        True, values.flag, "Checks that records arrived as they were written."
    )
    allow_auto_create_topics: bool = option(
        True, values.flag, "Lets the broker create topics that do not exist."
    )
    exclude_internal_topics: bool = option(
        True, values.flag, "Patterns do not match internal topics."
    )
    default_api_timeout_ms: int = option(
        60_000,
        values.whole(1),
        "How long a call is tried before it fails, unless it has a timeout.",
    )
    interceptors: tuple[ConsumerInterceptor, ...] = option(
        (),
        values.objects("on_consume", "consumer interceptors"),
        "Objects that see the records of each poll, and the committed offsets.",
        kafka="interceptor.classes",
    )

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise OptionError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be less than "
                f"session_timeout_ms ({self.session_timeout_ms}), at best a third of it, so that "
                "one lost heartbeat does not end the membership"
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise OptionError("group_instance_id needs a consumer group: give group_id too")
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise OptionError(
                f"fetch_max_wait_ms ({self.fetch_max_wait_ms}) must be less than "
                f"request_timeout_ms ({self.request_timeout_ms}), or idle fetches time out"
            )

    @classmethod
    def _completed(cls, keywords: Mapping[str, Any]) -> dict[str, Any]:
        completed = dict(keywords)
        if "group_id" not in keywords and keywords.get("enable_auto_commit") is True:
            raise OptionError("enable_auto_commit needs a consumer group: give group_id too")
        if keywords.get("group_id") is None:
            completed["enable_auto_commit"] = False
        if "rebalance_timeout_ms" not in keywords and "max_poll_interval_ms" in keywords:
            completed["rebalance_timeout_ms"] = keywords["max_poll_interval_ms"]
        group_options.check_protocol(keywords)
        session_ms = keywords.get("session_timeout_ms")
        if "heartbeat_interval_ms" not in keywords and isinstance(session_ms, int):
            completed["heartbeat_interval_ms"] = max(min(_HEARTBEAT_MS, session_ms // 3), 1)
        return completed

    def connection_config(self) -> ConnectionConfig:
        base = ClientOptions.connection_config(self)
        # A response exceeds the requested size when its first batch alone is larger.
        largest = max(
            base.response_bytes_max, min(self.fetch_max_bytes + _RESPONSE_SLACK, INT32_MAX)
        )
        return replace(base, response_bytes_max=largest)

    def _deadline_ms(self) -> int:
        return self.default_api_timeout_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(ClientOptions):
    """The options of admin clients."""

    kind: ClassVar[str] = "admins"

    default_api_timeout_ms: int = option(
        60_000, values.whole(1), "How long a call is tried before it fails, all attempts included."
    )

    def _deadline_ms(self) -> int:
        return self.default_api_timeout_ms


_ALL: Final[tuple[type[ClientOptions], ...]] = (ProducerOptions, ConsumerOptions, AdminOptions)
