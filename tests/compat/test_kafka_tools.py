"""Kafka's own command line tools, where they send requests that clients do not.

The tools are the real ones, downloaded like the Java clients. If they are not available, the tests
are skipped with the reason.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from compat.cluster import SETTINGS, Cluster
from compat.toolchain import java_class_path
from penstock.testing.slowness import patient

KAFKA = "4.0.0"
TOOL_TIMEOUT_S = 120
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
THROTTLES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
UNLIMITED = str(2**63 - 1)


@pytest.fixture(scope="module")
def class_path() -> str:
    return java_class_path(KAFKA, "kafka-tools")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, class_path: str) -> Iterator[str]:
    settings = {**SETTINGS, "offsets.topic.num.partitions": "2"}
    cluster = Cluster(tmp_path_factory.mktemp("tools") / "data", 2, settings)
    try:
        yield cluster.start()
        cluster.stop()
    finally:
        cluster.kill()


def run_tool(class_path: str, name: str, *options: str) -> str:
    result = subprocess.run(
        ["java", *JVM, "-cp", class_path, name, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(TOOL_TIMEOUT_S),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def throttles(admin: Any, broker: int) -> list[str]:
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    shown = admin.describe_configs([resource])[resource].result(patient(30))
    return [shown[name].value for name in THROTTLES]


def test_verifying_a_move_clears_its_throttles(two: str, class_path: str, tmp_path: Path) -> None:
    """The tool also deletes a throttle that our broker does not have, and must not fail there."""
    admin: Any = AdminClient({"bootstrap.servers": two})
    admin.create_topics([NewTopic("moved", 1, 1)])["moved"].result(patient(30))
    home = admin.list_topics("moved", patient(30)).topics["moved"].partitions[0].replicas[0]
    plan = tmp_path / "plan.json"
    move = {"topic": "moved", "partition": 0, "replicas": [1 - home]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    options = ("--bootstrap-server", two, "--reassignment-json-file", str(plan))
    run_tool(class_path, REASSIGN, *options, "--execute", "--throttle", "1000000")
    assert throttles(admin, home) == ["1000000", "1000000"]
    for _ in range(10):
        told = run_tool(class_path, REASSIGN, *options, "--verify")
        if "is completed" in told:
            break
    assert "Clearing topic-level throttles" in told
    for broker in (0, 1):
        assert throttles(admin, broker) == [UNLIMITED, UNLIMITED]


def test_hanging_transactions_can_be_searched_on_any_broker(two: str, class_path: str) -> None:
    """Followers answer for their own logs."""
    admin: Any = AdminClient({"bootstrap.servers": two})
    admin.create_topics([NewTopic("replicated", 2, 2)])["replicated"].result(patient(30))
    for broker in ("0", "1"):
        options = ("--bootstrap-server", two, "find-hanging", "--broker-id", broker)
        assert "ProducerId" in run_tool(class_path, TRANSACTIONS, *options)
