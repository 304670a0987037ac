"""Tests every command with a real broker that `penstock up` runs."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Ended, Runner
from penstock.cli.supervise import known_to
from penstock.testing.slowness import patient

PROGRAM = (sys.executable, "-m", "penstock.cli.main")
PATIENCE_S = 150


class Newcomer:
    """Runs commands against a cluster, in this process, because that is faster."""

    def __init__(self, runner: Runner, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._runner = runner
        self._monkeypatch = monkeypatch
        self._folder = folder

    def at(self, bootstrap: str) -> None:
        self._monkeypatch.setenv("PENSTOCK_BOOTSTRAP", bootstrap)
        self._monkeypatch.setenv("COLUMNS", "80")

    def __call__(self, *arguments: str, code: int = 0) -> Ended:
        ended = self._runner(*arguments)
        assert ended.code == code, ended
        return ended

    def produce(self, topic: str, text: str, *arguments: str) -> None:
        path = self._folder / "input"
        path.write_text(text)
        self("produce", topic, "--file", str(path), *arguments)


@pytest.fixture
def newcomer(penstock: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Newcomer:
    return Newcomer(penstock, monkeypatch, tmp_path)


@contextmanager
def cluster(data: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Runs `penstock up`; yields its bootstrap addresses and its process."""
    command = [*PROGRAM, "up", "--data", str(data), "--port", "0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert select.select([process.stdout], [], [], PATIENCE_S)[0], "it is not ready in time"
            line = process.stdout.readline()
            if not line.startswith("ready bootstrap="):
                process.kill()
                raise AssertionError(line + process.communicate()[1])
            yield line.strip().removeprefix("ready bootstrap="), process
        finally:
            process.terminate()
            try:
                process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def eventually(condition: Callable[[], Any]) -> None:
    """Polls until the condition holds; other processes need time."""
    wait = select.poll()
    end = time.monotonic() + patient(PATIENCE_S)
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        wait.poll(20)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("live")) as (bootstrap, _):
        yield bootstrap


@pytest.fixture
def broker(running: str, newcomer: Newcomer) -> str:
    newcomer.at(running)
    return running


@pytest.mark.usefixtures("broker")
def test_the_first_steps_of_a_new_user(newcomer: Newcomer) -> None:
    """A topic is created, filled, read, described, changed and deleted."""
    made = newcomer("topic", "create", "orders", "-p", "3")
    assert made.out == "created topic orders: 3 partitions, replication factor 1\n"
    assert "exists" in newcomer("topic", "create", "orders", code=1).err
    newcomer.produce("orders", "a:1\nb:2\na:3\n", "-K", ":")
    read = newcomer("consume", "orders", "--from-beginning", "-e", "-f", "%k=%v").out.split()
    assert sorted(read) == ["a=1", "a=3", "b=2"]
    assert read.index("a=1") < read.index("a=3")
    described = newcomer("topic", "describe", "orders", "--json").json["topics"][0]
    assert sum(partition["next_offset"] for partition in described["partitions"]) == 3
    newcomer("topic", "alter", "orders", "-p", "4", "-c", "retention.ms=1000")
    shown = newcomer("topic", "describe", "orders").out
    assert ["retention.ms", "1000", "topic"] in [line.split() for line in shown.splitlines()]
    assert "4 partitions" in shown
    newcomer("topic", "alter", "orders", "--delete-config", "retention.ms")
    assert "colour" in newcomer("topic", "alter", "orders", "-c", "colour=red", code=1).err
    newcomer("topic", "delete", "orders", "--yes")
    listed = newcomer("topic", "list", "--json").json["topics"]
    assert "orders" not in [topic["name"] for topic in listed]
    assert "does not exist" in newcomer("consume", "orders", code=1).err


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_returned_unchanged(newcomer: Newcomer, codec: str) -> None:
    """Keys, nulls, headers, timestamps and binary data, with every compression."""
    lines = [
        {"key": "k", "value": "v", "headers": [{"key": "h", "value": "x"}], "timestamp": 1000},
        {"key": None, "value": None, "headers": [], "timestamp": 2000},
        {"key_base64": "/w==", "value": "é\n", "headers": [], "timestamp": 3000},
    ]
    given = "".join(json.dumps(line) + "\n" for line in lines)
    topic = f"whole-{codec}"
    newcomer.produce(topic, given, "--json-lines", "--compression", codec)
    read = newcomer("consume", topic, "--from-beginning", "-e", "--json").out
    found = [json.loads(line) for line in read.splitlines()]
    for line in found:
        for topic_partition in ("topic", "partition", "offset"):
            del line[topic_partition]
    assert found == lines


@pytest.mark.usefixtures("broker")
def test_reading_from_a_time_and_an_offset(newcomer: Newcomer) -> None:
    """By the records' timestamps."""
    given = "".join(f'{{"value": "{n}", "timestamp": {n * 1000}}}\n' for n in range(1, 11))
    newcomer.produce("timed", given, "--json-lines")
    assert newcomer("consume", "timed", "-e", "--since", "8000").out.split() == ["8", "9", "10"]
    assert newcomer("consume", "timed", "-e", "--offset", "-2").out.split() == ["9", "10"]


def test_many_records_with_many_keys(broker: str, newcomer: Newcomer) -> None:
    """Nothing is lost or duplicated, and every key keeps its order."""
    newcomer("topic", "create", "many", "-p", "4")
    newcomer.produce("many", "".join(f"k{n % 100}:{n}\n" for n in range(50_000)), "-K", ":")
    read = newcomer("consume", "many", "--from-beginning", "-e", "-f", "%k %v").out
    seen: dict[str, list[int]] = {}
    for line in read.splitlines():
        key, number = line.split()
        seen.setdefault(key, []).append(int(number))
    assert seen == {f"k{key}": list(range(key, 50_000, 100)) for key in range(100)}


def test_a_tail_shows_records_as_they_arrive(broker: str, newcomer: Newcomer) -> None:
    """It ends after the requested number."""
    newcomer("topic", "create", "tailed")
    with subprocess.Popen(
        [*PROGRAM, "consume", "tailed", "--offset", "0", "-n", "2", "-b", broker],
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        newcomer.produce("tailed", "one\n")
        assert reader.stdout is not None
        assert reader.stdout.readline() == "one\n"
        newcomer.produce("tailed", "two\n")
        assert reader.communicate(timeout=PATIENCE_S)[0] == "two\n"
    assert reader.returncode == 0


@pytest.mark.usefixtures("broker")
def test_a_group_is_reset_described_and_deleted(newcomer: Newcomer) -> None:
    """With its lag."""
    newcomer.produce("billed", "1\n2\n3\n4\n")
    reset = ("group", "reset-offsets", "billing", "-t", "billed", "--to-offset", "1")
    assert newcomer(*reset).out.splitlines()[2].split() == ["billed", "0", "-", "1", "3"]
    newcomer(*reset, "--execute")
    described = newcomer("group", "describe", "billing", "--json").json
    assert (described["state"], described["lag"]) == ("Empty", 3)
    groups = newcomer("group", "list", "--json").json["groups"]
    assert "billing" in [group["group"] for group in groups]
    newcomer("group", "delete", "billing", "--yes")
    assert "billing does not exist" in newcomer("group", "describe", "billing", code=1).err


def test_status_shows_the_process_id(broker: str, newcomer: Newcomer) -> None:
    """Because the broker runs on this machine."""
    found = newcomer("status", "--json").json
    assert [one["address"] for one in found["brokers"]] == [broker]
    assert found["brokers"][0]["controller"] is True
    os.kill(found["brokers"][0]["pid"], 0)
    assert found["under_replicated_partitions"] == []


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_records_survive_a_restart(
    newcomer: Newcomer, tmp_path: Path, ending: signal.Signals
) -> None:
    """After any kind of stop. A clean stop has exit code 0 and prints nothing more."""
    with cluster(tmp_path / "data") as (bootstrap, process):
        newcomer.at(bootstrap)
        newcomer.produce("kept", "one\ntwo\n")
        process.send_signal(ending)
        out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == (-9 if ending == signal.SIGKILL else 0), errors
        assert (out, "Traceback" in errors) == ("", False)
    with cluster(tmp_path / "data") as (bootstrap, _):
        newcomer.at(bootstrap)
        assert newcomer("consume", "kept", "--from-beginning", "-e").out == "one\ntwo\n"


def test_a_data_directory_or_port_in_use_is_reported(broker: str, tmp_path: Path) -> None:
    """In one line, with exit code 2."""
    port = broker.rpartition(":")[2]
    with cluster(tmp_path / "taken"):
        for data, other_port, message in (
            ("taken", "0", "taken/broker-0 is in use by another broker"),
            ("free", port, f"127.0.0.1:{port} is in use"),
        ):
            refused = subprocess.run(
                [*PROGRAM, "up", "--data", str(tmp_path / data), "--port", other_port],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert (refused.returncode, refused.stdout) == (2, "")
            assert message in refused.stderr
            assert refused.stderr.count("\n") == 1


def test_brokers_stop_with_their_supervisor(tmp_path: Path) -> None:
    """Several brokers print one ready line, once all know each other. When the supervisor is
    killed, they stop by themselves."""
    with cluster(tmp_path, "--brokers", "2") as (bootstrap, process):
        ports = [int(address.rpartition(":")[2]) for address in bootstrap.split(",")]
        assert len(ports) == 2
        assert [asyncio.run(known_to(address)) for address in bootstrap.split(",")] == [2, 2]
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        eventually(lambda: not any(listens(port) for port in ports))


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
