"""Hostile connections do not harm a good client: a small run of the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from penstock.testing.slowness import patient

ROOT = Path(__file__).resolve().parents[2]
MEMORY_MIB_MAX = 500
"""75 connections that read nothing have asked for 50 MB each, forty times, and 75 have announced
100 MB each. A broker that read the first response of each into memory would hold 3.5 GB.
"""


def test_hostile_connections_cost_little_memory_and_the_good_client_is_served() -> None:
    """All of them stay connected meanwhile. `make bench` measures how fast the good client is
    served.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hostile", "--smoke", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(300),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["attack"]["opened"] >= 300
    assert found["attack"]["open_deaf"] > 0
    assert found["memory_peak_mib"] < MEMORY_MIB_MAX
    assert found["hostile"]["p50_ms"] > 0
