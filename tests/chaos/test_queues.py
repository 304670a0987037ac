"""No job of a queue is lost when brokers and workers are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .queue_ledger import EventFile, JobLedger
from .queues import run


@pytest.mark.timeout(400)
def test_jobs_survive_kills_of_a_broker_and_a_worker(tmp_path: Path) -> None:
    report = run(tmp_path, kills=2, seed=37, workers=2, per_second=20)
    assert report.complaints == []
    assert report.kills["worker"] == 1
    assert sum(report.kills.values()) == 2
    assert report.delivered >= report.put > 0


SOUND: list[list[Any]] = [
    ["began"],
    ["taken", 0, 0, 1.0],
    ["taken", 0, 1, 1.0],
    ["done", 0, 0, 2.0],
    ["lost", 0, 1],
    ["taken", 0, 1, 3.0],
    ["done", 0, 1, 4.0],
]


def test_jobs_that_were_delivered_and_then_done_cause_no_complaint() -> None:
    ledger = JobLedger()
    ledger.add(SOUND)
    assert ledger.complaints({(0, 0), (0, 1)}) == []
    assert (ledger.redelivered, ledger.counts["lost"]) == (1, 1)


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([["taken", 0, 0, 2.5]], "delivered after"),
        ([["done", 0, 7, 2.5]], "nobody has taken"),
        ([["fatal", "oops"]], "worker failed: oops"),
    ],
)
def test_every_kind_of_damage_is_reported(events: list[list[Any]], complaint: str) -> None:
    ledger = JobLedger()
    ledger.add(SOUND + events)
    [found] = ledger.complaints({(0, 0), (0, 1)})
    assert complaint in found


def test_a_job_that_nobody_got_is_reported() -> None:
    ledger = JobLedger()
    ledger.add(SOUND)
    [found] = ledger.complaints({(0, 0), (2, 9)})
    assert "1 jobs were never delivered" in found


def test_a_line_that_a_worker_has_not_finished_is_read_later(tmp_path: Path) -> None:
    """A worker may be killed while it writes."""
    events = EventFile(tmp_path / "events")
    assert events.read() == []
    events.path.write_text('["began"]\n["taken", 0')
    assert events.read() == [["began"]]
    events.path.write_text('["began"]\n["taken", 0, 5, 1.0]\n')
    assert events.read() == [["taken", 0, 5, 1.0]]
