"""What share groups (KIP-932) a seed has: their members, their times and their limits, and whether
they have delayed records and dead letters.

Locks, sessions and back-offs are short, so that they end during a run. The window of a share
partition is small, and the share coordinator stores snapshots often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random  # noqa: TID251 - a simulation is where randomness is made
from typing import Final

from penstock.metadata.dead_letter_configs import DEAD_LETTER_COPY, DEAD_LETTER_TOPIC

TIMED_SHARE: Final = 0.5
"""The share of seeds in which some records have due times and expiry times."""
FAR_SHARE: Final = 0.6
"""The share of these in which some records are far ones."""
LETTERS_SHARE: Final = 0.5
"""The share of seeds in which the groups have topics for dead letters."""


@dataclass(frozen=True, slots=True)
class SharePlan:
    """The share groups of one seed."""

    groups: tuple[int, ...]
    """How many members each group has."""
    session_s: float
    heartbeat_s: float
    assignment_s: float
    lock_s: float
    delivery_limit: int
    locks_max: int
    """How many records of a partition may be in flight."""
    backoff_ms: int
    state_partitions: int
    """The number of partitions of `__share_group_state`."""
    snapshot_after: int
    timed: bool = False
    """Whether some records have due times and expiry times."""
    due_max_s: float = 0.0
    """How far ahead the latest due times are."""
    scheduled: bool = False
    """Whether some of them are far records."""
    dead_letters: bool = False
    """Whether each group has a topic for the records that it gives up."""
    copies_records: bool = False
    """Whether dead letters have the key, the value and the headers of their records."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(share_group_name(number) for number in range(len(self.groups)))

    @property
    def settle_s(self) -> float:
        """Within this time after all faults, members that accept everything have settled every
        record: the locks that they had before must end first, and a small window lets only few
        records through at a time."""
        return 2 * self.lock_s + 4 * self.backoff_ms / 1000 + 60.0

    def broker_settings(self, brokers: int) -> tuple[tuple[str, str], ...]:
        """Returns the settings of brokers, in a cluster of this size."""
        return (
            ("group.share.session.timeout.ms", _ms(self.session_s)),
            ("group.share.heartbeat.interval.ms", _ms(self.heartbeat_s)),
            ("group.share.assignment.interval.ms", _ms(self.assignment_s)),
            ("group.share.initialize.retry.interval.ms", "2000"),
            ("group.share.record.lock.duration.ms", _ms(self.lock_s)),
            ("group.share.delivery.count.limit", str(self.delivery_limit)),
            ("group.share.partition.max.record.locks", str(self.locks_max)),
            ("share.coordinator.state.topic.num.partitions", str(self.state_partitions)),
            ("share.coordinator.state.topic.replication.factor", str(min(3, brokers))),
            ("share.coordinator.state.topic.segment.bytes", "5000"),
            ("share.coordinator.snapshot.update.records.per.snapshot", str(self.snapshot_after)),
            ("share.coordinator.write.timeout.ms", "2000"),
        )

    def group_settings(self) -> dict[str, str]:
        """Returns the settings of each group. It begins with the first record of a topic."""
        return {
            "share.auto.offset.reset": "earliest",
            "penstock.share.redelivery.backoff.ms": str(self.backoff_ms),
            "penstock.share.redelivery.backoff.max.ms": str(4 * self.backoff_ms),
        }

    def letter_settings(self, group: str) -> dict[str, str]:
        """Returns the settings of a group for dead letters. Empty if it has none."""
        if not self.dead_letters:
            return {}
        return {
            DEAD_LETTER_TOPIC: letter_topic(group),
            DEAD_LETTER_COPY: "true" if self.copies_records else "false",
        }

    def topic_settings(self) -> dict[str, str]:
        """Returns the settings of the topics that the groups read."""
        return {"penstock.timed.records": "true"} if self.timed else {}


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))


def share_group_name(number: int) -> str:
    return f"shares{number}"


def letter_topic(group: str) -> str:
    return f"dlq.{group}"


def draw_shares(seed: int, *, has_all: bool = False) -> SharePlan:
    """Draws the share groups of a seed. With `has_all` they have timed records and dead letters."""
    random = Random(f"shares {seed}")  # noqa: S311 - always drawn from the seed
    plain = SharePlan(
        groups=random.choice(((3,), (4,), (5,), (3, 2))),
        session_s=random.choice((2.0, 3.0, 6.0)),
        heartbeat_s=random.choice((0.3, 0.6, 1.0)),
        assignment_s=random.choice((0.0, 0.0, 1.0)),
        lock_s=random.choice((1.0, 2.0, 4.0)),
        delivery_limit=random.choice((2, 3, 5, 5, 10)),
        locks_max=random.choice((10, 20, 100)),
        backoff_ms=random.choice((0, 0, 100, 500)),
        state_partitions=random.choice((1, 1, 2)),
        snapshot_after=random.choice((3, 10, 50)),
    )
    return _with_letters(_with_times(plain, seed, has_all), seed, has_all)


def _with_times(plain: SharePlan, seed: int, is_certain: bool) -> SharePlan:
    """Gives some records due times and expiry times, in half of the seeds."""
    # Separate random streams, so that the draws here do not change the rest of a seed.
    random = Random(f"timed records {seed}")  # noqa: S311 - as above
    if random.random() >= TIMED_SHARE and not is_certain:
        return plain
    due_max_s = random.choice((5.0, 5.0, 5.0, 5.0, 5.0, 40.0, 40.0, 50.0))
    # A record that is not due has a place in the window. A small window would be full of them.
    locks_max = plain.locks_max if due_max_s < 30 else 100
    scheduled = Random(f"far records {seed}").random() < FAR_SHARE  # noqa: S311 - as above
    return replace(plain, timed=True, due_max_s=due_max_s, locks_max=locks_max, scheduled=scheduled)


def _with_letters(plain: SharePlan, seed: int, is_certain: bool) -> SharePlan:
    """Gives the groups topics for dead letters, in half of the seeds."""
    random = Random(f"dead letters {seed}")  # noqa: S311 - as above
    if random.random() >= LETTERS_SHARE and not is_certain:
        return plain
    return replace(
        plain,
        dead_letters=True,
        copies_records=random.random() < 0.5,
        delivery_limit=random.choice((2, 2, 3, 5)),
    )
