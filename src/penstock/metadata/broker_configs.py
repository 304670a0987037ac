"""Broker configs under Kafka's names, for Kafka's tools.

There are two parts. The defaults of topic configs are derived from the topic table, under the names
that Kafka uses for them on brokers (`log.retention.ms` for `retention.ms`). They can be changed
while the broker runs. So can the replication throttles, the pace of compaction, and whether new
partitions are placed on this broker (KIP-1066). The other part describes the broker. It comes from
the config file and is read-only.

Every setting is either used by some code, or states that it has no effect (`no_effect`), or only
shows the value of a key of the config file (`set_by`). `tests/metadata/test_config_effects.py`
checks this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from penstock.metadata.access_configs import ACCESS_CONFIGS, AUDIT_CONFIGS, TOKEN_CONFIGS
from penstock.metadata.config_types import (
    INT_MAX,
    LONG_MAX,
    Check,
    ConfigType,
    Definition,
    Synonym,
    Value,
    at_least,
)
from penstock.metadata.connection_configs import CONNECTION_CONFIGS
from penstock.metadata.consumer_group_configs import CONSUMER_GROUP_CONFIGS
from penstock.metadata.dead_letter_configs import DEAD_LETTER_BROKER_CONFIGS
from penstock.metadata.kafka_only_configs import kafka_only_config
from penstock.metadata.share_coordinator_configs import SHARE_COORDINATOR_CONFIGS
from penstock.metadata.share_group_configs import SHARE_GROUP_CONFIGS
from penstock.metadata.share_session_configs import SHARE_SESSION_CONFIGS
from penstock.metadata.topic_configs import TOPIC_CONFIGS

_BOOLEAN = ConfigType.BOOLEAN
_STRING = ConfigType.STRING
_INT = ConfigType.INT
_SHORT = ConfigType.SHORT
_LONG = ConfigType.LONG
_LIST = ConfigType.LIST

CORDONED: Final = "cordoned.log.dirs"
DEFAULT_DURABILITY: Final = "log.durability"

# name, type, default, minimum of a number, description
_Row = tuple[str, ConfigType, Value, int | None, str]

_IDENTITY: tuple[_Row, ...] = (
    ("broker.id", _INT, -1, -1, "The id of this broker, under Kafka's older name."),
    ("node.id", _INT, -1, -1, "The id of this broker."),
    (
        "broker.rack",
        _STRING,
        None,
        None,
        "The rack of this broker. Replicas of a partition are spread over racks.",
    ),
    (
        "listeners",
        _LIST,
        ("PLAINTEXT://:9092",),
        None,
        "The addresses that this broker listens on.",
    ),
    (
        "advertised.listeners",
        _LIST,
        None,
        None,
        "The addresses that clients connect to. If unset, those in listeners.",
    ),
    ("log.dir", _STRING, None, None, "The directory for the logs, if there is only one."),
    ("log.dirs", _LIST, None, None, "The directories for the logs."),
    (
        "inter.broker.protocol.version",
        _STRING,
        "3.9-IV0",
        None,
        "The Kafka release that brokers follow; tools read it to learn what they can request.",
    ),
    (
        "broker.session.timeout.ms",
        _INT,
        9000,
        1,
        "How long a broker counts as alive without renewing its lease.",
    ),
    (
        "broker.heartbeat.interval.ms",
        _INT,
        2000,
        1,
        "How often a broker renews its lease; at least three times per session timeout.",
    ),
)

_REPLICATION: tuple[_Row, ...] = (
    (
        "replica.lag.time.max.ms",
        _LONG,
        30_000,
        1,
        "How long a replica may lag behind the leader and stay in the ISR.",
    ),
    (
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        5_000,
        1,
        "How often high watermarks and synced offsets are written to disk, for the next start.",
    ),
    (
        "replica.fetch.wait.max.ms",
        _INT,
        500,
        1,
        "How long a leader waits for new data before it answers a follower's fetch.",
    ),
    (
        "replica.socket.timeout.ms",
        _INT,
        10_000,
        1,
        "How long a follower waits for a response, in addition to replica.fetch.wait.max.ms.",
    ),
    ("replica.fetch.min.bytes", _INT, 1, 0, "How many bytes a follower's fetch waits for."),
    (
        "replica.fetch.max.bytes",
        _INT,
        1 << 20,
        0,
        "The maximum bytes of one partition in a follower's fetch; one batch may be larger.",
    ),
    (
        "replica.fetch.response.max.bytes",
        _INT,
        10 << 20,
        0,
        "The maximum number of bytes in one response to a follower; one batch may be larger.",
    ),
    (
        "replica.fetch.backoff.ms",
        _INT,
        1000,
        0,
        "How long a follower waits after it failed to fetch a partition.",
    ),
    (
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        True,
        None,
        "Whether leadership returns to a partition's preferred replica automatically.",
    ),
    (
        "leader.imbalance.check.interval.seconds",
        _LONG,
        300,
        1,
        "How often preferred replicas become leaders; they also do soon after they caught up.",
    ),
    (
        "controlled.shutdown.enable",
        _BOOLEAN,
        True,
        None,
        "Whether a broker hands over its partitions before it stops.",
    ),
)

_THROTTLES: tuple[_Row, ...] = tuple(
    (
        f"{side}.replication.throttled.rate",
        _LONG,
        LONG_MAX,
        0,
        f"The bytes per second for the replicas in {side}.replication.throttled.replicas.",
    )
    for side in ("leader", "follower")
)

_CORDON: tuple[_Row, ...] = (
    (
        CORDONED,
        _LIST,
        (),
        None,
        "Directories that get no new partitions; * for all. A Penstock broker has only one.",
    ),
)

_TOPICS: tuple[_Row, ...] = (
    (
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        None,
        "Whether a request for a topic that does not exist creates it.",
    ),
    ("delete.topic.enable", _BOOLEAN, True, None, "Whether topics can be deleted."),
    (
        "num.partitions",
        _INT,
        1,
        1,
        "The number of partitions of a topic that is created without one.",
    ),
    (
        "default.replication.factor",
        _INT,
        1,
        1,
        "The number of replicas of a topic that is created without one.",
    ),
    (
        "log.retention.check.interval.ms",
        _LONG,
        300_000,
        1,
        "How often retention looks for segments to delete.",
    ),
    ("log.cleaner.enable", _BOOLEAN, True, None, "Whether compaction runs."),
    (
        "log.cleaner.backoff.ms",
        _LONG,
        15_000,
        0,
        "How long compaction waits when there is nothing left to do.",
    ),
    (
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        128 << 20,
        1,
        "The maximum memory that one round of compaction may use for keys.",
    ),
    (
        "producer.id.expiration.ms",
        _INT,
        86_400_000,
        1,
        "How long a partition remembers a producer that no longer writes.",
    ),
)

_COORDINATORS: tuple[_Row, ...] = (
    (
        "offsets.topic.num.partitions",
        _INT,
        50,
        1,
        "The number of partitions of __consumer_offsets.",
    ),
    (
        "offsets.topic.replication.factor",
        _SHORT,
        3,
        1,
        "The replica count of __consumer_offsets; it is created once there are as many brokers.",
    ),
    ("offsets.topic.segment.bytes", _INT, 100 << 20, 1, "segment.bytes of __consumer_offsets."),
    (
        "offsets.topic.compression.codec",
        _INT,
        0,
        0,
        "The compression of records in __consumer_offsets, by number; 0 is none.",
    ),
    (
        "offsets.retention.minutes",
        _INT,
        10_080,
        1,
        "How long the offsets of a group without members are kept.",
    ),
    (
        "offsets.retention.check.interval.ms",
        _LONG,
        600_000,
        1,
        "How often expired offsets are removed.",
    ),
    ("offsets.commit.timeout.ms", _INT, 5000, 1, "How long an offset commit may take."),
    (
        "offset.metadata.max.bytes",
        _INT,
        4096,
        0,
        "The longest metadata that may be committed with an offset.",
    ),
    (
        "group.initial.rebalance.delay.ms",
        _INT,
        3000,
        0,
        "How long an empty group waits for more members after the first has joined.",
    ),
    (
        "group.min.session.timeout.ms",
        _INT,
        6000,
        1,
        "The shortest session timeout that a member may have.",
    ),
    (
        "group.max.session.timeout.ms",
        _INT,
        1_800_000,
        1,
        "The longest session timeout that a member may have.",
    ),
    ("group.max.size", _INT, INT_MAX, 1, "The maximum number of members of a group."),
    (
        "transaction.max.timeout.ms",
        _INT,
        900_000,
        1,
        "The longest timeout that a transaction may have.",
    ),
    (
        "transactional.id.expiration.ms",
        _INT,
        604_800_000,
        1,
        "How long an unused transactional id is remembered.",
    ),
    (
        "transaction.state.log.num.partitions",
        _INT,
        50,
        1,
        "The number of partitions of __transaction_state.",
    ),
    (
        "transaction.state.log.replication.factor",
        _SHORT,
        3,
        1,
        "The replica count of __transaction_state; it is created once there are as many brokers.",
    ),
    ("transaction.state.log.min.isr", _INT, 2, 1, "min.insync.replicas of __transaction_state."),
    (
        "transaction.state.log.segment.bytes",
        _INT,
        100 << 20,
        1,
        "segment.bytes of __transaction_state.",
    ),
)

_ENCRYPTION: tuple[_Row, ...] = (
    (
        "encryption.key.provider",
        _STRING,
        "",
        None,
        "Where the keys of encrypted topics are: file:PATH, command:PATH or vault:URL.",
    ),
    (
        "encryption.vault.token.file",
        _STRING,
        "",
        None,
        "The file with the broker's token for Vault. Empty: the environment variable VAULT_TOKEN.",
    ),
    (
        "encryption.vault.ca.file",
        _STRING,
        "",
        None,
        "The PEM file with the CA certificates to trust for Vault. Empty: those of the system.",
    ),
)

_SET_BY: Final = {
    "broker.id": "broker_id",
    "node.id": "broker_id",
    "broker.rack": "rack",
    "log.dir": "data_dir",
    "log.dirs": "data_dir",
}
"""Settings that describe a broker under Kafka's names, and the keys of its config file that set
them."""

_READ_EACH_TIME: Final = frozenset(("log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size"))
"""Settings that can be changed while the broker runs, in addition to throttles, cordons, limits of
connections and topic defaults."""

_NO_EFFECT: Final = {
    "inter.broker.protocol.version": "tools read it, and brokers ignore it",
    "offsets.topic.compression.codec": "records in __consumer_offsets are never compressed",
}
"""Why some of these settings have no effect."""

_ROWS = _IDENTITY + _REPLICATION + _THROTTLES + _CORDON + _TOPICS + _COORDINATORS + _ENCRYPTION

_ELSEWHERE: Final = (
    *ACCESS_CONFIGS,
    *AUDIT_CONFIGS,
    *CONNECTION_CONFIGS,
    *CONSUMER_GROUP_CONFIGS,
    *DEAD_LETTER_BROKER_CONFIGS,
    *SHARE_GROUP_CONFIGS,
    *SHARE_COORDINATOR_CONFIGS,
    *SHARE_SESSION_CONFIGS,
    *TOKEN_CONFIGS,
)


def _defined(row: _Row) -> Definition:
    name, kind, default, least, doc = row
    check = None if least is None else at_least(least)
    return Definition(
        name,
        kind,
        default,
        doc,
        check,
        dynamic=row in _THROTTLES + _CORDON or name in _READ_EACH_TIME,
        no_effect=_NO_EFFECT.get(name, ""),
        set_by=_SET_BY.get(name, ""),
    )


def _derived() -> Iterator[Definition]:
    """Yields the broker config for each topic config's default. If there are several units, the
    largest unit has the default."""
    for topic in TOPIC_CONFIGS.values():
        for synonym in topic.synonyms:
            has_default = synonym is topic.synonyms[-1]
            default = topic.default if has_default else None
            if has_default and synonym.unit != 1:
                assert isinstance(topic.default, int)
                default = topic.default // synonym.unit
            yield Definition(
                synonym.name,
                topic.type if synonym.unit == 1 else _INT,
                default,
                _derived_doc(topic, synonym),
                _scaled_check(topic, synonym),
                dynamic=synonym.unit == 1,
                no_effect=topic.no_effect,
            )


def _scaled_check(topic: Definition, synonym: Synonym) -> Check | None:
    check = topic.check
    if check is None or synonym.unit == 1:
        return check
    return lambda value: check(synonym.scaled(value))


def _derived_doc(topic: Definition, synonym: Synonym) -> str:
    unit = synonym.name.rpartition(".")[2]
    scale = "" if synonym.unit == 1 else f", in {unit}"
    return f"The default for topics that do not set {topic.name}{scale}. {topic.doc}"


BROKER_CONFIGS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        each.name: each
        for each in sorted(
            [*map(_defined, _ROWS), *_ELSEWHERE, *_derived()],
            key=lambda each: each.name,
        )
    }
)


def broker_definition(name: str) -> Definition | None:
    """Returns a broker config that is known here, or that Kafka knows and that has no effect here;
    None for any other name."""
    return BROKER_CONFIGS.get(name) or kafka_only_config(name)
