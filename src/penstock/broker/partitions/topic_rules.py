"""Translates a topic's settings into the rules for its log, its appends and its replicas."""

from __future__ import annotations

from typing import Final

from penstock.metadata.configs import TopicSettings
from penstock.metadata.model import INTERNAL_TOPICS
from penstock.metadata.topic_configs import NOT_ENCRYPTED
from penstock.partition.batch_rules import AppendRules
from penstock.partition.follower import FollowerRules
from penstock.records.batch import Codec
from penstock.storage.config import LogConfig

_USUAL_LEVELS: Final = {"gzip": -1, "lz4": 9, "zstd": 3}
"""Kafka's default levels. They are passed on as None, the codec's own default. For lz4 that is the
fast compressor, as in Kafka, which uses the high compressor only for levels other than 9."""
_FOREVER_MS: Final = 1 << 62
_CODECS: Final = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}


def counts_by_disk(topic: str, settings: TopicSettings) -> bool:
    """Whether a record counts only once it is on disk. Always true for internal topics."""
    return settings.durability == "fsync" or topic in INTERNAL_TOPICS


def compression_level(settings: TopicSettings) -> int | None:
    """The compression level of the topic's codec. None means the codec's own default."""
    levels = {
        "gzip": settings.compression_gzip_level,
        "lz4": settings.compression_lz4_level,
        "zstd": settings.compression_zstd_level,
    }
    level = levels.get(settings.compression_type)
    return None if level == _USUAL_LEVELS.get(settings.compression_type) else level


def append_rules(settings: TopicSettings) -> AppendRules:
    return AppendRules(
        max_message_bytes=settings.max_message_bytes,
        timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
        timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
        checks_timestamps=settings.message_timestamp_type != "LogAppendTime",
        compacted=settings.compact,
        codec=_CODECS.get(settings.compression_type),
        level=compression_level(settings),
        due_after_max_ms=due_after_max_ms(settings),
    )


def due_after_max_ms(settings: TopicSettings) -> int | None:
    """How far ahead a record may be due: as long as retention keeps it. None: records of the topic
    have no due times."""
    if not settings.penstock_timed_records and not settings.penstock_delay_target:
        return None
    limited = settings.delete and settings.retention_ms >= 0
    return settings.retention_ms if limited else _FOREVER_MS


def follower_rules(settings: TopicSettings, backoff_ms: int) -> FollowerRules:
    return FollowerRules(
        may_lose_committed=settings.unclean_leader_election_enable
        or settings.durability == "replicated",
        backoff_ms=backoff_ms,
    )


def log_config(settings: TopicSettings) -> LogConfig:
    return LogConfig(
        segment_bytes=settings.segment_bytes,
        segment_ms=settings.segment_ms,
        segment_jitter_ms=settings.segment_jitter_ms,
        segment_index_bytes=settings.segment_index_bytes,
        index_interval_bytes=settings.index_interval_bytes,
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        delete=settings.delete,
        compact=settings.compact,
        min_cleanable_dirty_ratio=settings.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=settings.min_compaction_lag_ms,
        max_compaction_lag_ms=settings.max_compaction_lag_ms,
        delete_retention_ms=settings.delete_retention_ms,
        flush_messages=settings.flush_messages,
        flush_ms=settings.flush_ms,
        encryption="" if settings.encryption == NOT_ENCRYPTED else settings.encryption,
    )
