"""The checks of delay topics: each rule finds what breaks it."""

from __future__ import annotations

import pytest

from penstock.sim.checkers.delays import check_delays
from penstock.sim.history import INFO, OK, CopiesRead, CopyRow, DelayedSend, Entry

LATE_MS = 1_000_000
FIRST: CopyRow = (0, "a", 5_000, 10, 0)
SECOND: CopyRow = (1, "b", 3_000, 20, 0)
COPY_OF_FIRST: CopyRow = (1, "a", 0, 60_001, 10)
COPY_OF_SECOND: CopyRow = (0, "b", 0, 60_000, 20)


def source(*rows: CopyRow) -> CopiesRead:
    return read(*rows, name="later-0", is_source=True, is_all=True)


def read(
    *rows: CopyRow,
    name: str = "reminders-0",
    is_source: bool = False,
    is_all: bool = False,
    status: str = OK,
    wall_max_ms: int = LATE_MS,
) -> CopiesRead:
    return CopiesRead(
        process="rd",
        status=status,
        begun_ms=1,
        ended_ms=2,
        partition_name=name,
        rows=rows,
        is_source=is_source,
        is_all=is_all,
        wall_max_ms=wall_max_ms,
    )


def sent(
    value: str, *, status: str = OK, is_promised: bool = True, wall_max_ms: int = 0
) -> DelayedSend:
    return DelayedSend(
        process="delayed0",
        status=status,
        begun_ms=0,
        ended_ms=1,
        partition_name="later-0",
        value=value,
        due_ms=0,
        is_promised=is_promised,
        wall_max_ms=wall_max_ms,
    )


def rules(*entries: Entry) -> list[str]:
    return [violation.rule for violation in check_delays(entries)]


COPIED = (source(FIRST, SECOND), read(COPY_OF_FIRST, COPY_OF_SECOND, is_all=True))


def test_one_copy_of_each_record_in_order_is_right() -> None:
    """Copies may be read more than once. Without a delay topic there is nothing to check."""
    assert rules(*COPIED, read(COPY_OF_SECOND), sent("a"), sent("b")) == []
    assert rules() == []


def test_a_record_has_exactly_one_copy() -> None:
    twice = (2, *COPY_OF_FIRST[1:])
    assert rules(COPIED[0], read(COPY_OF_SECOND, is_all=True)) == ["E46"]
    assert rules(COPIED[0], read(COPY_OF_FIRST, COPY_OF_SECOND, twice, is_all=True)) == ["E46"]
    other = read(COPY_OF_FIRST, name="reminders2-0", is_all=True)
    assert rules(*COPIED, other) == ["E46"]


def test_a_copy_is_of_a_committed_record() -> None:
    """An aborted record is not in what a reader of committed records gets."""
    assert rules(source(FIRST), COPIED[1]) == ["E46"]


@pytest.mark.parametrize("copy", [(1, "a", 5_000, 60_001, 10), (1, "a", 0, 60_001, 11)])
def test_a_copy_has_no_due_time_and_the_timestamp_of_its_record(copy: CopyRow) -> None:
    assert rules(COPIED[0], read(copy, COPY_OF_SECOND, is_all=True)) == ["E46"]


def test_an_acknowledged_record_is_in_the_delay_topic() -> None:
    """One of a transaction may have been aborted."""
    assert rules(*COPIED, sent("c")) == ["E46"]
    assert rules(*COPIED, sent("c", is_promised=False)) == []
    assert rules(*COPIED, sent("c", status=INFO)) == []


def test_what_was_read_stays() -> None:
    assert rules(*COPIED, read((5, "a", 0, 60_001, 10))) == ["E46"]


def test_no_copy_is_read_before_its_record_is_due() -> None:
    assert rules(*COPIED, read(COPY_OF_FIRST, wall_max_ms=4_999)) == ["E47"]
    assert rules(*COPIED, read(COPY_OF_FIRST, wall_max_ms=5_000)) == []


def test_copies_are_in_the_order_of_due_times() -> None:
    """A record that came late may be copied late. With transactions nobody knows when it could be
    read."""
    swapped = read((0, "a", 0, 60_001, 10), (1, "b", 0, 60_002, 20), is_all=True)
    assert rules(COPIED[0], swapped, sent("b")) == ["E48"]
    assert rules(COPIED[0], swapped, sent("b", wall_max_ms=50_000)) == []
    assert rules(COPIED[0], swapped, sent("b"), sent("c", is_promised=False)) == []


def test_records_that_do_not_come_are_a_failure() -> None:
    assert rules(COPIED[0], read(is_all=True, status=INFO)) == ["E14"]
