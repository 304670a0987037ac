"""Tests `penstock status` with a fake broker."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from cli.conftest import Runner
from client.fake_broker import FakeBroker
from penstock.cli import local_processes
from penstock.cli.local_processes import listening_process
from penstock.client.address import Address


def test_the_json_format_is_stable(fake: FakeBroker, penstock: Runner) -> None:
    """Scripts rely on it: brokers with id, address, pid and controller flag;
    under-replicated partitions."""
    fake.model.add_topic("orders", 2)
    found = penstock("status", "--json").json
    _, _, port = fake.address.partition(":")
    assert found == {
        "cluster_id": "fake-cluster",
        "controller": 0,
        "brokers": [
            {
                "id": 0,
                "address": fake.address,
                "host": "127.0.0.1",
                "port": int(port),
                "rack": None,
                "controller": True,
                "cordoned": False,
                "replicas": 2,
                "leads": 2,
                "pid": os.getpid(),
            }
        ],
        "missing_brokers": [],
        "topics": 1,
        "partitions": 2,
        "moving_partitions": 0,
        "not_led_by_preferred": 0,
        "under_replicated_partitions": [],
        "under_min_isr_partitions": [],
        "offline_partitions": [],
        "advice": [],
    }


def test_the_table_ends_with_a_summary(fake: FakeBroker, penstock: Runner) -> None:
    ended = penstock("status")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[0] == "cluster fake-cluster: 1 broker, 0 topics, 0 partitions"
    cells = ["0", fake.address, "-", str(os.getpid()), "0", "0", "controller"]
    assert lines[4].split() == cells
    assert lines[-1] == (
        "0 partitions under-replicated, 0 below min.insync.replicas, 0 without a leader"
    )


def test_partitions_with_problems_are_listed(fake: FakeBroker, penstock: Runner) -> None:
    """Under-replicated ones and those without a leader. `--check` sets the exit code."""
    fake.model.add_topic("fine")
    topic = fake.model.add_topic("orders", 30)
    topic.replicas, topic.in_sync = (0, 1), (0,)
    gone = fake.model.add_topic("gone")
    gone.leader, gone.in_sync = -1, ()
    ended = penstock("status")
    assert ended.code == 0
    assert (
        "31 partitions under-replicated, 1 below min.insync.replicas, 1 without a leader"
        in ended.out
    )
    assert ["gone", "0", "none", "0"] in [line.split() for line in ended.out.splitlines()]
    assert "and 11 more: use --json to see them" in ended.out
    found = penstock("status", "--json").json
    assert len(found["under_replicated_partitions"]) == 31
    assert found["offline_partitions"] == [
        {"topic": "gone", "partition": 0, "leader": None, "replicas": [0], "in_sync": []}
    ]
    assert penstock("status", "--check").code == 1


def test_check_of_a_healthy_cluster_exits_with_0(fake: FakeBroker, penstock: Runner) -> None:
    assert penstock("status", "--check").code == 0


def test_watch_continues_until_stopped(fake: FakeBroker) -> None:
    """With --json, one object after another, for programs that collect them."""
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "status", "-w", "--interval", "0.1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        process.send_signal(2)
        errors = process.communicate(timeout=120)[1]
    assert first == second
    assert (process.returncode, errors) == (130, "")


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such.invalid"])
def test_addresses_of_other_machines_have_no_process(host: str) -> None:
    """Even if a process on this machine listens on the same port."""
    assert listening_process(Address(host, 22)) is None


def test_a_port_without_a_listener_has_no_process() -> None:
    assert listening_process(Address("127.0.0.1", 1)) is None


def test_the_same_port_at_another_address_is_another_broker(fake: FakeBroker) -> None:
    """127.0.0.2 is this machine as well, but nothing listens there."""
    _, _, port = fake.address.partition(":")
    assert listening_process(Address("127.0.0.2", int(port))) is None
    with socket.create_server(("127.0.0.2", 0)) as server:
        number = server.getsockname()[1]
        assert listening_process(Address("127.0.0.2", number)) == os.getpid()
    with socket.create_server(("0.0.0.0", 0)) as server:
        number = server.getsockname()[1]
        assert listening_process(Address("127.0.0.2", number)) == os.getpid()


def test_without_proc_no_process_is_found(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing fails."""
    monkeypatch.setattr(local_processes, "_TABLES", ("/nonexistent",))
    host, _, port = fake.address.partition(":")
    assert listening_process(Address(host, int(port))) is None
