"""What the delay topic of a seed is like: its partitions, its targets, and how far ahead records
are due.

An operator switches between two targets, adds partitions to them, and sometimes takes the target
away for a while. The logs of the delay topic and of its targets are synced, so nothing that was
acknowledged is lost when all brokers lose power.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random  # noqa: TID251 - a simulation is where randomness is made
from typing import Final

from penstock.metadata.delay_configs import DELAY_TARGET

DELAY_TOPIC: Final = "later"
DELAY_TARGETS: Final = ("reminders", "reminders2")
TARGET_PARTITIONS_MAX: Final = 3
DELAY_SHARE: Final = 0.1
"""The share of seeds with a delay topic."""


@dataclass(frozen=True, slots=True)
class DelayPlan:
    """The delay topic of one seed."""

    partitions: int
    target_partitions: int
    due_max_s: float
    """How far ahead the latest due times are."""
    senders: int
    """Every second sender writes in transactions."""
    changes: bool
    """Whether an operator changes the target."""
    state_partitions: int
    """The number of partitions of `__share_group_state`."""
    snapshot_after: int

    @property
    def partition_names(self) -> tuple[str, ...]:
        return tuple(f"{DELAY_TOPIC}-{index}" for index in range(self.partitions))

    def broker_settings(self, brokers: int) -> tuple[tuple[str, str], ...]:
        """Returns the settings of brokers, in a cluster of this size."""
        return (
            ("share.coordinator.state.topic.num.partitions", str(self.state_partitions)),
            ("share.coordinator.state.topic.replication.factor", str(min(3, brokers))),
            ("share.coordinator.state.topic.segment.bytes", "5000"),
            ("share.coordinator.snapshot.update.records.per.snapshot", str(self.snapshot_after)),
            ("share.coordinator.write.timeout.ms", "2000"),
        )


def topic_settings(target: str = "") -> dict[str, str]:
    """Returns the settings of a target, or of the delay topic with this target.

    The targets take small batches only, so a plan has several.
    """
    own = {DELAY_TARGET: target} if target else {"max.message.bytes": "500"}
    return {"durability": "fsync", "segment.bytes": "5000", "min.insync.replicas": "2", **own}


def draw_delays(seed: int, *, is_certain: bool = False) -> DelayPlan | None:
    """Draws the delay topic of a seed. None if it has none."""
    random = Random(f"delays {seed}")  # noqa: S311 - always drawn from the seed
    if random.random() >= DELAY_SHARE and not is_certain:
        return None
    return DelayPlan(
        partitions=random.choice((1, 1, 2)),
        target_partitions=random.choice((1, 1, 2)),
        due_max_s=random.choice((3.0, 10.0, 45.0)),
        senders=random.choice((1, 2, 2, 3)),
        changes=random.random() < 0.5,
        state_partitions=random.choice((1, 1, 2)),
        snapshot_after=random.choice((3, 10, 50)),
    )
