"""A broker survives whatever it is sent: see `fuzzing` for what is demanded of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from compat.cluster import Cluster

from . import fuzzing


def test_damaged_frames() -> None:
    """20,000 damaged requests of every API and version, and the canary goes on singing."""
    findings = fuzzing.run(fuzzing.fuzz(20_000, seed=1))
    assert findings.failures == {}
    assert findings.frames == 20_000
    assert findings.answered > 4_000 and findings.refused > 4_000
    assert findings.canaries > 20


@pytest.mark.skipif(
    "PENSTOCK_LONG" not in os.environ,
    reason="its run time depends on how a live broker and its peers are scheduled: "
    "part of `make fuzz`, set PENSTOCK_LONG=1 to run it here",
)
def test_damaged_streams(tmp_path: Path) -> None:
    """Damaged frames, wrong lengths and torn connections do not reach the client next to them."""
    cluster = Cluster(tmp_path / "data")
    try:
        findings = asyncio.run(fuzzing.fuzz_sockets(cluster.start(), 4_000, seed=1))
        assert findings.failures == {}
        assert findings.canaries > 1
        assert "Traceback" not in cluster.output()
        assert cluster.stop() == 0
    finally:
        cluster.kill()
