"""Tests `penstock consume --group` with a real broker: records that were shown are committed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Runner
from penstock.testing import Broker

PROGRAM = (sys.executable, "-m", "penstock.cli.main")
Produce = Callable[[range], None]


@pytest.fixture
def topic(penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", penstock_broker.bootstrap)
    return penstock_broker.new_topic(1)


@pytest.fixture
def group(penstock_broker: Broker) -> str:
    return penstock_broker.new_name("group")


@pytest.fixture
def produce(topic: str, penstock: Runner, tmp_path: Path) -> Produce:
    def send(numbers: range) -> None:
        path = tmp_path / "input"
        path.write_text("".join(f"{number}\n" for number in numbers))
        assert penstock("produce", topic, "-f", str(path)).code == 0

    return send


def test_a_group_continues_where_it_stopped(
    topic: str, group: str, produce: Produce, penstock: Runner
) -> None:
    """Exactly there, for any `-n`. The consumer leaves the group when it ends."""
    produce(range(20))
    consume = ("consume", topic, "--group", group, "--from-beginning")
    assert penstock(*consume, "-n", "7").out.split() == [str(number) for number in range(7)]
    described = penstock("group", "describe", group, "--json").json
    assert (described["state"], described["lag"]) == ("Empty", 13)
    assert penstock(*consume, "-e").out.split() == [str(number) for number in range(7, 20)]
    assert penstock(*consume, "-e").out == ""
    produce(range(20, 22))
    assert penstock(*consume, "-n", "2", "--timeout", "60").out.split() == ["20", "21"]


def test_a_new_group_begins_at_the_end(
    topic: str, group: str, produce: Produce, penstock: Runner
) -> None:
    produce(range(5))
    ended = penstock("consume", topic, "--group", group, "--until-end")
    assert (ended.code, ended.out) == (0, "")


def test_records_that_were_not_read_are_shown_again(
    topic: str, group: str, produce: Produce, penstock: Runner
) -> None:
    """If the reader of the pipe exits early, only the records that it has read are committed."""
    produce(range(60_000))
    command = [*PROGRAM, "consume", topic, "--group", group, "--from-beginning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.wait(120) == 141
    again = penstock("consume", topic, "--group", group, "--from-beginning", "-e").out.split()
    assert again[-1] == "59999"
    assert [int(number) for number in again] == list(range(int(again[0]), 60_000))
    assert int(again[0]) <= 30_000, "what nobody had read was committed"
