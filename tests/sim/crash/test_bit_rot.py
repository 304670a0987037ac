"""Bit rot above the recovery point damages only batches that cannot be taken for a torn tail."""

from __future__ import annotations

from random import Random

from penstock.records.batch import CorruptBatch, iter_batches, read_header
from penstock.records.record import Record, build_batch
from penstock.sim.crash.bit_rot import rot_above_recovery_point
from penstock.sim.crash.sealed_logs import SeededBytes
from penstock.sim.disk.disk import SimDisk
from penstock.sim.key_service import KEY_FILE, KeyService
from penstock.storage.checkpoints import Checkpoint, encode_checkpoint
from penstock.storage.data_keys import Keyring
from penstock.storage.encrypted_disk import EncryptedDisk

PATH = "/data/t-0/00000000000000000000.log"


def batch(offset: int) -> bytes:
    built = build_batch([Record(0, 1, None, b"value")])
    built[0:8] = offset.to_bytes(8, "big")
    return bytes(built)


def write(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    file.fsync()
    file.close()


def new_disk(batches: int, recovery_point: int) -> SimDisk:
    disk = SimDisk(Random(1), Random(2))
    disk.mkdir("/data/t-0")
    write(disk, PATH, b"".join(map(batch, range(batches))))
    checkpoint = Checkpoint(recovery_point, 0, 0, 0, 0)
    write(disk, "/data/t-0/penstock-checkpoint", encode_checkpoint(checkpoint))
    for path in ("/data/t-0", "/data", "/"):
        disk.sync_directory(path)
    return disk


def first_bad(disk: SimDisk) -> int:
    """Returns the number of the first batch whose CRC does not match; all headers are intact."""
    data, sound = disk.files()[PATH], 0
    try:
        for _ in iter_batches(data):
            sound += 1
    except CorruptBatch:
        assert read_header(data, sound * len(batch(0))).base_offset == sound
    return sound


def test_rot_damages_a_batch_between_the_recovery_point_and_the_last_batch() -> None:
    """Batches below the recovery point are left alone, and the last one might be a torn tail."""
    struck = set()
    for seed in range(60):
        disk = new_disk(batches=5, recovery_point=2)
        assert rot_above_recovery_point(disk, "/data", ["t-0"], Random(seed)) is not None
        struck.add(first_bad(disk))
    assert struck == {2, 3}


def test_rot_damages_nothing_if_all_batches_are_below_the_recovery_point() -> None:
    """No batch there can be mistaken for a torn tail."""
    disk = new_disk(batches=3, recovery_point=3)
    assert rot_above_recovery_point(disk, "/data", ["t-0"], Random(1)) is None
    assert first_bad(disk) == 3


def test_rot_damages_encrypted_batches_in_the_same_way() -> None:
    """The frame of a batch from the recovery point on has a wrong tag then. The last one is left
    alone."""
    struck = set()
    for seed in range(40):
        disk, keys = new_disk(batches=0, recovery_point=2), KeyService(KEY_FILE)
        disk.unlink(PATH)
        sealed = EncryptedDisk(disk, Keyring(keys.port("broker-0"), SeededBytes(Random(3))))
        sealed.protect("/data/t-0", "topic-id", 0, "key")
        file = sealed.open(PATH, create=True)
        for number in range(5):
            file.pwrite(batch(number), file.size())
        file.fsync()
        disk.sync_directory("/data/t-0")
        before = file.pread(file.size(), 0)
        rotted = rot_above_recovery_point(disk, "/data", ["t-0"], Random(seed), keys.data_key)
        assert rotted is not None
        file.drop_cache()
        after = file.pread(file.size(), 0)
        size = len(batch(0))
        changed = [
            number
            for number in range(5)
            if before[number * size :][:size] != after[number * size :][:size]
        ]
        struck.update(changed)
        assert len(changed) == 1
    assert struck == {2, 3}
