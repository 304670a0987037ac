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
from penstock.metadata.kafka_only_configs import kafka_only_config
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
    ("broker.rack", _STRING, None, None, "Where this broker stands; replicas avoid sharing it."),
    ("listeners", _LIST, ("PLAINTEXT://:9092",), None, "The addresses this broker listens on."),
    (
        "advertised.listeners",
        _LIST,
        None,
        None,
        "The addresses clients are told; unset, those of listeners.",
    ),
    ("log.dir", _STRING, None, None, "The directory of the logs, when there is one."),
    ("log.dirs", _LIST, None, None, "The directories of the logs."),
    (
        "inter.broker.protocol.version",
        _STRING,
        "3.9-IV0",
        None,
        "The Kafka release brokers keep to; tools read it to learn what they may ask for.",
    ),
    ("broker.session.timeout.ms", _INT, 9000, 1, "How long a silent broker counts as alive."),
    (
        "broker.heartbeat.interval.ms",
        _INT,
        2000,
        1,
        "How often a broker renews its lease; at least three times in a session timeout.",
    ),
)

_REPLICATION: tuple[_Row, ...] = (
    ("replica.lag.time.max.ms", _LONG, 30_000, 1, "How long a replica may lag and stay in sync."),
    (
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        5_000,
        1,
        "How often high watermarks and synced offsets are noted on disk, for the next start.",
    ),
    (
        "replica.fetch.wait.max.ms",
        _INT,
        500,
        1,
        "How long a leader keeps a follower's fetch while there is nothing new.",
    ),
    (
        "replica.socket.timeout.ms",
        _INT,
        10_000,
        1,
        "How long a follower waits for an answer beyond replica.fetch.wait.max.ms.",
    ),
    ("replica.fetch.min.bytes", _INT, 1, 0, "What a follower's fetch waits for, in bytes."),
    (
        "replica.fetch.max.bytes",
        _INT,
        1 << 20,
        0,
        "The most a follower fetches of one partition at a time, larger batches aside.",
    ),
    (
        "replica.fetch.response.max.bytes",
        _INT,
        10 << 20,
        0,
        "The most one answer to a follower holds, larger batches aside.",
    ),
    (
        "replica.fetch.backoff.ms",
        _INT,
        1000,
        0,
        "How long a follower rests after a fetch of a partition has failed.",
    ),
    (
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        True,
        None,
        "Whether leadership goes back to a partition's preferred replica by itself.",
    ),
    (
        "leader.imbalance.check.interval.seconds",
        _LONG,
        300,
        1,
        "How often the preferred replicas are made leaders, beside soon after one has caught up.",
    ),
    (
        "controlled.shutdown.enable",
        _BOOLEAN,
        True,
        None,
        "Whether a broker that is told to stop hands its partitions over first.",
    ),
)

_THROTTLES: tuple[_Row, ...] = tuple(
    (
        f"{side}.replication.throttled.rate",
        _LONG,
        LONG_MAX,
        0,
        f"The bytes a second for the replicas in {side}.replication.throttled.replicas.",
    )
    for side in ("leader", "follower")
)

_CORDON: tuple[_Row, ...] = (
    (
        CORDONED,
        _LIST,
        (),
        None,
        "Directories that new partitions are not placed in; * for all. A broker has one here.",
    ),
)

_TOPICS: tuple[_Row, ...] = (
    ("auto.create.topics.enable", _BOOLEAN, True, None, "Whether asking for a topic creates it."),
    ("delete.topic.enable", _BOOLEAN, True, None, "Whether topics can be deleted."),
    ("num.partitions", _INT, 1, 1, "The partitions of a topic that is created without a number."),
    (
        "default.replication.factor",
        _INT,
        1,
        1,
        "The replicas of a topic that is created without a number.",
    ),
    (
        "log.retention.check.interval.ms",
        _LONG,
        300_000,
        1,
        "How often logs are checked for what retention lets go.",
    ),
    ("log.cleaner.enable", _BOOLEAN, True, None, "Whether compaction runs."),
    ("log.cleaner.backoff.ms", _LONG, 15_000, 0, "How long compaction rests when it is done."),
    (
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        128 << 20,
        1,
        "The memory compaction may use for the keys of one round.",
    ),
    (
        "producer.id.expiration.ms",
        _INT,
        86_400_000,
        1,
        "How long a partition remembers a producer that writes no more.",
    ),
)

_COORDINATORS: tuple[_Row, ...] = (
    ("offsets.topic.num.partitions", _INT, 50, 1, "The partitions of __consumer_offsets."),
    (
        "offsets.topic.replication.factor",
        _SHORT,
        3,
        1,
        "The replicas of __consumer_offsets; it is created when there are as many brokers.",
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
        "How often expired offsets are looked for.",
    ),
    ("offsets.commit.timeout.ms", _INT, 5000, 1, "How long an offset commit may take."),
    ("offset.metadata.max.bytes", _INT, 4096, 0, "The longest metadata beside an offset."),
    (
        "group.initial.rebalance.delay.ms",
        _INT,
        3000,
        0,
        "How long an empty group waits for more members after the first.",
    ),
    ("group.min.session.timeout.ms", _INT, 6000, 1, "The shortest session timeout allowed."),
    ("group.max.session.timeout.ms", _INT, 1_800_000, 1, "The longest session timeout allowed."),
    ("group.max.size", _INT, INT_MAX, 1, "The most members a group may have."),
    (
        "transaction.max.timeout.ms",
        _INT,
        900_000,
        1,
        "The longest a transaction may stay open.",
    ),
    (
        "transactional.id.expiration.ms",
        _INT,
        604_800_000,
        1,
        "How long an unused transactional id is remembered.",
    ),
    ("transaction.state.log.num.partitions", _INT, 50, 1, "The partitions of __transaction_state."),
    (
        "transaction.state.log.replication.factor",
        _SHORT,
        3,
        1,
        "The replicas of __transaction_state; it is created when there are as many brokers.",
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

_CONNECTIONS: tuple[_Row, ...] = (
    ("max.connections", _INT, INT_MAX, 0, "The most connections at one time."),
    ("max.connections.per.ip", _INT, INT_MAX, 0, "The most connections from one address."),
    ("connections.max.idle.ms", _LONG, 600_000, None, "When an idle connection is closed."),
    ("socket.request.max.bytes", _INT, 100 << 20, 1, "The largest request taken."),
    ("fetch.max.bytes", _INT, 55 << 20, 1024, "The most one fetch returns."),
    (
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        0,
        "How many fetch sessions are remembered.",
    ),
)


_SET_BY: Final = {
    "broker.id": "broker_id",
    "node.id": "broker_id",
    "broker.rack": "rack",
    "listeners": "host and port",
    "advertised.listeners": "advertised_host and advertised_port",
    "log.dir": "data_dir",
    "log.dirs": "data_dir",
}
"""Settings that describe a broker under Kafka's names, and the keys of its config file that set
them."""

_READ_EACH_TIME: Final = frozenset(
    (
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "max.connections",
        "max.connections.per.ip",
    )
)
"""Settings that can be changed while the broker runs, in addition to throttles, cordons and topic
defaults."""

_NO_EFFECT: Final = {
    "inter.broker.protocol.version": "tools read it, and no broker goes by it",
    "offsets.topic.compression.codec": "records in __consumer_offsets are never compressed",
}
"""Why some of these settings have no effect."""

_ROWS = _IDENTITY + _REPLICATION + _THROTTLES + _CORDON + _TOPICS + _COORDINATORS + _CONNECTIONS


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
    return f"What topics have that do not set {topic.name} themselves{scale}. {topic.doc}"


BROKER_CONFIGS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        each.name: each
        for each in sorted(
            [*map(_defined, _ROWS), *_derived()],
            key=lambda each: each.name,
        )
    }
)


def broker_definition(name: str) -> Definition | None:
    """Returns a broker config that is known here, or that Kafka knows and that has no effect here;
    None for any other name."""
    return BROKER_CONFIGS.get(name) or kafka_only_config(name)
