"""The settings of the group coordinator; the defaults are Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum


class MigrationPolicy(Enum):
    """Which groups with members may change between the classic and the new protocol."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    """Only classic groups, to the new protocol."""
    DOWNGRADE = "downgrade"
    """Only groups of the new protocol, back to the classic one."""
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """What can be set for a single consumer group."""

    session_timeout_ms: int = 45_000
    """consumer.session.timeout.ms"""
    heartbeat_interval_ms: int = 5_000
    """consumer.heartbeat.interval.ms"""
    assignment_interval_ms: int = 1_000
    """consumer.assignment.interval.ms: at least this long between two target assignments."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """The settings of consumer groups of the new protocol."""

    settings: ConsumerGroupSettings = field(default_factory=ConsumerGroupSettings)
    """For groups that set nothing else."""
    group_size_max: int = (1 << 31) - 1
    """group.consumer.max.size"""
    assignors: tuple[str, ...] = ("uniform", "range")
    """group.consumer.assignors: those offered; the first one is the default."""
    regex_refresh_interval_ms: int = 600_000
    """group.consumer.regex.refresh.interval.ms"""
    regex_pause_ms: int = 10_000
    """At least this long between two times that a group's expressions are resolved."""
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    """group.consumer.migration.policy"""
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and the largest value of a group's own settings, by the field that has them."""


@dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    """What can be set for a single share group, as far as its coordinator uses it."""

    session_timeout_ms: int = 45_000
    """share.session.timeout.ms"""
    heartbeat_interval_ms: int = 5_000
    """share.heartbeat.interval.ms"""
    assignment_interval_ms: int = 1_000
    """share.assignment.interval.ms: at least this long between two target assignments."""


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """The settings of share groups."""

    settings: ShareGroupSettings = field(default_factory=ShareGroupSettings)
    """For groups that set nothing else."""
    group_size_max: int = 200
    """group.share.max.size"""
    retry_max_ms: int = 30_000
    """group.share.initialize.retry.interval.ms: the longest pause between two tries."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    session_timeout_min_ms: int = 6_000
    """group.min.session.timeout.ms"""
    session_timeout_max_ms: int = 1_800_000
    """group.max.session.timeout.ms"""
    initial_rebalance_delay_ms: int = 3_000
    """group.initial.rebalance.delay.ms: how long a group's first join waits for more members."""
    group_size_max: int = (1 << 31) - 1
    """group.max.size"""
    new_member_join_timeout_ms: int = 300_000
    """How long a new member's first join may wait. Until the answer it cannot send heartbeats."""
    append_timeout_ms: int = 5_000
    """offsets.commit.timeout.ms: requests that wait longer for an append get an error."""
    offset_metadata_max: int = 4_096
    """offset.metadata.max.bytes; despite the name it counts UTF-16 units, as in Kafka."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """offsets.retention.minutes"""
    offsets_retention_check_interval_ms: int = 600_000
    """offsets.retention.check.interval.ms"""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value < 0:
                raise ValueError(f"{each.name} is {value}; it must be 0 or more")
        if self.session_timeout_min_ms > self.session_timeout_max_ms:
            raise ValueError(
                f"session_timeout_min_ms {self.session_timeout_min_ms} is above "
                f"session_timeout_max_ms {self.session_timeout_max_ms}; swap them"
            )
        if self.group_size_max < 1 or self.offsets_retention_check_interval_ms < 1:
            raise ValueError(
                "group_size_max and offsets_retention_check_interval_ms must be 1 or more"
            )
