"""The checks of encrypted topics: what is on the disks, and the nonces."""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.sim.checkers.sealed_files import SealedNonces, SealedPeek, check_sealed
from penstock.sim.crash.sealed_logs import SeededBytes
from penstock.sim.disk.disk import SimDisk
from penstock.sim.history import OK, Send
from penstock.sim.key_service import KEY_FILE, KeyService
from penstock.storage.data_keys import Keyring
from penstock.storage.encrypted_disk import EncryptedDisk
from penstock.storage.encrypted_file import Nonces
from penstock.storage.sealed_format import COPY_BYTES

DIRECTORY = "/data/logs/orders-0"
PATH = f"{DIRECTORY}/00000000000000000000.log"


def new_disk() -> SimDisk:
    disk = SimDisk(Random(1), Random(2))
    for path in ("/data", "/data/logs", DIRECTORY, "/data/logs/events-0"):
        disk.mkdir(path)
    return disk


def sealed(disk: SimDisk, keys: KeyService) -> EncryptedDisk:
    found = EncryptedDisk(disk, Keyring(keys.port("broker-0"), SeededBytes(Random(3))))
    found.protect(DIRECTORY, "topic-id", 0, "key-of-orders")
    return found


def write(disk: Any, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    file.close()


def sent(value: str, topic: str = "orders") -> Send:
    return Send(
        process="p0",
        status=OK,
        begun_ms=1,
        ended_ms=2,
        partition_name=f"{topic}-0",
        value=value,
        number=1,
        acks=-1,
    )


def rules(disk: SimDisk, *entries: Send) -> list[str]:
    return [each.rule for each in check_sealed([disk], ["orders"], entries)]


def test_files_of_an_encrypted_topic_must_be_encrypted() -> None:
    """E25: segments, indexes and snapshots, but not checkpoints."""
    disk = new_disk()
    write(sealed(disk, KeyService(KEY_FILE)), PATH, b"p0.123")
    write(disk, f"{DIRECTORY}/penstock-checkpoint", b"a checkpoint")
    write(disk, "/data/logs/events-0/00000000000000000000.log", b"a plain topic")
    assert rules(disk, sent("p0.123")) == []
    write(disk, f"{DIRECTORY}/00000000000000000007.snapshot", bytes(4096) + b"torn")
    assert rules(disk) == []
    write(disk, f"{DIRECTORY}/00000000000000000000.index", b"an index")
    assert rules(disk) == ["E25"]


def test_values_of_an_encrypted_topic_are_nowhere_in_plain_text() -> None:
    """E26: a plain topic may have the same value."""
    disk = new_disk()
    write(disk, "/data/logs/events-0/00000000000000000000.snapshot", b"..p0.123.")
    assert rules(disk, sent("p0.123")) == ["E26"]
    assert rules(disk, sent("p0.12")) == []
    assert rules(disk, sent("p0.123"), sent("p0.123", "events")) == []


def test_a_nonce_is_not_used_twice(monkeypatch: Any) -> None:
    """E27: each opening of a file has its own nonces."""
    for is_broken in (False, True):
        if is_broken:
            monkeypatch.setattr(Nonces, "next", lambda self, start: bytes(12))
        nonces, disk = SealedNonces(), new_disk()
        keys = KeyService(KEY_FILE)
        with nonces.on():
            write(sealed(disk, keys), PATH, b"first")
            file = sealed(disk, keys).open(PATH)
            file.pwrite(b"second", file.size())
        assert nonces.frames == 2
        assert [each.rule for each in nonces.check()] == (["E27"] if is_broken else [])


def test_the_plaintext_can_be_read_from_outside() -> None:
    """What was appended, truncated, and damaged. Plain files are read as they are."""
    disk, keys = new_disk(), KeyService(KEY_FILE)
    file = sealed(disk, keys).open(PATH, create=True)
    look = SealedPeek(disk, keys)
    for text in (b"one", b"two", b"three"):
        file.pwrite(text, file.size())
        assert look.peek(PATH, 0, 100).endswith(text)
    file.truncate(3)
    file.pwrite(b"2", 3)
    assert look.peek(PATH, 0, 4) == b"one2"
    file.fsync()
    write(disk, "/data/logs/events-0/00000000000000000000.log", b"plain")
    assert look.peek("/data/logs/events-0/00000000000000000000.log", 1, 3) == b"lai"


def test_one_copy_of_a_header_is_enough_to_read_the_plaintext() -> None:
    """A power loss may leave zeros in place of the other copy, also of the first one."""
    for torn in (0, COPY_BYTES):
        disk, keys = new_disk(), KeyService(KEY_FILE)
        file = sealed(disk, keys).open(PATH, create=True)
        whole = disk.open(PATH)
        whole.pwrite(bytes(COPY_BYTES), torn)
        whole.close()
        file.pwrite(b"one", 0)
        assert SealedPeek(disk, keys).peek(PATH, 0, 3) == b"one", torn
