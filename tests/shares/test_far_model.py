"""Share partitions on logs with far due times, against a simple model.

Leaders are replaced, writes are lost and overtake each other, the topic loses and gets its setting,
and the index of due times is built again by each leader. No job comes before its time, after it has
expired, or again after it was accepted, and none is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordination.effects import Now
from penstock.coordination.invariants import InvariantViolated
from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.schedule.advance import advance
from penstock.schedule.cursor import DueEntry, ScheduleCursor
from penstock.schedule.index import MemoryDueIndex
from penstock.shares import share_partition
from penstock.shares.events import (
    Acquire,
    AcquiredRange,
    LogBatch,
    LogStartMoved,
    Promote,
    SwitchSchedule,
)
from penstock.shares.image import Delta, ShareImage
from penstock.shares.promoted_parts import promoted_parts
from penstock.shares.record_marks import Mark, MarkReader, MarkRules, MarkTable
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.shares.share_schedule import FAR_MS, NO_SCHEDULE, ShareSchedule
from penstock.shares.states import AckType, AcquireMode
from penstock.wire.errors import ErrorCode

from .driver import ALL, Driver

SETTINGS = ShareSettings(
    in_flight_max=6, delivery_limit=1000, record_lock_ms=5_000, backoff_ms=10, backoff_max_ms=50
)
SEEDS = 300
FAR = (FAR_MS + 1, FAR_MS + 5_000, 3 * FAR_MS)


class Job(NamedTuple):
    due_ms: int
    expires_ms: int | None
    is_far: bool


class FarDriver(Driver):
    """Does what a leader's shell does."""

    def __init__(self, share_settings: ShareSettings = SETTINGS) -> None:
        super().__init__(share_settings)
        self.jobs: list[Job] = []
        self.data: dict[int, memoryview] = {}
        self.is_timed = True
        self.accepted: set[int] = set()
        self.scheduled: set[int] = set()
        self.log_start = 0
        self.begin()

    def put(self, specs: list[tuple[int, int | None]]) -> None:
        """Appends a batch. Each record has a delay and a time to live."""
        now_ms, records = self.now.wall_ms, []
        for delay_ms, ttl_ms in specs:
            due_ms = now_ms + delay_ms if delay_ms else 0
            expires_ms = None if ttl_ms is None else now_ms + delay_ms + ttl_ms
            headers: list[tuple[str, bytes | None]] = []
            if delay_ms:
                headers.append(("penstock-deliver-at", b"%d" % due_ms))
            if expires_ms is not None:
                headers.append(("penstock-expires-at", b"%d" % expires_ms))
            records.append(Record(len(self.jobs), now_ms, None, b"job", tuple(headers)))
            self.jobs.append(Job(due_ms, expires_ms, delay_ms > FAR_MS))
        batch = self.append(len(specs))
        self.data[batch.first] = memoryview(build_batch(records, codec=Codec.NONE))

    # What the shell of a leader has in memory

    def begin(self) -> None:
        self.index = MemoryDueIndex()
        self.begin_scan()

    def begin_scan(self) -> None:
        self.rules = self.current_rules()
        self.reader = MarkReader(self.rules)
        self.table = MarkTable(self.machine.start_offset)

    def current_rules(self) -> MarkRules:
        machine = self.machine
        rules = MarkRules(timed=self.is_timed)
        return rules.with_schedule(machine.schedule, machine.start_offset)

    def marks_of(self, batches: list[LogBatch]) -> list[Mark]:
        reader = MarkReader(MarkRules(timed=True))
        return reader.read((each, self.data[each.first]) for each in batches)

    def read(self, offset: int) -> tuple[LogBatch, ...]:
        batches = super().read(offset)
        if self.rules != self.current_rules():
            self.begin_scan()
        unread = [each for each in self.log if each.last >= self.table.position]
        marks = self.reader.read((each, self.data[each.first]) for each in unread)
        self.table.extend(marks, self.log_end)
        return tuple(part for each in batches for part in self.table.divide(each))

    def switch(self, is_timed: bool) -> None:
        self.is_timed = is_timed

    def fetch(
        self,
        member: str = "anna",
        max_records: int = ALL,
        *,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
        batch_size: int = 0,
    ) -> tuple[AcquiredRange, ...]:
        schedule = self.machine.schedule
        end = self.machine.end_offset
        if schedule.switched(end, is_timed=self.is_timed) != schedule:
            self.handle(SwitchSchedule(self.is_timed))
        return super().fetch(member, max_records, mode=mode, batch_size=batch_size)

    def fetch_promoted(self, max_records: int = ALL) -> tuple[AcquiredRange, ...]:
        offset = self.machine.next_promoted(self.now)
        if offset is None:
            return ()
        batches = [each for each in self.log if each.last >= offset]
        marks = {each: Mark(each, each) for each in range(len(self.jobs))}
        for mark in self.marks_of(batches):
            marks |= dict.fromkeys(range(mark.first, mark.last + 1), mark)
        parts = promoted_parts(self.machine.promoted, offset, batches, marks)
        self.handle(Acquire("promoted", "anna", offset, parts, max_records, is_promoted=True))
        return self.ranges.pop("promoted")

    def promote(self) -> None:
        """Advances the schedule."""
        schedule = self.machine.schedule
        room = self.machine.room_to_promote
        if schedule.has_ended or not room:
            return
        unread = [each for each in self.log if each.first >= self.index.end]
        marks = [each for each in self.marks_of(unread) if each.is_far]
        entries = [
            DueEntry(mark.due_ms, offset)
            for mark in marks
            for offset in range(mark.first, mark.last + 1)
        ]
        self.index.add(entries, self.log_end)
        end = self.machine.end_offset
        if schedule.ceiling >= 0:
            end = min(end, schedule.ceiling)
        found = advance(schedule.cursor, self.index, end, self.now.wall_ms, room)
        offsets = tuple(each.offset for each in found.entries if each.offset >= self.log_start)
        is_last = not offsets and found.next_ms is None
        is_stored = self.index.has_any(schedule.cursor.end, found.cursor.end)
        self.handle(Promote(offsets, found.cursor, is_last, is_stored))
        self.note_scheduled()

    def note_scheduled(self) -> None:
        """What the durable cursor has passed stays scheduled, whatever happens to the setting."""
        floor, end, *_ = self.machine.schedule.cursor
        self.scheduled |= {each for each in range(floor, end) if self.jobs[each].is_far}

    def fail_over(self, *, written: int = 0, truncate_to: int | None = None) -> None:
        super().fail_over(written=written, truncate_to=truncate_to)
        self.handle(LogStartMoved(self.log_start))
        self.begin()
        self.note_scheduled()

    # The model

    def check(self, ranges: tuple[AcquiredRange, ...]) -> tuple[AcquiredRange, ...]:
        now_ms = self.now.wall_ms
        for first, last, _ in ranges:
            for offset in range(first, last + 1):
                job = self.jobs[offset]
                if self.is_timed or offset in self.scheduled:
                    assert job.due_ms <= now_ms, f"{offset} is delivered before its time"
                if self.is_timed:
                    is_expired = job.expires_ms is not None and now_ms >= job.expires_ms
                    assert not is_expired, f"{offset} has expired"
                assert offset not in self.accepted, f"{offset} is done"
        return ranges

    def settle(self, ranges: tuple[AcquiredRange, ...], kind: AckType) -> None:
        for first, last, _ in ranges:
            token = self.acknowledge(first, last, kind)
            if self.answers.pop(token, None) is ErrorCode.NONE and kind is AckType.ACCEPT:
                self.accepted |= set(range(first, last + 1))

    def finish(self) -> None:
        """Takes everything. What was not delivered has expired, or was deleted."""
        self.end_session()
        idle = 0
        while idle < 7:
            taken = self.check(self.fetch()) or self.check(self.fetch_promoted())
            self.settle(taken, AckType.ACCEPT)
            self.promote()
            if not taken:
                self.wait(FAR_MS)
            idle = 0 if taken else idle + 1
        assert self.machine.start_offset == len(self.jobs)
        assert self.machine.promoted == ()
        for offset, job in enumerate(self.jobs):
            may_be_missing = job.expires_ms is not None or offset < self.log_start
            assert offset in self.accepted or may_be_missing, f"{offset} is lost"


jobs = st.tuples(
    st.sampled_from([0, 0, 50, 900, *FAR, *FAR]),
    st.sampled_from([None, None, None, None, 100, 40_000]),
)
puts = st.tuples(st.just("put"), st.lists(jobs, min_size=1, max_size=4))
takes = st.tuples(
    st.sampled_from(["take", "take", "take promoted"]),
    st.sampled_from([1, 3, ALL]),
    st.sampled_from([AckType.ACCEPT, AckType.ACCEPT, AckType.ACCEPT, AckType.RELEASE, None]),
)
waits = st.tuples(st.just("wait"), st.sampled_from([1, 120, 3_000, FAR_MS, FAR_MS]))
others = st.tuples(st.sampled_from(["promote", "promote", "fail over"]))
switches = st.tuples(st.just("switch"), st.booleans())
deletions = st.tuples(st.just("delete"), st.integers(1, 3))


def run(driver: FarDriver, steps: list[tuple[object, ...]]) -> None:
    for step in steps:
        match step:
            case ("put", list() as specs):
                driver.put(specs)
            case ("take", int() as count, kind):
                ranges = driver.check(driver.fetch("anna", count))
                if isinstance(kind, AckType):
                    driver.settle(ranges, kind)
            case ("take promoted", int() as count, kind):
                ranges = driver.check(driver.fetch_promoted(count))
                if isinstance(kind, AckType):
                    driver.settle(ranges, kind)
            case ("wait", int() as milliseconds):
                driver.wait(milliseconds)
            case ("switch", bool() as is_timed):
                driver.switch(is_timed)
            case ("delete", int() as count):
                driver.log_start = min(driver.log_start + count, driver.machine.end_offset)
                driver.move_log_start(driver.log_start)
            case ("promote",):
                driver.promote()
            case _:
                driver.fail_over()
    driver.finish()


@settings(deadline=None, max_examples=300)
@given(st.lists(puts | takes | waits | others, min_size=4, max_size=50))
def test_no_far_job_comes_early_late_or_twice_and_none_is_lost(
    steps: list[tuple[object, ...]],
) -> None:
    run(FarDriver(), steps)


@settings(deadline=None, max_examples=200)
@given(st.lists(puts | takes | waits | others | switches, min_size=4, max_size=50))
def test_none_is_lost_or_comes_twice_when_the_topic_changes_its_setting(
    steps: list[tuple[object, ...]],
) -> None:
    run(FarDriver(), steps)


@settings(deadline=None, max_examples=200)
@given(st.lists(puts | takes | waits | others | deletions, min_size=4, max_size=50))
def test_retention_deletes_scheduled_records(steps: list[tuple[object, ...]]) -> None:
    run(FarDriver(), steps)


class LossyDriver(FarDriver):
    """Writes are held back, and commit in any order, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.holds_writes = True

    def settle(self, ranges: tuple[AcquiredRange, ...], kind: AckType) -> None:
        for first, last, _ in ranges:
            token = self.acknowledge(first, last, kind)
            if not self.holds_writes and kind is AckType.ACCEPT:
                assert self.answers.pop(token) is ErrorCode.NONE
                self.accepted |= set(range(first, last + 1))

    def commit_one(self, number: int) -> None:
        if self.writes:
            self.writes.insert(0, self.writes.pop(number % len(self.writes)))
            write = self.writes[0]
            done = [each for each in (*write.delta.spans, *write.delta.promoted) if each.state == 2]
            self.commit()
            for each in done:
                self.accepted |= set(range(each.first, each.last + 1))

    def fail_over(self, *, written: int = 0, truncate_to: int | None = None) -> None:
        for write in self.writes[:written]:
            for each in (*write.delta.spans, *write.delta.promoted):
                if each.state == 2:
                    self.accepted |= set(range(each.first, each.last + 1))
        super().fail_over(written=written, truncate_to=truncate_to)

    def finish(self) -> None:
        while self.writes:
            self.commit_one(0)
        self.holds_writes = False
        super().finish()


def simulate(seed: int, driver: LossyDriver, count: int = 250) -> None:
    """Draws steps, so that many things are under way at the same time."""
    draws = Random(seed)
    kinds = (AckType.ACCEPT, AckType.ACCEPT, AckType.RELEASE, None)
    for _ in range(count):
        chance = draws.random()
        if chance < 0.12:
            delays = (0, 0, 50, *FAR)
            size = draws.randint(1, 3)
            driver.put([(draws.choice(delays), draws.choice((None,) * 5 + (100,)))] * size)
        elif chance < 0.45:
            fetch = driver.fetch_promoted if draws.random() < 0.5 else driver.fetch
            ranges = driver.check(fetch(max_records=draws.choice((1, 3, ALL))))
            kind = draws.choice(kinds)
            if kind is not None:
                driver.settle(ranges, kind)
        elif chance < 0.6:
            driver.promote()
        elif chance < 0.82:
            driver.commit_one(draws.randrange(6))
        elif chance < 0.85 and driver.writes:
            driver.fail()
        elif chance < 0.9:
            driver.fail_over(written=draws.randrange(3))
        elif chance < 0.93:
            driver.switch(draws.random() < 0.5)
        else:
            driver.wait(draws.choice((1, 120, 6_000, FAR_MS)))
    driver.finish()


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_writes_may_fail_and_overtake_each_other(first: int) -> None:
    for seed in range(first, first + 50):
        simulate(seed, LossyDriver())


Patch = pytest.MonkeyPatch


def _the_last_write_decides_about_the_cursor(patch: Patch) -> None:
    """A write that was overtaken moves the cursor back."""
    patch.setattr(ShareSchedule, "merged", lambda self, other: max(other, NO_SCHEDULE))


def _a_closed_schedule_forgets_its_cursor(patch: Patch) -> None:
    """The tuples are compared, although each part of them may be the later one."""

    def greater(self: ShareSchedule, other: ShareSchedule) -> ShareSchedule:
        return max(self, other)

    patch.setattr(ShareSchedule, "merged", greater)


def _a_cursor_that_promotes_nothing_is_not_stored(patch: Patch) -> None:
    on_promote = SharePartition._on_promote

    def forgetful(self: SharePartition, event: Promote, now: Now) -> None:
        on_promote(self, replace(event, is_stored=False), now)

    patch.setitem(share_partition._HANDLERS, Promote, forgetful)


def _the_window_delivers_scheduled_records(patch: Patch) -> None:
    patch.setattr(ShareSchedule, "covers", lambda self, offset: False)


def _promoted_records_are_not_stored(patch: Patch) -> None:
    apply = ShareImage.apply

    def forgetful(self: ShareImage, delta: Delta) -> None:
        apply(self, delta._replace(promoted=()))

    patch.setattr(ShareImage, "apply", forgetful)


def _a_new_leader_forgets_the_cursor(patch: Patch) -> None:
    begin = SharePartition.__init__

    def forgetful(self: SharePartition, *given: Any) -> None:
        begin(self, *given)
        cursor = ScheduleCursor.starting_at(self._schedule.cursor.floor)
        self._schedule = self._schedule._replace(cursor=cursor)

    patch.setattr(SharePartition, "__init__", forgetful)


@pytest.mark.parametrize(
    "plant",
    [
        _the_last_write_decides_about_the_cursor,
        _a_closed_schedule_forgets_its_cursor,
        _a_cursor_that_promotes_nothing_is_not_stored,
        _the_window_delivers_scheduled_records,
        _promoted_records_are_not_stored,
        _a_new_leader_forgets_the_cursor,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_breaks_a_rule(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Within the number of seeds that run clean without it."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantViolated)):
        for seed in range(SEEDS):
            simulate(seed, LossyDriver())


def test_the_window_passes_over_far_records() -> None:
    """More of them than the window can hold do not block the queue."""
    driver = FarDriver()
    driver.put([(FAR_MS + 1, None)] * 20)
    driver.put([(0, None)])
    assert driver.fetch() == ((20, 20, 1),) or driver.fetch() == ((20, 20, 1),)
    assert driver.machine.start_offset == 20


def test_a_crowd_comes_in_pieces() -> None:
    driver = FarDriver(replace(SETTINGS, in_flight_max=2))
    driver.put([(FAR_MS + 1, None)] * 5)
    while driver.machine.end_offset < 5:
        driver.fetch()
    driver.wait(FAR_MS + 1)
    taken: list[AcquiredRange] = []
    for _ in range(3):
        driver.promote()
        ranges = driver.fetch_promoted()
        driver.settle(ranges, AckType.ACCEPT)
        taken += ranges
    assert taken == [(0, 1, 1), (2, 3, 1), (4, 4, 1)]


def test_a_far_record_is_promoted_while_an_earlier_record_is_locked() -> None:
    driver = FarDriver()
    driver.put([(0, None), (FAR_MS + 1, None)])
    assert driver.fetch() == ((0, 0, 1),)
    for _ in range(20):
        driver.wait(4_000)
        assert driver.ack(0, 0, AckType.RENEW, is_renew=True) is ErrorCode.NONE
    driver.promote()
    assert driver.machine.start_offset == 0
    assert driver.fetch_promoted() == ((1, 1, 1),)
    assert driver.ack(0, 1) is ErrorCode.NONE
    assert driver.machine.start_offset == 2
    assert driver.machine.promoted == ()


def test_an_acknowledged_promoted_record_may_be_acknowledged_again_without_effect() -> None:
    driver = FarDriver()
    driver.put([(FAR_MS + 1, None)])
    driver.fetch()
    driver.wait(FAR_MS + 1)
    driver.promote()
    assert driver.ack(0, 0, member="ben") is ErrorCode.INVALID_RECORD_STATE
    assert driver.fetch_promoted() == ((0, 0, 1),)
    assert driver.ack(0, 0, member="ben") is ErrorCode.INVALID_RECORD_STATE
    assert driver.ack(0, 0) is ErrorCode.NONE
    assert driver.ack(0, 0) is ErrorCode.NONE


def test_lost_records_lose_their_promotions() -> None:
    """An unclean election: other records get the same offsets."""
    driver = FarDriver()
    driver.put([(FAR_MS + 1, None)])
    driver.put([(FAR_MS + 1, None)])
    driver.fetch()
    driver.wait(FAR_MS + 1)
    driver.promote()
    assert len(driver.machine.promoted) == 1
    del driver.log[1:], driver.jobs[1:]
    driver.log_end = 1
    driver.fail_over(truncate_to=1)
    assert [(span.first, span.last) for span in driver.machine.promoted] == [(0, 0)]
    assert driver.machine.schedule.cursor.end == 1
    driver.put([(FAR_MS + 1, None), (0, None)])
    driver.finish()
    assert driver.accepted == {0, 1, 2}
