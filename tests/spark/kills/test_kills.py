"""Deployed pipelines are exact while their workers, drivers and brokers are killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .run import Run

KINDS = ("driver killed", "worker killed", "broker killed", "worker frozen")


@pytest.mark.skipif(
    not os.environ.get("PENSTOCK_LONG"), reason="several minutes: set PENSTOCK_LONG=1"
)
@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("java")
def test_pipelines_are_exact_while_processes_are_killed(tmp_path: Path) -> None:
    """A table and a topic on two workers. `make chaos-pipelines` runs all five pipelines."""
    run = Run(tmp_path, 1, names=("table", "script"), workers=2, standalone=False, per_second=50)
    outcome = run(kinds=KINDS)
    assert outcome.complaints == []
    assert set(outcome.kills) == set(KINDS)
    assert outcome.records > 0
    assert outcome.results["table"]["rows"] == outcome.results["script"]["rows"] == outcome.records
    assert all(count >= 2 for count in outcome.drivers.values())
