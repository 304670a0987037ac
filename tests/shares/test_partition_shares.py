"""The share partitions of one partition, whose state is stored elsewhere."""

from __future__ import annotations

import pytest

from penstock.coordination.effects import Now
from penstock.shares.events import (
    AckBatch,
    Acknowledge,
    Acknowledged,
    Acquire,
    Acquired,
    AcquiredRange,
    LogBatch,
    ReleaseMember,
)
from penstock.shares.events import Effect as ShareEffect
from penstock.shares.image import ShareImage
from penstock.shares.partition_shares import Effect, GroupEffect, PartitionShares, Store
from penstock.shares.settings import ShareSettings
from penstock.wire.errors import ErrorCode, KafkaError

NOW = Now(1000, 2_000_000)
LOG = tuple(LogBatch(first, first + 9, 0) for first in range(0, 100, 10))


class Leader:
    """A leader and what is stored. With `holds_writes`, the test reports their outcomes."""

    def __init__(self, *groups: str) -> None:
        self.images = {group: ShareImage.starting_at(0) for group in groups}
        self.shares = PartitionShares(0)
        self.stores: list[Store] = []
        self.holds_writes = False
        self.seen: list[ShareEffect] = []

    def load(self, group: str) -> None:
        image = self.images[group].copy()
        self.carry_out(self.shares.load(group, ShareSettings(), image, NOW))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, GroupEffect):
                self.seen.append(effect.effect)
                continue
            self.stores.append(effect)
            if not self.holds_writes:
                self.end_write()

    def end_write(self, error: ErrorCode = ErrorCode.NONE) -> None:
        store = self.stores.pop(0)
        if error is ErrorCode.NONE:
            self.images[store.group_id].apply(store.delta)
        self.carry_out(
            self.shares.on_stored(store.group_id, store.load_id, store.write_id, error, NOW)
        )

    def fetch(self, group: str, member: str, max_records: int) -> tuple[AcquiredRange, ...]:
        if not self.shares.use(group):
            self.load(group)
        offset = self.shares.partition(group).next_fetch_offset(NOW)
        assert offset is not None
        batches = tuple(batch for batch in LOG if batch.last >= offset)
        event = Acquire("fetch", member, offset, batches, max_records)
        self.carry_out(self.shares.handle(group, event, NOW))
        (answer,) = [each for each in self.answers() if isinstance(each, Acquired)]
        return answer.ranges

    def accept(self, group: str, member: str, first: int, last: int) -> list[ErrorCode]:
        event = Acknowledge("ack", member, (AckBatch(first, last, (1,)),))
        self.carry_out(self.shares.handle(group, event, NOW))
        return self.acknowledged()

    def release(self, group: str, member: str) -> None:
        self.carry_out(self.shares.handle(group, ReleaseMember(member, False), NOW))

    def acknowledged(self) -> list[ErrorCode]:
        return [each.error for each in self.answers() if isinstance(each, Acknowledged)]

    def answers(self) -> list[ShareEffect]:
        found, self.seen = self.seen, []
        return found


def test_groups_are_independent() -> None:
    leader = Leader("jobs", "mail")
    assert leader.fetch("jobs", "anna", 10) == ((0, 9, 1),)
    assert leader.fetch("mail", "ben", 10) == ((0, 9, 1),)
    assert leader.accept("jobs", "anna", 0, 9) == [ErrorCode.NONE]
    starts = [leader.shares.partition(group).start_offset for group in ("jobs", "mail")]
    assert starts == [10, 0]


def test_an_acknowledgement_waits_for_its_write() -> None:
    leader = Leader("jobs")
    leader.fetch("jobs", "anna", 10)
    leader.holds_writes = True
    assert leader.accept("jobs", "anna", 0, 9) == []
    leader.end_write()
    assert leader.acknowledged() == [ErrorCode.NONE]


def test_an_acknowledgement_gets_the_error_of_its_write() -> None:
    leader = Leader("jobs")
    leader.fetch("jobs", "anna", 10)
    leader.holds_writes = True
    leader.accept("jobs", "anna", 0, 9)
    leader.end_write(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert leader.acknowledged() == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert leader.shares.partition("jobs").start_offset == 0


def test_a_new_leader_goes_on() -> None:
    leader = Leader("jobs")
    leader.fetch("jobs", "anna", 20)
    leader.accept("jobs", "anna", 0, 14)
    leader.shares = PartitionShares(0)
    assert leader.fetch("jobs", "ben", 5) == ((15, 19, 1),)


def test_an_idle_group_is_dropped_when_nothing_is_under_way() -> None:
    leader = Leader("jobs")
    leader.fetch("jobs", "anna", 10)
    leader.shares.on_idle("jobs")
    assert leader.shares.live_groups == ["jobs"]
    leader.holds_writes = True
    leader.release("jobs", "anna")
    assert leader.shares.live_groups == ["jobs"]
    leader.end_write()
    assert leader.shares.live_groups == []
    assert leader.fetch("jobs", "ben", 10) == ((0, 9, 2),)


def test_a_group_that_is_used_again_stays() -> None:
    leader = Leader("jobs")
    leader.fetch("jobs", "anna", 10)
    leader.shares.on_idle("jobs")
    assert leader.shares.use("jobs")
    leader.release("jobs", "anna")
    assert leader.shares.live_groups == ["jobs"]


def test_a_group_that_is_not_in_memory_is_refused() -> None:
    leader = Leader("jobs")
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        leader.shares.partition("jobs")
    with pytest.raises(KafkaError, match="send a ShareFetch first"):
        leader.release("jobs", "anna")


def test_the_outcome_of_a_write_of_an_earlier_load_has_no_effect() -> None:
    """The share partition was dropped while the write was under way, and loaded again."""
    leader = Leader("jobs")
    leader.fetch("jobs", "anna", 10)
    leader.holds_writes = True
    leader.accept("jobs", "anna", 0, 9)
    leader.shares.drop("jobs")
    assert leader.fetch("jobs", "ben", 10) == ((0, 9, 1),)
    leader.accept("jobs", "ben", 0, 4)
    assert [store.write_id for store in leader.stores] == [0, 0]
    leader.end_write()
    assert leader.acknowledged() == []
    leader.end_write()
    assert leader.acknowledged() == [ErrorCode.NONE]


def test_the_log_start_moves_all_groups() -> None:
    leader = Leader("jobs", "mail")
    leader.fetch("jobs", "anna", 10)
    leader.carry_out(leader.shares.on_log_start(40, NOW))
    assert leader.shares.partition("jobs").start_offset == 40
    assert leader.fetch("mail", "ben", 10) == ((40, 49, 1),)
