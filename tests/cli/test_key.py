"""Tests `penstock key`, and `penstock log` on encrypted logs."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cli.conftest import Runner
from penstock.records.record import Record, build_batch
from penstock.runtime import SystemRandom
from penstock.storage.config import LogConfig
from penstock.storage.data_keys import Keyring
from penstock.storage.directory import DirectoryConfig, LogDirectory
from penstock.storage.disk import OsDisk
from penstock.storage.key_file import KeyFile

NOW_MS = 1_700_000_000_000


@pytest.fixture
def key_file(tmp_path: Path, penstock: Runner) -> str:
    path = str(tmp_path / "keys.json")
    assert penstock("key", "new", "orders-key", "--key-file", path).code == 0
    return path


def make_logs(root: Path, key_file: str) -> Path:
    """Makes an encrypted log that began as a plain one, and a plain log."""
    keyring = Keyring(KeyFile(key_file, SystemRandom()), SystemRandom())
    small = DirectoryConfig(disk_reserve_bytes=0)
    directory = LogDirectory(OsDisk(), str(root / "logs"), small, keyring)
    plain = LogConfig()
    for topic in ("orders", "plain"):
        log = directory.create(topic, 0, topic_id="id", config=plain, now_ms=NOW_MS)
        log.append(build_batch([Record(0, NOW_MS, None, b"first")]), 0, NOW_MS)
    orders = directory.get("orders", 0)
    assert orders is not None
    orders.reconfigure(LogConfig(encryption="orders-key"))
    orders.roll(NOW_MS)
    orders.append(build_batch([Record(0, NOW_MS, b"k", b"a secret")]), 0, NOW_MS)
    assert directory.close() == []
    return root / "logs"


def test_a_key_is_made_rotated_listed_and_dropped(key_file: str, penstock: Runner) -> None:
    """The file is readable by its owner only, and no output shows a key."""
    assert stat.S_IMODE(Path(key_file).stat().st_mode) == 0o600
    assert penstock("key", "rotate", "orders-key", "--key-file", key_file).code == 0
    listed = penstock("key", "list", "--key-file", key_file, "--json").json
    assert [each["version"] for each in listed["keys"]["orders-key"]] == [1, 2]
    assert set(listed["keys"]["orders-key"][0]) == {"version", "created_ms"}
    refused = penstock("key", "drop", "orders-key", "--key-file", key_file)
    assert refused.code != 0
    assert "--yes" in refused.err
    assert penstock("key", "drop", "orders-key", "--key-file", key_file, "--yes").code == 0
    assert "dropped" in penstock("key", "list", "--key-file", key_file).out
    again = penstock("key", "new", "orders-key", "--key-file", key_file)
    assert again.code != 0
    assert "cannot be used again" in again.err


@pytest.mark.parametrize("name", ["", "none", "a b", "../x", "k" * 101])
def test_a_bad_name_is_refused(name: str, tmp_path: Path, penstock: Runner) -> None:
    path = tmp_path / "keys.json"
    ended = penstock("key", "new", name, "--key-file", str(path))
    assert ended.code != 0
    assert "cannot be the name" in ended.err
    assert not path.exists()


def test_an_existing_key_is_not_replaced(key_file: str, penstock: Runner) -> None:
    before = Path(key_file).read_bytes()
    ended = penstock("key", "new", "orders-key", "--key-file", key_file)
    assert "rotate" in ended.err
    assert Path(key_file).read_bytes() == before


def test_segments_shows_which_are_plain(key_file: str, tmp_path: Path, penstock: Runner) -> None:
    """Without the key."""
    logs = make_logs(tmp_path, key_file)
    found = penstock("key", "segments", str(logs), "--json").json
    assert [(each["base_offset"], each["key"]) for each in found] == [
        (0, None),
        (1, "orders-key"),
        (0, None),
    ]
    assert "2 of 3 segments are plain" in penstock("key", "segments", str(logs)).out


def test_an_encrypted_log_is_dumped_and_verified_with_its_key(
    key_file: str, tmp_path: Path, penstock: Runner
) -> None:
    logs = make_logs(tmp_path, key_file)
    for command in ("dump", "verify"):
        refused = penstock("log", command, str(logs / "orders-0"))
        assert refused.code == 2
        assert "orders-key" in refused.err
        assert "--key-file" in refused.err
    dumped = penstock("log", "dump", str(logs / "orders-0"), "--key-file", key_file)
    assert dumped.code == 0, dumped.err
    assert "a secret" in dumped.out
    by_address = penstock(
        "log", "dump", str(logs / "orders-0"), "--key-provider", f"file:{key_file}"
    )
    assert by_address.out == dumped.out
    for options in ((), ("--deep",)):
        assert penstock("log", "verify", str(logs), "--key-file", key_file, *options).code == 0
    segment = logs / "orders-0" / "00000000000000000001.log"
    data = bytearray(segment.read_bytes())
    data[-20] ^= 1
    segment.write_bytes(data)
    damaged = penstock("log", "verify", str(logs / "orders-0"), "--key-file", key_file)
    assert damaged.code == 1, damaged.out
