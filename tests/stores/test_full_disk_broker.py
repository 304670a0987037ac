"""A real broker whose disk, with its metadata store on it, is filled by another program."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from penstock import Admin, Consumer, Producer
from penstock.broker.config import METRICS_OFFSET
from penstock.cli.doctor_finding import State
from penstock.cli.doctor_health import check_health
from penstock.client.address import parse_bootstrap
from penstock.client.admin.operations import BrokerInfo
from penstock.runtime import SystemRandom
from penstock.stores import sqlite_reserve
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient

from .broker_processes import PATIENCE_S, broker
from .test_sqlite_full_disk import HOG, fill, small_disk

__all__ = ["small_disk"]
SESSION_S = 1.5


def port_with_metrics() -> int:
    """Returns a free port for which the broker's metrics port is free too."""
    random = SystemRandom()
    while True:
        port = free_port(random)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port + METRICS_OFFSET))
            return port


def wait_for_finding(bootstrap: str, state: State, words: str) -> None:
    """Waits until `penstock doctor` reports this about the broker's health."""
    broker = BrokerInfo(0, parse_bootstrap(bootstrap)[0], None)
    deadline = time.monotonic() + patient(PATIENCE_S)
    while True:
        found = asyncio.run(check_health(broker))
        if any(each.state is state and words in each.found for each in found):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


@pytest.mark.parametrize("small_disk", ["tmpfs"], indirect=True)
def test_a_full_disk_does_not_end_the_broker(small_disk: Path, tmp_path: Path) -> None:
    """It serves reads, keeps its lease and its leadership, and accepts writes again when there is
    space. Renewing its lease used to fail with SQLITE_FULL, which ended the process."""
    config = tmp_path / "broker.toml"
    config.write_text(
        f'port = {port_with_metrics()}\ndata_dir = "{small_disk / "data"}"\n'
        f"session_timeout_s = {SESSION_S}\ndisk_reserve_bytes = 1000000\n"
    )
    with broker(config) as (bootstrap, process), Producer(bootstrap) as producer:
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", 1)
        assert producer.send("orders", b"one").result(PATIENCE_S).offset == 0
        log = small_disk / "data" / "metadata.db-wal"
        deadline = time.monotonic() + patient(PATIENCE_S)
        while log.stat().st_size < sqlite_reserve.RESERVE_BYTES:
            assert time.monotonic() < deadline, "the reserve was not made"
            time.sleep(0.05)
        fill(small_disk)
        time.sleep(4 * SESSION_S)
        assert process.poll() is None
        wait_for_finding(bootstrap, State.PROBLEM, str(small_disk))
        with Consumer(
            bootstrap, topics=["orders"], group_id=None, auto_offset_reset="earliest"
        ) as consumer:
            assert next(iter(consumer)).value == b"one"
        (small_disk / HOG).unlink()
        assert producer.send("orders", b"two").result(PATIENCE_S).offset == 1
        with Admin(bootstrap) as admin:
            admin.create_topic("later", 1)
        wait_for_finding(bootstrap, State.OK, "ready")
    assert process.returncode == 0
