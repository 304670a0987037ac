"""All share groups of one partition, with their state log."""

from __future__ import annotations

import pytest

from penstock.coordination.effects import Append, LogRecord, Now
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
from penstock.shares.formats import decode, replay
from penstock.shares.image import ShareImage
from penstock.shares.partition_shares import Effect, GroupEffect, PartitionShares
from penstock.shares.settings import ShareSettings
from penstock.shares.state_writer import FlushSoon, ResetDone, StoredGroup, WriterSettings
from penstock.wire.errors import ErrorCode, KafkaError

NOW = Now(1000, 2_000_000)
LOG = tuple(LogBatch(first, first + 9, 0) for first in range(0, 100, 10))


class Leader:
    """A leader with its state log. With `holds_appends`, the test commits them."""

    def __init__(self) -> None:
        self.state_log: list[LogRecord] = []
        self.appends: list[Append] = []
        self.holds_appends = False
        self.seen: list[Effect] = []
        self.load()

    def load(self) -> None:
        """Another leader takes over: what is not in the state log is lost."""
        images: dict[str, ShareImage] = {}
        for record in self.state_log:
            replay(images, decode(record))
        groups = {name: StoredGroup(image, 0) for name, image in images.items()}
        settings = WriterSettings()
        end = len(self.state_log)
        self.shares = PartitionShares(lambda name: ShareSettings(), settings, groups, end, 0)
        self.appends.clear()

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.seen.append(effect)
            if isinstance(effect, FlushSoon):
                self.carry_out(self.shares.on_turn_ended(NOW))
            elif isinstance(effect, Append):
                self.appends.append(effect)
                if not self.holds_appends:
                    self.commit()

    def commit(self) -> None:
        append = self.appends.pop(0)
        base_offset = len(self.state_log)
        self.state_log += append.records
        self.carry_out(self.shares.on_appended(append.append_id, base_offset, NOW))

    def fail(self, error: ErrorCode) -> None:
        append = self.appends.pop(0)
        self.carry_out(self.shares.on_append_failed(append.append_id, error, NOW))

    def reset(self, group: str, image: ShareImage | None) -> ErrorCode:
        self.carry_out(self.shares.begin_reset(("reset", group), group, image, NOW))
        (done,) = [each for each in self.seen if isinstance(each, ResetDone)]
        self.seen.remove(done)
        return done.error

    def fetch(self, group: str, member: str, max_records: int) -> tuple[AcquiredRange, ...]:
        offset = self.shares.next_fetch_offset(group, NOW)
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

    def acknowledged(self) -> list[ErrorCode]:
        return [each.error for each in self.answers() if isinstance(each, Acknowledged)]

    def answers(self) -> list[ShareEffect]:
        found = [each.effect for each in self.seen if isinstance(each, GroupEffect)]
        self.seen.clear()
        return found


def leader_of(*groups: str) -> Leader:
    leader = Leader()
    for group in groups:
        assert leader.reset(group, ShareImage.starting_at(0)) is ErrorCode.NONE
    return leader


def test_groups_are_independent() -> None:
    leader = leader_of("jobs", "mail")
    assert leader.fetch("jobs", "anna", 10) == ((0, 9, 1),)
    assert leader.fetch("mail", "ben", 10) == ((0, 9, 1),)
    assert leader.accept("jobs", "anna", 0, 9) == [ErrorCode.NONE]
    assert (leader.shares.start_offset("jobs"), leader.shares.start_offset("mail")) == (10, 0)


def test_an_acknowledgement_waits_for_the_state_log() -> None:
    leader = leader_of("jobs")
    leader.fetch("jobs", "anna", 10)
    leader.holds_appends = True
    assert leader.accept("jobs", "anna", 0, 9) == []
    leader.commit()
    assert leader.acknowledged() == [ErrorCode.NONE]


def test_an_acknowledgement_gets_the_error_of_the_state_log() -> None:
    leader = leader_of("jobs")
    leader.fetch("jobs", "anna", 10)
    leader.holds_appends = True
    leader.accept("jobs", "anna", 0, 9)
    leader.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert leader.acknowledged() == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert leader.shares.start_offset("jobs") == 0


def test_acknowledgements_during_an_append_are_one_append() -> None:
    leader = leader_of("jobs", "mail")
    leader.fetch("jobs", "anna", 30)
    leader.fetch("mail", "ben", 10)
    leader.holds_appends = True
    for first in (0, 10, 20):
        leader.accept("jobs", "anna", first, first + 9)
    leader.accept("mail", "ben", 0, 9)
    leader.commit()
    assert len(leader.appends[0].records) == 3
    leader.commit()
    assert leader.acknowledged() == [ErrorCode.NONE] * 4
    assert leader.shares.start_offset("jobs") == 30


def test_a_new_leader_goes_on() -> None:
    leader = leader_of("jobs")
    leader.fetch("jobs", "anna", 20)
    leader.accept("jobs", "anna", 0, 14)
    leader.load()
    assert leader.shares.live_groups == []
    assert leader.shares.start_offset("jobs") == 15
    assert leader.fetch("jobs", "ben", 5) == ((15, 19, 1),)


def test_an_idle_group_is_dropped_when_nothing_is_under_way() -> None:
    leader = leader_of("jobs")
    leader.fetch("jobs", "anna", 10)
    leader.carry_out(leader.shares.on_idle("jobs"))
    assert leader.shares.live_groups == ["jobs"]
    leader.holds_appends = True
    leader.carry_out(leader.shares.handle("jobs", ReleaseMember("anna", False), NOW))
    assert leader.shares.live_groups == ["jobs"]
    leader.commit()
    assert leader.shares.live_groups == []
    assert leader.fetch("jobs", "ben", 10) == ((0, 9, 2),)


def test_a_group_without_state_is_refused() -> None:
    leader = leader_of("jobs")
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        leader.shares.next_fetch_offset("mail", NOW)
    assert leader.reset("jobs", None) is ErrorCode.NONE
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        leader.shares.handle("jobs", ReleaseMember("anna", False), NOW)
    assert leader.shares.groups == []


def test_a_group_in_use_is_not_reset() -> None:
    leader = leader_of("jobs")
    leader.fetch("jobs", "anna", 10)
    again = ShareImage.starting_at(50, state_epoch=1)
    assert leader.reset("jobs", again) is ErrorCode.NON_EMPTY_GROUP
    leader.carry_out(leader.shares.handle("jobs", ReleaseMember("anna", False), NOW))
    assert leader.reset("jobs", again) is ErrorCode.NONE
    assert leader.fetch("jobs", "anna", 10) == ((50, 59, 1),)


def test_a_group_is_not_used_while_it_is_reset() -> None:
    leader = leader_of("jobs")
    leader.holds_appends = True
    leader.carry_out(leader.shares.begin_reset("one", "jobs", None, NOW))
    with pytest.raises(KafkaError, match="being reset"):
        leader.shares.next_fetch_offset("jobs", NOW)
    assert leader.reset("jobs", None) is ErrorCode.NON_EMPTY_GROUP


def test_the_log_start_moves_all_groups() -> None:
    leader = leader_of("jobs", "mail")
    leader.fetch("jobs", "anna", 10)
    leader.carry_out(leader.shares.on_log_start(40, NOW))
    assert [leader.shares.start_offset(name) for name in ("jobs", "mail")] == [40, 40]
    assert leader.fetch("mail", "ben", 10) == ((40, 49, 1),)
