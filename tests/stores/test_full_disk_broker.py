"""A real broker whose disk, with its metadata store on it, is filled by somebody else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock import Admin, Consumer, Producer
from penstock.stores import sqlite_reserve

from .test_etcd_broker import PATIENCE_S, broker
from .test_sqlite_full_disk import HOG, fill, small_disk

__all__ = ["small_disk"]
SESSION_S = 1.5


@pytest.mark.parametrize("small_disk", ["tmpfs"], indirect=True)
def test_a_full_disk_does_not_end_the_broker(small_disk: Path, tmp_path: Path) -> None:
    """It serves reads, keeps its lease and its leadership, and takes writes again when there is
    room. Its lease used to be refused with SQLITE_FULL, which ended the process."""
    config = tmp_path / "broker.toml"
    config.write_text(
        f'port = 0\ndata_dir = "{small_disk / "data"}"\nsession_timeout_s = {SESSION_S}\n'
        "disk_reserve_bytes = 1000000\nmetrics = 'off'\n"
    )
    with broker(config) as (bootstrap, process), Producer(bootstrap) as producer:
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", 1)
        assert producer.send("orders", b"one").result(PATIENCE_S).offset == 0
        log = small_disk / "data" / "metadata.db-wal"
        deadline = time.monotonic() + PATIENCE_S
        while log.stat().st_size < sqlite_reserve.RESERVE_BYTES:
            assert time.monotonic() < deadline, "the reserve was not made"
            time.sleep(0.05)
        fill(small_disk)
        time.sleep(4 * SESSION_S)
        assert process.poll() is None
        with Consumer(
            bootstrap, topics=["orders"], group_id=None, auto_offset_reset="earliest"
        ) as consumer:
            assert next(iter(consumer)).value == b"one"
        (small_disk / HOG).unlink()
        assert producer.send("orders", b"two").result(PATIENCE_S).offset == 1
        with Admin(bootstrap) as admin:
            admin.create_topic("later", 1)
    assert process.returncode == 0
