"""Every topic config that is known here, with Kafka's names and Kafka's defaults.

Penstock's own configs are `durability`, `encryption` and those in `queue_configs`. Configs that
Kafka has and this table has not (old message formats) are refused by name, so that a user does not
believe they are in force.

The configs of tiered storage are known, because tools that copy a topic's configs to another
cluster send all of them. As on a Kafka broker without tiered storage, enabling it is refused; the
other configs can be set and have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.metadata.config_types import (
    LONG_MAX,
    ConfigType,
    Definition,
    Synonym,
    any_of,
    at_least,
    between,
    key_name,
    one_of,
    only,
    throttled_replicas,
)
from penstock.metadata.dead_letter_configs import DEAD_LETTER_TOPIC_CONFIGS
from penstock.metadata.delay_configs import DELAY_CONFIGS
from penstock.metadata.queue_configs import QUEUE_CONFIGS

NOT_ENCRYPTED: Final = "none"
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS

_LIFETIME = (
    Definition(
        "cleanup.policy",
        ConfigType.LIST,
        ("delete",),
        "What happens to old records. delete removes whole segments by age and size; compact "
        "keeps the newest record of each key; both can be combined. Empty keeps every record "
        "forever.",
        any_of("delete", "compact"),
        (Synonym("log.cleanup.policy"),),
    ),
    Definition(
        "retention.ms",
        ConfigType.LONG,
        7 * _DAY_MS,
        "How long a segment is kept after the time of its newest record, with "
        "cleanup.policy=delete; -1 keeps it forever.",
        at_least(-1),
        (
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", _MINUTE_MS),
            Synonym("log.retention.hours", _HOUR_MS),
        ),
    ),
    Definition(
        "retention.bytes",
        ConfigType.LONG,
        -1,
        "How large a partition may grow before its oldest segments are deleted, with "
        "cleanup.policy=delete; -1 means no limit.",
        at_least(-1),
        (Synonym("log.retention.bytes"),),
    ),
    Definition(
        "file.delete.delay.ms",
        ConfigType.LONG,
        60_000,
        "How long the files of a deleted segment stay on disk, for readers that still use them.",
        at_least(0),
        (Synonym("log.segment.delete.delay.ms"),),
        no_effect="files are deleted immediately, and a reader that has one open can finish",
    ),
    Definition(
        "delete.retention.ms",
        ConfigType.LONG,
        _DAY_MS,
        "How long compaction keeps a tombstone, so that readers learn that the key was deleted.",
        at_least(0),
        (Synonym("log.cleaner.delete.retention.ms"),),
    ),
    Definition(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        0,
        "The shortest time that a record stays uncompacted after it was written.",
        at_least(0),
        (Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    Definition(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        LONG_MAX,
        "The longest time that a record may stay uncompacted, even if there is little to clean.",
        at_least(1),
        (Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    Definition(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        0.5,
        "The share of a compacted partition that must be uncompacted before a round of "
        "compaction begins.",
        between(0, 1),
        (Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
)

_SEGMENTS = (
    Definition(
        "segment.bytes",
        ConfigType.INT,
        1 << 30,
        "The size at which a segment is closed and the next one begins. Retention and "
        "compaction work on closed segments.",
        # Kafka 3's minimum. Kafka 4 requires a mebibyte, which only hinders tests.
        at_least(14),
        (Synonym("log.segment.bytes"),),
    ),
    Definition(
        "segment.ms",
        ConfigType.LONG,
        7 * _DAY_MS,
        "The age at which a segment is closed even if it is not full.",
        at_least(1),
        (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    ),
    Definition(
        "segment.jitter.ms",
        ConfigType.LONG,
        0,
        "The maximum time that is subtracted from segment.ms at random, so that partitions do not "
        "roll their segments at the same time.",
        at_least(0),
        (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
    ),
    Definition(
        "segment.index.bytes",
        ConfigType.INT,
        10 << 20,
        "The largest size of a segment's index file; a full index closes the segment.",
        at_least(8),
        (Synonym("log.index.size.max.bytes"),),
    ),
    Definition(
        "index.interval.bytes",
        ConfigType.INT,
        4096,
        "How many bytes of records there are between two index entries.",
        at_least(0),
        (Synonym("log.index.interval.bytes"),),
    ),
    Definition(
        "preallocate",
        ConfigType.BOOLEAN,
        False,
        "Whether the file of a new segment is created at its full size.",
        None,
        (Synonym("log.preallocate"),),
        no_effect="segments grow as they are written",
    ),
)

_WRITES = (
    Definition(
        "durability",
        ConfigType.STRING,
        "fsync",
        "What acks=all waits for on each in-sync replica. fsync: the records are synced to "
        "disk. replicated: they are in the operating system's memory, which is faster, and "
        "loses records if as many machines as min.insync.replicas lose power together. acks=1 "
        "waits for the same if the leader is the only in-sync replica.",
        one_of("fsync", "replicated"),
        (Synonym("log.durability"),),
    ),
    Definition(
        "encryption",
        ConfigType.STRING,
        NOT_ENCRYPTED,
        "The name of the key that encrypts the topic's segments on the brokers' disks, or none. A "
        "change affects new segments only. The brokers need encryption.key.provider.",
        key_name(NOT_ENCRYPTED),
        (Synonym("log.encryption"),),
    ),
    Definition(
        "min.insync.replicas",
        ConfigType.INT,
        1,
        "How many replicas must be in sync for a write with acks=all to be accepted.",
        at_least(1),
        (Synonym("min.insync.replicas"),),
    ),
    Definition(
        "max.message.bytes",
        ConfigType.INT,
        1024 * 1024 + 12,
        "The largest record batch that the topic accepts, after compression.",
        at_least(0),
        (Synonym("message.max.bytes"),),
    ),
    Definition(
        "flush.messages",
        ConfigType.LONG,
        LONG_MAX,
        "After how many records the log is synced to disk, regardless of acks.",
        at_least(1),
        (Synonym("log.flush.interval.messages"),),
    ),
    Definition(
        "flush.ms",
        ConfigType.LONG,
        LONG_MAX,
        "How long after a write the log is synced to disk, regardless of acks.",
        at_least(0),
        (Synonym("log.flush.interval.ms"),),
    ),
    Definition(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "The compression with which batches are stored; producer keeps the producer's.",
        one_of("producer", "none", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        (Synonym("compression.type"),),
    ),
    Definition(
        "compression.gzip.level",
        ConfigType.INT,
        -1,
        "The compression level if compression.type is gzip; -1 is gzip's default.",
        between(1, 9, besides=-1),
        (Synonym("compression.gzip.level"),),
    ),
    Definition(
        "compression.lz4.level",
        ConfigType.INT,
        9,
        "The compression level if compression.type is lz4.",
        between(1, 17),
        (Synonym("compression.lz4.level"),),
    ),
    Definition(
        "compression.zstd.level",
        ConfigType.INT,
        3,
        "The compression level if compression.type is zstd.",
        between(-131072, 22),
        (Synonym("compression.zstd.level"),),
    ),
    Definition(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Which time records carry: the producer's (CreateTime) or the broker's (LogAppendTime).",
        one_of("CreateTime", "LogAppendTime"),
        (Synonym("log.message.timestamp.type"),),
    ),
    Definition(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        LONG_MAX,
        "How far a producer's timestamp may be before the broker's time.",
        at_least(0),
        (Synonym("log.message.timestamp.before.max.ms"),),
    ),
    Definition(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        _HOUR_MS,
        "How far a producer's timestamp may be after the broker's time.",
        at_least(0),
        (Synonym("log.message.timestamp.after.max.ms"),),
    ),
)

_REPLICATION = (
    Definition(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether a replica that lacks committed records may become leader if no other is left. "
        "The records that it lacks are lost.",
        None,
        (Synonym("unclean.leader.election.enable"),),
    ),
    Definition(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        (),
        "The replicas whose replication is throttled on the leader: PARTITION:BROKER pairs, or "
        "* for all.",
        throttled_replicas,
    ),
    Definition(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        (),
        "The replicas whose replication is throttled on the follower: PARTITION:BROKER pairs, "
        "or * for all.",
        throttled_replicas,
    ),
)

_NO_TIERS: Final = "there is no tiered storage"

_TIERED = (
    Definition(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether old segments are moved to tiered storage. Penstock has none, so it is always "
        "false.",
        only(False, "Penstock has no tiered storage; leave it out or set it to false"),
        no_effect=_NO_TIERS,
    ),
    Definition(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        False,
        "Whether copying to tiered storage is paused.",
        no_effect=_NO_TIERS,
    ),
    Definition(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        False,
        "Whether tiered segments are deleted when remote.storage.enable is switched off.",
        no_effect=_NO_TIERS,
    ),
    Definition(
        "local.retention.ms",
        ConfigType.LONG,
        -2,
        "How long a segment stays on the broker's disk once it is tiered; -2 means retention.ms.",
        at_least(-2),
        (Synonym("log.local.retention.ms"),),
        no_effect=_NO_TIERS,
    ),
    Definition(
        "local.retention.bytes",
        ConfigType.LONG,
        -2,
        "How much of a partition stays on the broker's disk once it is tiered; -2 means "
        "retention.bytes.",
        at_least(-2),
        (Synonym("log.local.retention.bytes"),),
        no_effect=_NO_TIERS,
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        each.name: each
        for each in sorted(
            (
                *(_LIFETIME + _SEGMENTS + _WRITES + _REPLICATION + _TIERED + QUEUE_CONFIGS),
                *DEAD_LETTER_TOPIC_CONFIGS,
                *DELAY_CONFIGS,
            ),
            key=lambda each: each.name,
        )
    }
)
