"""Deployed pipelines are exact while their workers, drivers and brokers are killed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from .run import Outcome, Run

SOME = ("driver killed", "broker killed")
MORE = ("driver killed", "worker killed", "broker killed", "worker frozen")


def kill(folder: Path, kinds: Sequence[str]) -> Outcome:
    """A table and a topic on two workers. `make chaos-pipelines` runs all five pipelines."""
    run = Run(
        folder,
        1,
        names=("table", "script"),
        workers=2,
        standalone=False,
        spares=False,
        per_second=50,
    )
    outcome = run(kinds=kinds)
    assert outcome.complaints == []
    assert set(outcome.kills) == set(kinds)
    assert outcome.records > 0
    assert outcome.results["table"]["rows"] == outcome.results["script"]["rows"] == outcome.records
    return outcome


@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("java")
def test_pipelines_are_exact_while_a_driver_and_a_broker_are_killed(tmp_path: Path) -> None:
    outcome = kill(tmp_path, SOME)
    assert max(outcome.drivers.values()) >= 2


@pytest.mark.skipif(
    not os.environ.get("PENSTOCK_LONG"), reason="several minutes: set PENSTOCK_LONG=1"
)
@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("java")
def test_pipelines_are_exact_while_workers_are_killed_and_frozen(tmp_path: Path) -> None:
    outcome = kill(tmp_path, MORE)
    assert sum(outcome.drivers.values()) >= 4
