"""Tests a query that is killed, stopped and restarted; `make spark-restarts` runs it longer."""

from __future__ import annotations

import os

import pytest

from spark.restarts import Outcome, RestartsFailed, check_log, run

ROUNDS = 2 if os.environ.get("PENSTOCK_LONG") else 1
"""Each round starts a JVM, and so does the end."""


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_reordered(java: None) -> None:
    """Killed once, in long runs also stopped once: every record is read at least once, in
    order, and no lag remains."""
    outcome = run(rounds=ROUNDS, seed=7)
    assert (outcome.killed, outcome.stopped) == (1, ROUNDS - 1)
    assert outcome.records > 0
    assert set(outcome.lag.values()) == {0}


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        (b'{"batch": 0, "rows": [[0, 0, "0:0"]]}', "has 2 records; the log has 1"),
        (b'{"batch": 0, "rows": [[0, 1, "0:1"], [0, 0, "0:0"]]}', "first difference at 0"),
        (b'{"batch": 0, "rows": [[0, 0, "0:1"]]}', "has '0:1' at 0"),
        (
            b'{"batch": 0, "rows": [[0, 0, "0:0"]]}\n{"batch": 0, "rows": [[0, 1, "0:1"]]}',
            "batch 0 was not the same",
        ),
    ],
)
def test_the_check_can_fail(log: bytes, fault: str) -> None:
    """A record that is missing, out of order, different, or in another batch than before."""
    with pytest.raises(RestartsFailed, match=fault):
        check_log(log, [2], Outcome())


def test_batches_may_be_repeated() -> None:
    """The same records with the same batch number are not an error, and neither is a
    line that a kill cut off."""
    line = b'{"batch": 0, "rows": [[0, 0, "0:0"], [0, 1, "0:1"]]}'
    outcome = Outcome()
    check_log(line + b'\n{"batch": 1, "ro\n' + line + b"\n", [2], outcome)
    assert (outcome.records, outcome.batches, outcome.repeated) == (2, 1, 1)
