"""The Java client, an old and a new version: the reference for all other clients."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat.clients.base import HOUR_AGO_MS
from compat.toolchain import HERE, java_class_path, java_flags, run_scenario, tool
from penstock.testing.slowness import patient

VERSIONS = ["3.9.2", "4.4.0"]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COMPILE_S = 150
Scenario = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module", params=VERSIONS)
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the class path of our scenarios, compiled against one version of the client."""
    jars = java_class_path(request.param)
    compiler = tool("javac", "install a JDK")
    classes = tmp_path_factory.mktemp(f"java-{request.param}")
    sources = sorted(map(str, Path(HERE, "java").glob("*.java")))
    result = subprocess.run(
        [compiler, "-nowarn", "-cp", jars, "-d", str(classes), *sources],
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(COMPILE_S),
    )
    assert result.returncode == 0, result.stderr
    return f"{classes}:{jars}"


@pytest.fixture
def scenario(java: str, broker: str, name: Callable[[], str]) -> Scenario:
    def run(which: str) -> dict[str, Any]:
        arguments = [broker, which, name(), str(HOUR_AGO_MS)]
        return run_scenario(["java", *java_flags(), "-cp", java, "Scenarios", *arguments])

    return run


def encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def expected_records() -> list[dict[str, Any]]:
    headers = [("again", b"first"), ("null", None), ("again", b"second"), ("empty", b"")]
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (b"key", b"value"),
        (None, b"no key"),
        (b"tombstone", None),
        (b"", b""),
        (b"headers", b"h"),
        *((b"%d" % i, b"compressible " * i) for i in range(5, 100)),
    ]
    return [
        {
            "partition": 0,
            "offset": offset,
            "timestamp": HOUR_AGO_MS + offset,
            "key": encoded(key),
            "value": encoded(value),
            "headers": [[k, encoded(v)] for k, v in headers] if key == b"headers" else [],
        }
        for offset, (key, value) in enumerate(pairs)
    ]


def test_records(scenario: Scenario) -> None:
    """Every codec, header, null, size and acks setting; idempotence; prompt long polls."""
    steps = scenario("records")
    for codec in CODECS:
        for isolation in ("read_uncommitted", "read_committed"):
            assert steps[f"{codec} {isolation}"]["records"] == expected_records()
    assert steps["large"] == {"offsets": [0, 1, 2], "same": True}
    assert steps["too large"] == {"failure": "RecordTooLargeException"}
    assert steps["idempotent"] == {
        "dense": True,
        "read": 1500,
        "distinct": 1500,
        "homes": 30,
        "used": 3,
    }
    for acks in ("0", "1", "all"):
        assert steps[f"acks {acks}"]["offsets"] == list(range(50))
    assert all(0 <= wait_ms < patient(6000) for wait_ms in steps["latency"]["ms"]), steps["latency"]


@pytest.mark.slow
def test_groups(scenario: Scenario) -> None:
    """Four assignors, members that join and leave, commits, a static member that comes back."""
    steps = scenario("groups")
    for assignor in (
        "RangeAssignor",
        "RoundRobinAssignor",
        "StickyAssignor",
        "CooperativeStickyAssignor",
    ):
        step = steps[assignor]
        assert step["covered"] == [True] * 5, assignor
        assert step["sizes"] == [2, 2, 2], assignor
        assert (step["read"], step["count"], step["distinct"]) == (True, 120, 120), assignor
    revoked = [
        partitions
        for what, partitions in steps["CooperativeStickyAssignor"]["first saw the third join"]
        if what == "revoked"
    ]
    assert sum(map(len, revoked)) == 1
    assert sorted(map(int, steps["resume"]["values"])) == list(range(40, 60))
    assert steps["committed"] == {"offset": 11, "metadata": "note"}
    static = steps["static"]
    assert static["before"] == static["after"]
    assert static["covered"]
    assert static["rebalances of the other"] == 0


def test_offsets(scenario: Scenario) -> None:
    """Bounds, seeks, timestamps, pause and resume, resets, deleted records."""
    steps = scenario("offsets")
    assert steps["bounds"] == {"first": 0, "next": 50}
    for target in (0, 33, 49, 7):
        assert steps[f"seek {target}"] == {"offsets": list(range(target, 50)), "position": 50}
    assert steps["times"] == {"offsets": [0, 0, 1, 30, 30, 49, None]}
    assert steps["pause"] == {"paused": 0, "resumed": [50, 51, 52]}
    assert steps["out of range"] == {"offset": 0}
    assert steps["deleted"] == {"first": 20, "read": 20}
    assert steps["reset none"] == {"failure": "NoOffsetForPartitionException"}
    assert steps["reset latest"] == {"position": 53}


def test_administration(scenario: Scenario, broker: str) -> None:
    """Cluster, topics, configs, groups, log directories: results and errors."""
    steps = scenario("admin")
    assert set(broker.split(",")) <= set(steps["cluster"]["nodes"])
    assert steps["cluster"]["id"]
    controller = steps["cluster"]["controller"]
    assert steps["described"] == {
        "partitions": [[0, controller, 1, 1], [1, controller, 1, 1]],
        "internal": False,
        "listed": True,
    }
    assert steps["grown"] == {"grown": True, "offsets": {str(i): 0 for i in range(5)}}
    assert steps["refused"] == {
        "exists": "TopicExistsException",
        "name": "InvalidTopicException",
        "replicas": "InvalidReplicationFactorException",
        "config": "InvalidConfigurationException",
        "fewer": "InvalidPartitionsException",
        "unknown": "UnknownTopicOrPartitionException",
    }
    assert steps["deleted"] == {"gone": True, "again": "UnknownTopicOrPartitionException"}
    assert steps["defaults"]["partitions"] >= 1
    configs = steps["configs"]
    assert configs["retention.ms"] == "1000000"
    assert configs["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert (configs["cleanup.policy"], configs["default"]) == ("delete", True)
    assert configs["count"] >= 20
    assert steps["changed"] == {"changed": True, "refused": "InvalidConfigurationException"}
    assert {"log.retention.ms", "num.partitions", "default.replication.factor"} <= set(
        steps["broker configs"]["names"]
    )
    assert steps["live group"] == {
        "state": "Stable",
        "assignor": "range",
        "members": 1,
        "offsets": {"0": 10, "1": 10},
        "delete": "GroupNotEmptyException",
        "delete offsets": "GroupSubscribedToTopicException",
    }
    assert steps["idle group"] == {"state": "Empty", "listed": True}
    assert steps["changed group"] == {"offsets": {"1": 3}}
    assert steps["deleted group"] == {"again": "GroupIdNotFoundException", "offsets": {}}
    sizes = steps["directories"]["sizes"]
    assert sizes["1"] == 0
    assert sizes["0"] > 100
