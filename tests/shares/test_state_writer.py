"""The state log of a partition: group commit, snapshots, trimming, resets."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.coordination.effects import Append, LogRecord, Now
from penstock.coordination.invariants import InvariantViolated
from penstock.shares.formats import decode, replay
from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.state_writer import (
    AppendCommitted,
    AppendFailed,
    Effect,
    Event,
    FlushSoon,
    Reset,
    ResetDone,
    StateWriter,
    Store,
    Stored,
    StoredGroup,
    TrimLog,
    TurnEnded,
    WriterSettings,
)
from penstock.shares.states import RecordState
from penstock.wire.errors import ErrorCode

NOW = Now(5, 1_000_000)
OK, FAILED = ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS


def done(first: int, last: int, epoch: int = 0) -> Delta:
    return Delta(epoch, 0, 100, 1, (StoredSpan(first, last, RecordState.ACKNOWLEDGED, 1),))


class WriterDriver:
    """Runs a writer on a list of records. A test decides when an append is settled."""

    def __init__(self, rules: WriterSettings | None = None, *, groups: Sequence[str] = ()) -> None:
        self.writer = StateWriter(rules or WriterSettings(), {}, 0)
        self.log: list[LogRecord] = []
        self.log_start = 0
        self.append: Append | None = None
        self.answers: list[Stored | ResetDone] = []
        self.flushes = 0
        for group_id in groups:
            self.send(Reset("begin", group_id, ShareImage.starting_at(0)))
            self.end_turn()
            self.commit()
        self.answers.clear()
        self.flushes = 0

    def send(self, event: Event) -> None:
        for effect in self.writer.handle(event, NOW):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case FlushSoon():
                self.flushes += 1
            case Append():
                assert self.append is None, "one append at a time"
                self.append = effect
            case TrimLog():
                assert effect.offset > self.log_start
                self.log_start = effect.offset
            case _:
                self.answers.append(effect)

    def end_turn(self) -> None:
        self.send(TurnEnded())

    def commit(self) -> None:
        append, self.append = self.append, None
        assert append is not None
        base_offset = len(self.log)
        self.log += append.records
        self.send(AppendCommitted(append.append_id, base_offset))

    def fail(self) -> None:
        append, self.append = self.append, None
        assert append is not None
        self.send(AppendFailed(append.append_id, FAILED))

    def replayed(self) -> dict[str, ShareImage]:
        images: dict[str, ShareImage] = {}
        for record in self.log[self.log_start :]:
            replay(images, decode(record))
        return images

    def images(self) -> dict[str, ShareImage]:
        return {name: group.image for name, group in self.writer.groups.items()}


def test_the_deltas_of_one_turn_are_one_append() -> None:
    driver = WriterDriver(groups=["jobs", "mail"])
    driver.send(Store("jobs", 1, done(0, 4)))
    driver.send(Store("mail", 1, done(0, 2)))
    assert (driver.flushes, driver.append) == (1, None)
    driver.end_turn()
    assert driver.append is not None
    assert len(driver.append.records) == 2
    assert not driver.answers
    driver.commit()
    assert driver.answers == [Stored("jobs", 1, OK), Stored("mail", 1, OK)]
    assert driver.images()["jobs"].start_offset == 5
    assert driver.replayed() == driver.images()


def test_what_arrives_during_an_append_is_the_next_one() -> None:
    driver = WriterDriver(groups=["jobs"])
    driver.send(Store("jobs", 1, done(0, 0)))
    driver.end_turn()
    for write_id in (2, 3):
        driver.send(Store("jobs", write_id, done(write_id, write_id)))
        driver.end_turn()
    assert len(driver.writer) == 3
    driver.commit()
    assert driver.append is not None
    assert len(driver.append.records) == 2
    driver.commit()
    assert [answer.error for answer in driver.answers] == [OK] * 3
    assert len(driver.writer) == 0


def test_a_failed_append_fails_its_deltas_only() -> None:
    driver = WriterDriver(groups=["jobs"])
    driver.send(Store("jobs", 1, done(0, 0)))
    driver.end_turn()
    driver.send(Store("jobs", 2, done(5, 5)))
    driver.fail()
    driver.commit()
    assert driver.answers == [Stored("jobs", 1, FAILED), Stored("jobs", 2, OK)]
    assert driver.images()["jobs"].start_offset == 0
    assert driver.replayed() == driver.images()


def test_a_batch_is_not_larger_than_the_log_allows() -> None:
    driver = WriterDriver(WriterSettings(batch_bytes_max=400), groups=["jobs"])
    for write_id in range(10):
        driver.send(Store("jobs", write_id, done(write_id, write_id)))
    driver.end_turn()
    sizes = []
    while driver.append is not None:
        sizes.append(len(driver.append.records))
        driver.commit()
    assert sum(sizes) == 10
    assert max(sizes) < 5
    assert driver.answers == [Stored("jobs", write_id, OK) for write_id in range(10)]


def test_a_group_without_state_is_refused() -> None:
    driver = WriterDriver()
    driver.send(Store("jobs", 1, done(0, 0)))
    driver.end_turn()
    assert driver.answers == [Stored("jobs", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert driver.append is None


def test_a_snapshot_follows_many_deltas_and_the_log_is_trimmed() -> None:
    driver = WriterDriver(WriterSettings(snapshot_after=3), groups=["jobs"])
    for write_id in range(4):
        driver.send(Store("jobs", write_id, done(write_id, write_id)))
        driver.end_turn()
        driver.commit()
    assert driver.log_start == 4
    assert [decode(record).group_id for record in driver.log[4:]] == ["jobs"] * 2
    assert driver.replayed() == driver.images()
    assert driver.images()["jobs"].start_offset == 4


def test_a_group_that_is_seldom_used_does_not_keep_the_log_long() -> None:
    driver = WriterDriver(WriterSettings(snapshot_after=4, trim_after=8), groups=["cold", "hot"])
    for write_id in range(40):
        driver.send(Store("hot", write_id, done(write_id, write_id)))
        driver.end_turn()
        driver.commit()
        assert len(driver.log) - driver.log_start <= 8 + 2 * 4
        assert driver.replayed() == driver.images()


def test_a_snapshot_that_fails_does_not_stop_later_deltas() -> None:
    driver = WriterDriver(WriterSettings(snapshot_after=1), groups=["jobs"])
    for write_id, is_stored in enumerate((True, False, True)):
        driver.send(Store("jobs", write_id, done(write_id, write_id)))
        driver.end_turn()
        assert driver.append is not None
        assert len(driver.append.records) == (1 if is_stored else 2)
        if is_stored:
            driver.commit()
        else:
            driver.fail()
    assert driver.replayed() == driver.images()


def test_resets_and_deltas_are_stored_in_order() -> None:
    driver = WriterDriver(groups=["jobs"])
    driver.send(Store("jobs", 1, done(0, 9)))
    driver.send(Reset("alter", "jobs", ShareImage.starting_at(4, state_epoch=1)))
    driver.send(Store("jobs", 2, done(4, 5, epoch=1)))
    driver.send(Reset("delete", "jobs", None))
    driver.send(Store("jobs", 3, done(6, 6, epoch=1)))
    driver.end_turn()
    driver.commit()
    assert driver.answers == [
        Stored("jobs", 3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        Stored("jobs", 1, OK),
        ResetDone("alter", OK),
        Stored("jobs", 2, OK),
        ResetDone("delete", OK),
    ]
    assert driver.replayed() == driver.images() == {}


def test_an_append_is_reported_once() -> None:
    driver = WriterDriver(groups=["jobs"])
    with pytest.raises(InvariantViolated, match="not under way"):
        driver.send(AppendCommitted(0, 0))


class WriterMachine(RuleBasedStateMachine):
    """Whatever fails: every request is answered once, and the trimmed log has the same images."""

    @initialize(
        batch_bytes_max=st.sampled_from([150, 400, 100_000]),
        snapshot_after=st.integers(1, 5),
        trim_after=st.integers(2, 12),
    )
    def start(self, batch_bytes_max: int, snapshot_after: int, trim_after: int) -> None:
        rules = WriterSettings(batch_bytes_max, snapshot_after, trim_after)
        self.driver = WriterDriver(rules, groups=["a", "b"])
        self.sent = 0

    @rule(group=st.sampled_from("abc"), first=st.integers(0, 30), size=st.integers(0, 5))
    def store(self, group: str, first: int, size: int) -> None:
        self.driver.send(Store(group, self.sent, done(first, first + size)))
        self.sent += 1

    @rule(group=st.sampled_from("abc"), is_removal=st.booleans())
    def reset(self, group: str, is_removal: bool) -> None:
        image = None if is_removal else ShareImage.starting_at(3)
        self.driver.send(Reset(self.sent, group, image))
        self.sent += 1

    @rule()
    def end_turn(self) -> None:
        self.driver.end_turn()

    @precondition(lambda self: self.driver.append is not None)
    @rule(fails=st.sampled_from([False, False, True]))
    def settle(self, fails: bool) -> None:
        if fails:
            self.driver.fail()
        else:
            self.driver.commit()

    @precondition(lambda self: self.driver.append is None)
    @rule()
    def restart(self) -> None:
        """A new leader finds the same images. What was not appended is answered by its shell."""
        if self.driver.writer._waiting:
            return
        images = self.driver.replayed()
        assert images == self.driver.images()
        groups = {
            name: StoredGroup(image, self.driver.writer.groups[name].snapshot_offset)
            for name, image in images.items()
        }
        rules = self.driver.writer.settings
        self.driver.writer = StateWriter(rules, groups, len(self.driver.log))

    @invariant()
    def every_request_is_answered_once(self) -> None:
        answered = [
            answer.write_id if isinstance(answer, Stored) else answer.token
            for answer in self.driver.answers
        ]
        assert len(answered) == len(set(answered))
        assert len(answered) + len(self.driver.writer) == self.sent

    @invariant()
    def the_log_has_the_images(self) -> None:
        assert self.driver.replayed() == self.driver.images()


TestWriterMachine = WriterMachine.TestCase
TestWriterMachine.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
