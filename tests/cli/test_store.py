"""Tests `penstock store copy`. `test_store_copying.py` has the copies between all kinds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cli.conftest import Runner
from penstock.metadata.keys import BROKERS_PREFIX, CLUSTER_KEY
from penstock.ports import Put
from penstock.runtime import SystemClock, Threads
from penstock.stores.sqlite import SqliteStore


def change(path: Path, *keys: str, lease_s: float = 0.0) -> None:
    async def main() -> None:
        threads = Threads(2)
        store = await SqliteStore.open(str(path), threads, SystemClock())
        lease = await store.grant_lease(lease_s) if lease_s else 0
        for key in keys:
            await store.commit((), [Put(key, b"{}", lease)])
        await store.close()
        threads.close()

    asyncio.run(main())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.db"
    change(path, CLUSTER_KEY, "/penstock/users/a")
    return path


def test_a_store_is_copied(source: Path, tmp_path: Path, penstock: Runner) -> None:
    """The summary says how much. A second copy to the same target is refused."""
    target = tmp_path / "target.db"
    told = penstock("store", "copy", str(source), str(target))
    assert told.code == 0
    assert "copied 2 keys with 4 bytes" in told.out
    assert "copied keys: 2 of 2" in told.err
    again = penstock("store", "copy", str(source), str(target))
    assert again.code == 1
    assert "not empty" in again.err
    copied = penstock("store", "copy", str(target), str(tmp_path / "third.db"), "--json", "-q")
    assert copied.json["keys"] == 2
    assert copied.json["source_revision"] <= copied.json["target_revision"]
    assert copied.err == ""


def test_a_running_cluster_is_refused(source: Path, tmp_path: Path, penstock: Runner) -> None:
    change(source, f"{BROKERS_PREFIX}3", lease_s=600.0)
    told = penstock("store", "copy", str(source), str(tmp_path / "target.db"), "--wait", "0")
    assert told.code == 1
    assert "broker 3 holds a lease" in told.err
    assert "stop all brokers" in told.err


def test_wrong_addresses_are_refused(source: Path, tmp_path: Path, penstock: Runner) -> None:
    """Nothing is created, and no password is shown."""
    absent, secret = str(tmp_path / "absent.db"), "zk://me:secret@a/x"
    for pair, problem in (
        ((absent, str(tmp_path / "new.db")), "does not exist"),
        ((str(source), str(source)), "two different stores"),
        ((str(source), secret), "password_file"),
        (("redis://a", str(source)), "zk://HOST:PORT"),
    ):
        told = penstock("store", "copy", *pair)
        assert told.code == 2
        assert problem in told.err
        assert "secret" not in told.err
    assert not (tmp_path / "new.db").exists()
