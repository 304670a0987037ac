"""Tests that the checks of the long exactly-once run can fail."""

from __future__ import annotations

import pytest

from spark.once.exactly_once_kills import PARTITIONS, Copy, KillsFailed

ROWS = 8
"""Two in each partition of the source; all belong to partition 0 of the target."""
ALL = [(source, number) for source in range(PARTITIONS) for number in range(2)]


def copied(rows: list[tuple[int, int]], target: int = 0) -> None:
    copy = Copy(ROWS)
    for source, number in rows:
        copy.add(target, b"%d:%d:...." % (source, number))
    copy.check("a reader")


def test_every_row_once_and_in_order_passes() -> None:
    """Rows of several partitions may be interleaved."""
    copied(ALL)
    copied([(source, number) for number in range(2) for source in range(PARTITIONS)])


@pytest.mark.parametrize(
    ("rows", "target", "fault"),
    [
        (ALL[:-1], 0, "did not get 3:1"),
        ([*ALL, (2, 1)], 0, "row 2:1 is there twice"),
        ([(0, 1), (0, 0)], 0, "row 0:0 comes behind 1"),
        ([(0, 0)], 1, "row 0:0 is in partition 1"),
    ],
)
def test_missing_duplicate_and_misplaced_rows_are_found(
    rows: list[tuple[int, int]], target: int, fault: str
) -> None:
    with pytest.raises(KillsFailed, match=fault):
        copied(rows, target)
