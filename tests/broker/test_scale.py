"""Small runs of the benchmarks. Their results are checked here; `make bench` measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.testing.slowness import patient

ROOT = Path(__file__).resolve().parents[2]


def run(module: str, *options: str) -> Any:
    """Returns the JSON object that a benchmark prints last."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--smoke", "--json", *options],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_scale_benchmark_runs() -> None:
    """A restarted broker leads all its topics, returns them in one response, and holds idle
    connections.
    """
    found = run("scale")
    assert found["start"]["ready_s"] > 0
    assert found["topics"]["topics"] == 50
    assert found["topics"]["metadata_bytes"] > 50 * len("topic-00000")
    assert found["connections"]["connections"] == 50


def test_the_broker_benchmark_runs() -> None:
    """It measures produce and fetch through the real protocol against a bare loop, at every
    size.
    """
    found = run("broker")
    assert set(found["ratios"]) == {
        "fetch",
        *(f"produce_{1024 * kib}" for kib in (1, 16, 128, 1024)),
    }
    assert all(share["by_clock"] > 0 for share in found["ratios"].values())


def test_the_benchmark_of_confluent_kafka_runs() -> None:
    """It produces and consumes everything, with every setting that is measured."""
    found = run("clients")
    assert len(found) == 6
    assert all(best["produce_per_s"] > 0 and best["consume_per_s"] > 0 for best in found.values())


def test_the_benchmark_of_python_clients_runs() -> None:
    """Every client, and every API of Penstock's own, produces and consumes everything that it was
    given.
    """
    found = run("libraries")
    assert {"confluent-kafka", "kafka-python", "aiokafka", "penstock aio"} <= set(found["produce"])
    rates = [*found["produce"].values(), *found["consume"].values()]
    assert all(rate > 0 for rate in rates)
    assert set(found["ratios"]) >= {"columns_produce_over_confluent", "aio_consume_over_aiokafka"}


def test_the_access_benchmark_runs() -> None:
    found = run("access")
    assert found["fast_path_ns"] > 0
    assert found["produce"]["server_us"].keys() == {"without", "with"}


def test_the_handshake_benchmark_runs() -> None:
    """A good client is served while others begin handshakes, and each of them has a result."""
    found = run("handshakes")
    for scenario in ("many_addresses", "one_address"):
        (only,) = found[scenario]["rounds"]
        ends = ("completed", "refused", "unfinished")
        assert sum(only["handshakes"][how] for how in ends) == found["handshakes"]
        assert only["handshakes"]["completed"] > 0
        assert only["alone"]["p99_ms"] > 0
        assert found[scenario]["p99_ratio"] > 0
