"""The settings of the group coordinator; the defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass, fields


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
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ValueError(
                    f"{field.name} is {getattr(self, field.name)}; it must be 0 or more"
                )
        if self.session_timeout_min_ms > self.session_timeout_max_ms:
            raise ValueError(
                f"session_timeout_min_ms {self.session_timeout_min_ms} is above "
                f"session_timeout_max_ms {self.session_timeout_max_ms}; swap them"
            )
        if self.group_size_max < 1 or self.offsets_retention_check_interval_ms < 1:
            raise ValueError(
                "group_size_max and offsets_retention_check_interval_ms must be 1 or more"
            )
