"""The benchmark of queues runs, on Penstock alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from penstock.testing.slowness import patient

ROOT = Path(__file__).parents[3]


def test_the_benchmark_of_queues_runs() -> None:
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.queues", "--smoke", "--json"),
            *("--only", "penstock", "--scenario", "together", "load"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(120),
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["left_out"] == ["rabbitmq-quorum", "rabbitmq-classic", "nats"]
    figures = result["results"]["penstock"]
    assert figures["together"]["both"] > 0 and figures["load"]["p99_ms"] > 0
