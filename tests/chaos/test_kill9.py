"""No acknowledged record is lost, duplicated or moved when the broker is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kill9 import History, run


def test_acknowledged_records_survive_sigkill(tmp_path: Path) -> None:
    """An idempotent producer with acks=all, and four kills of its broker."""
    report = run(tmp_path / "data", rounds=4, seed=1)
    assert report.complaints == []
    assert report.acknowledged == report.sent > 100
    assert report.unacknowledged_at_kill > 0


def history(*numbers: int) -> History:
    """Returns a history of numbers sent to partition 0 and acknowledged with offsets from 0 on."""
    made = History()
    made.sent[0] = list(numbers)
    made.offsets = {number: offset for offset, number in enumerate(numbers)}
    return made


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        ([(0, 0), (1, 3)], "lost 1 acknowledged"),
        ([(0, 0), (1, 3), (2, 6), (3, 6)], "more than once"),
        ([(0, 3), (1, 0), (2, 6)], "another order"),
        ([(0, 0), (1, 3), (2, 6), (3, 9)], "never sent"),
        ([(0, 0), (2, 3), (3, 6)], "other offsets"),
    ],
)
def test_the_verdict_reports_every_kind_of_damage(
    held: list[tuple[int, int]], complaint: str
) -> None:
    """Each kind of damage has its own complaint, so no complaint means a sound broker."""
    complaints = history(0, 3, 6).verdict([held, [], []])
    assert any(complaint in found for found in complaints), complaints


def test_the_verdict_accepts_what_was_sent() -> None:
    """Numbers in order at their offsets cause no complaint, acknowledged or not."""
    made = history(0, 3, 6)
    del made.offsets[6]
    assert made.verdict([[(0, 0), (1, 3), (2, 6)], [], []]) == []
