"""Cursors of schedules against a simple model: each record is promoted once, and not too early."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.schedule.advance import advance
from penstock.schedule.cursor import DueEntry, ScheduleCursor
from penstock.schedule.index import MemoryDueIndex


def _index(*entries: tuple[int, int], end: int) -> MemoryDueIndex:
    index = MemoryDueIndex()
    index.add((DueEntry(*each) for each in entries), end)
    return index


START = ScheduleCursor.starting_at(0)


def test_records_are_promoted_in_order_of_their_due_times() -> None:
    index = _index((300, 0), (100, 1), (200, 2), end=3)
    promoted, cursor, next_ms = advance(START, index, 3, 250, 10)
    assert promoted == ((100, 1), (200, 2))
    assert cursor == (0, 3, 250, 2)
    assert next_ms == 300


def test_nothing_is_promoted_before_its_time() -> None:
    promoted, _, next_ms = advance(START, _index((300, 0), end=1), 1, 299, 10)
    assert promoted == ()
    assert next_ms == 300


def test_a_crowd_with_one_due_time_is_promoted_in_pieces() -> None:
    index = _index(*((100, offset) for offset in range(5)), end=5)
    promoted, cursor, next_ms = advance(START, index, 5, 500, 2)
    assert promoted == ((100, 0), (100, 1))
    assert next_ms == 100
    promoted, cursor, next_ms = advance(cursor, index, 5, 500, 2)
    assert promoted == ((100, 2), (100, 3))
    promoted, cursor, next_ms = advance(cursor, index, 5, 500, 2)
    assert promoted == ((100, 4),)
    assert next_ms is None
    assert advance(cursor, index, 5, 900, 2).entries == ()


def test_a_record_that_arrives_after_its_due_time_is_promoted_late() -> None:
    index = _index((100, 0), end=1)
    _, cursor, _ = advance(START, index, 1, 500, 10)
    index.add([DueEntry(200, 1), DueEntry(50, 2), DueEntry(600, 3)], 4)
    promoted, cursor, next_ms = advance(cursor, index, 4, 500, 10)
    assert promoted == ((200, 1), (50, 2))
    assert cursor.end == 4
    assert next_ms == 600


def test_the_end_stops_at_a_late_record_for_which_there_is_no_room() -> None:
    index = _index(end=1)
    _, cursor, _ = advance(START, index, 1, 500, 10)
    index.add([DueEntry(200, 1), DueEntry(50, 3)], 9)
    promoted, cursor, next_ms = advance(cursor, index, 9, 500, 1)
    assert promoted == ((200, 1),)
    assert cursor.end == 3
    assert next_ms == 50


def test_nothing_moves_without_room() -> None:
    index = _index((100, 0), (100, 1), end=2)
    promoted, cursor, next_ms = advance(START, index, 2, 500, 0)
    assert promoted == ()
    assert cursor.due == START.due
    assert next_ms == 100


def test_nothing_is_promoted_while_the_index_is_built_again() -> None:
    cursor = ScheduleCursor(0, 10, 100, 9)
    assert advance(cursor, _index((200, 1), end=5), 10, 500, 10) == ((), cursor, None)


def test_records_below_the_floor_or_not_readable_are_not_promoted() -> None:
    index = _index((100, 0), (100, 4), (100, 7), end=9)
    promoted, cursor, _ = advance(ScheduleCursor.starting_at(3), index, 6, 500, 10)
    assert promoted == ((100, 4),)
    assert cursor.end == 6


def test_a_clock_that_goes_back_moves_nothing_back() -> None:
    index = _index((100, 0), end=1)
    _, cursor, _ = advance(START, index, 1, 500, 10)
    assert advance(cursor, index, 1, 200, 10).cursor == cursor


def test_a_lost_tail_of_the_log_is_looked_at_again() -> None:
    cursor = ScheduleCursor(3, 10, 100, 9)
    assert cursor.truncated(7) == (3, 7, 100, 9)
    assert cursor.truncated(2) == (2, 2, 100, 9)
    assert cursor.truncated(12) == cursor


class Schedules(RuleBasedStateMachine):
    """A log that grows, an index that is built again now and then, and a cursor that is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int | None] = [None, 5, None]
        """The due time of the record at each offset."""
        self.floor = 1
        self.readable_end = 0
        self.index = MemoryDueIndex()
        self.now_ms = 0
        self.stored = ScheduleCursor.starting_at(self.floor)
        self.promoted: list[DueEntry] = []

    def entries(self, first: int, end: int) -> list[DueEntry]:
        found = enumerate(self.log[first:end], first)
        return [DueEntry(due_ms, offset) for offset, due_ms in found if due_ms is not None]

    @rule(dues=st.lists(st.none() | st.integers(-20, 60), max_size=6))
    def append(self, dues: list[int | None]) -> None:
        self.log += [None if due is None else max(0, self.now_ms + due) for due in dues]

    @rule(count=st.integers(1, 5))
    def commit(self, count: int) -> None:
        self.readable_end = min(len(self.log), self.readable_end + count)

    @rule(count=st.integers(1, 8))
    def scan(self, count: int) -> None:
        first, end = self.index.end, min(len(self.log), self.index.end + count)
        self.index.add(self.entries(first, end), end)

    @rule()
    def fail_over(self) -> None:
        """A new leader builds its index from the log."""
        self.index = MemoryDueIndex()

    @rule(ms=st.integers(-10, 40))
    def tick(self, ms: int) -> None:
        self.now_ms = max(0, self.now_ms + ms)

    @rule(room=st.integers(0, 5), is_stored=st.booleans())
    def advance(self, room: int, is_stored: bool) -> None:
        entries, cursor, next_ms = advance(
            self.stored, self.index, self.readable_end, self.now_ms, room
        )
        assert len(entries) <= room
        assert cursor >= self.stored
        for each in entries:
            assert self.floor <= each.offset < self.readable_end
            # A clock that goes back has not un-happened what was due.
            assert each.due_ms <= max(self.now_ms, self.stored.due_ms)
        in_order = [each for each in entries if each > self.stored.due]
        assert in_order == sorted(in_order)
        if len(entries) < room and next_ms is not None:
            assert next_ms > self.now_ms
        if is_stored:
            self.promoted += entries
            self.stored = cursor

    @invariant()
    def each_record_was_promoted_once(self) -> None:
        assert len(set(self.promoted)) == len(self.promoted)

    @invariant()
    def the_cursor_says_exactly_what_was_promoted(self) -> None:
        everything = self.entries(0, len(self.log))
        expected = {each for each in everything if self.stored.has_promoted(each)}
        assert set(self.promoted) == expected

    def teardown(self) -> None:
        """In the end, with room and time, each record has been promoted."""
        self.readable_end = len(self.log)
        self.scan(len(self.log))
        self.now_ms = 10_000
        while advance(self.stored, self.index, self.readable_end, self.now_ms, 3).entries:
            self.advance(3, True)
        assert sorted(self.promoted) == sorted(self.entries(self.floor, len(self.log)))


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
