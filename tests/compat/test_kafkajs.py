"""kafkajs: the JavaScript client, which ignores the minimum version that a broker supports."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from compat.clients.base import HOUR_AGO_MS
from compat.toolchain import HERE, node_modules, run_scenario
from penstock.testing.slowness import patient

PACKAGES = {"kafkajs": "2.2.4", "kafkajs-snappy": "1.1.0"}
Scenario = Callable[[str], dict[str, Any]]


@pytest.fixture
def scenario(broker: str, name: Callable[[], str]) -> Scenario:
    modules = node_modules(PACKAGES)
    script = str(HERE / "node" / "scenarios.js")

    def run(which: str) -> dict[str, Any]:
        extra = {"NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return run_scenario(["node", script, broker, which, name(), str(HOUR_AGO_MS)], extra)

    return run


def encoded(text: str | None) -> str | None:
    return None if text is None else base64.b64encode(text.encode()).decode()


def expected_records() -> list[dict[str, Any]]:
    headers = [
        ["one", encoded("first")],
        ["again", [encoded("a"), encoded("b")]],
        ["empty", encoded("")],
    ]
    pairs = [
        ("key", "value"),
        (None, "no key"),
        ("tombstone", None),
        ("empty", ""),
        ("headers", "h"),
        *((str(i), "long " * (i + 1)) for i in range(50)),
    ]
    return [
        {
            "offset": offset,
            "timestamp": HOUR_AGO_MS + offset,
            "key": encoded(key),
            "value": encoded(value),
            "headers": headers if key == "headers" else [],
        }
        for offset, (key, value) in enumerate(pairs)
    ]


def test_records(scenario: Scenario) -> None:
    """Codecs, headers, nulls, large records, idempotence, acks."""
    steps = scenario("records")
    for codec in ("none", "gzip", "snappy"):
        assert steps[codec]["records"] == expected_records(), codec
    assert steps["large"] == {"same": True}
    assert steps["idempotent"] == {"offsets": list(range(0, 100, 5))}
    for acks in (0, 1, -1):
        assert steps[f"acks {acks}"] == {"found": True}


def test_groups(scenario: Scenario) -> None:
    """Members join and leave, commits persist, a waiting consumer gets records at once."""
    steps = scenario("groups")
    assert steps["membership"] == {"covered": [True] * 5, "count": 120, "distinct": 120}
    assert steps["described"]["groups"] == [
        {"state": "Stable", "protocol": "RoundRobinAssigner", "members": 3}
    ]
    assert steps["resume"] == {"values": list(range(40, 60))}
    assert all(wait_ms < patient(4000) for wait_ms in steps["latency"]["ms"]), steps["latency"]


def test_offsets(scenario: Scenario) -> None:
    """Bounds, timestamps, seek, pause and resume, a group's offsets, deleted records."""
    steps = scenario("offsets")
    assert steps["bounds"] == {
        "ends": [[0, 0, 20], [1, 0, 20]],
        "early": [[0, 0], [1, 0]],
        "middle": [[0, 10], [1, 10]],
        "late": [[0, 20], [1, 20]],
    }
    assert steps["seek"] == {"offsets": [15, 16, 17, 18, 19]}
    assert steps["pause"] == {"paused": [1, 1], "all": [0, 0, 1, 1]}
    assert [0, 7] in steps["set"]["offsets"]
    assert steps["deleted records"] == {"low": 5}


def test_administration(scenario: Scenario, broker: str) -> None:
    """Cluster, topics, configs, groups."""
    steps = scenario("administration")
    assert set(broker.split(",")) <= set(steps["cluster"]["brokers"])
    assert steps["cluster"]["controllerIsBroker"]
    assert steps["cluster"]["id"]
    assert steps["topics"] == {
        "listed": True,
        "grown": True,
        "again": False,
        "bad": "INVALID_TOPIC_EXCEPTION",
        "unknown": "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert steps["configs"] == {"retention": "1000000", "changed": True, "reset": "604800000"}
    assert steps["groups"] == {"busy": "NON_EMPTY_GROUP", "listed": True, "gone": True}
    assert steps["deleted"] == {"deleted": True}
