"""A broker survives damaged requests. `fuzzing` states what is checked."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from compat.cluster import Cluster
from penstock.testing.slowness import patient

from . import fuzzing

# 30,000 frames take five seconds on an idle machine. PENSTOCK_LONG sends more.
STREAM_FRAMES, STREAMS_S = (300_000, 550) if "PENSTOCK_LONG" in os.environ else (30_000, 100)


def test_a_broker_survives_damaged_frames() -> None:
    """20,000 damaged requests of every API and version. A canary client is served all the time."""
    findings = fuzzing.run(fuzzing.fuzz(20_000, seed=1))
    assert findings.failures == {}
    assert findings.frames == 20_000
    assert findings.answered > 4_000 and findings.refused > 4_000
    assert findings.canaries > 20


def test_a_broker_survives_damaged_streams(tmp_path: Path) -> None:
    """Damaged frames, wrong lengths and broken connections do not affect another client."""

    async def run_case(address: str) -> fuzzing.Findings:
        async with asyncio.timeout(patient(STREAMS_S)):
            return await fuzzing.fuzz_sockets(address, STREAM_FRAMES, seed=1)

    cluster = Cluster(tmp_path / "data")
    try:
        findings = asyncio.run(run_case(cluster.start()))
        assert findings.failures == {}
        assert findings.frames >= STREAM_FRAMES
        assert findings.canaries > 3
        assert "Traceback" not in cluster.output()
        assert cluster.stop() == 0
    finally:
        cluster.kill()
