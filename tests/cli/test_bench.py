"""Tests `penstock bench` with a real broker.

The runs are small, because the results depend on the machine.
"""

from __future__ import annotations

import pytest

from cli.conftest import Runner
from penstock.testing import Broker


@pytest.fixture
def topic(penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns an unused name; `bench produce` creates the topic."""
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", penstock_broker.bootstrap)
    return penstock_broker.new_name("bench")


@pytest.mark.parametrize("lane", ["tables", "records"])
def test_produced_records_are_consumed(topic: str, lane: str, penstock: Runner) -> None:
    arguments = ("--topic", topic, "--lane", lane, "--json")
    produced = penstock("bench", "produce", *arguments, "-n", "60001", "-s", "10", "-p", "2").json
    assert (produced["records"], produced["bytes"]) == (60_001, 600_010)
    consumed = penstock("bench", "consume", *arguments).json
    assert (consumed["records"], consumed["bytes"]) == (60_001, 600_010)
    for result in (produced, consumed):
        assert result["records_per_s"] > 0
        assert result["request_p99_ms"] >= result["request_p50_ms"] > 0
    described = penstock("topic", "describe", topic, "--json").json["topics"][0]
    assert sum(part["next_offset"] for part in described["partitions"]) == 60_001
    some = penstock("bench", "consume", *arguments, "-n", "1000").json
    assert some["records"] == 1000


def test_the_summary_is_a_sentence(topic: str, penstock: Runner) -> None:
    ended = penstock("bench", "produce", "-t", topic, "-n", "10", "--acks", "1")
    assert ended.code == 0
    assert ended.out.startswith(f"produced 10 records (1000 B) of {topic} in ")
    assert "records/s" in ended.out


def test_an_empty_topic_is_an_error(topic: str, penstock_broker: Broker, penstock: Runner) -> None:
    penstock_broker.new_topic(name=topic)
    ended = penstock("bench", "consume", "-t", topic)
    assert ended.code == 2
    assert "is empty: fill it with: penstock bench produce" in ended.err


def test_refused_records_end_the_run(topic: str, penstock_broker: Broker, penstock: Runner) -> None:
    """With the broker's reason, in both lanes."""
    penstock_broker.new_topic(name=topic, configs={"max.message.bytes": "200"})
    for lane in ("tables", "records"):
        ended = penstock("bench", "produce", "-t", topic, "-n", "100", "-s", "500", "--lane", lane)
        assert ended.code == 1, ended
        assert "max.message.bytes" in ended.err
