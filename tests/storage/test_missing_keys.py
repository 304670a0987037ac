"""What a directory knows about a log that it could not open for want of a key."""

from __future__ import annotations

from errno import EIO
from random import Random

import pytest

from penstock.records.record import Record, build_batch
from penstock.sim.crash.bit_rot import rot_above_recovery_point
from penstock.sim.crash.sealed_logs import SeededBytes, SimKeys
from penstock.sim.disk.disk import SimDisk
from penstock.storage.config import LogConfig
from penstock.storage.data_keys import KeyDropped, Keyring, KeyUnavailable, lacks_key_only
from penstock.storage.directory import LogDirectory
from penstock.storage.errors import DiskTrouble, StorageError
from penstock.storage.log import Log
from penstock.storage.offset_checkpoint import LogOffsets, read_offsets

ROOT = "/data"
NOW_MS = 1_700_000_000_000
SEALED = LogConfig(encryption="the-key")
COUNT = 20


class Machine:
    """A disk with one encrypted log. Nothing but its beginning is below the recovery point."""

    def __init__(self) -> None:
        self.disk = SimDisk(Random(1), Random(2))
        self.keys = SimKeys()
        self.directory = self.start()
        log = self.directory.create("t", 0, topic_id="id", config=SEALED, now_ms=NOW_MS)
        for number in range(COUNT):
            record = Record(0, NOW_MS + number, b"k", b"some value")
            log.append(build_batch([record]), 0, NOW_MS + number)
            if number == 0:
                log.flush()  # It stores the recovery point, because a file is new.
        log.flush()
        self.noted = LogOffsets("id", log.generation, COUNT // 2, COUNT)
        self.directory.note_offsets({"t-0": self.noted})

    def start(self) -> LogDirectory:
        return LogDirectory(self.disk, ROOT, keyring=Keyring(self.keys, SeededBytes(Random(3))))

    def start_without_key(self, *, cache_is_intact: bool = True) -> LogDirectory:
        self.disk.kill()
        self.keys.is_down = True
        directory = self.start()
        directory.open_all(lambda *_: SEALED, NOW_MS, cache_is_intact=lambda _: cache_is_intact)
        self.keys.is_down = False
        assert directory.get("t", 0) is None
        return directory

    def reopen(self, directory: LogDirectory) -> Log:
        directory.recover("t", 0, SEALED, NOW_MS)
        return directory.reopen("t", 0, SEALED, NOW_MS)

    def rot(self) -> None:
        data_key = self.keys._known.__getitem__
        assert rot_above_recovery_point(self.disk, ROOT, ["t-0"], Random(0), data_key)


def test_the_error_of_a_log_without_a_key_keeps_its_kind() -> None:
    """At the start, when the log is hosted, and when it is opened again."""
    machine = Machine()
    directory = machine.start_without_key()
    with pytest.raises(DiskTrouble, match="the-key") as hosted:
        directory.build("t", 0, topic_id="id", config=SEALED, now_ms=NOW_MS)
    assert lacks_key_only(hosted.value)
    machine.keys.is_down = True
    with pytest.raises(StorageError) as opened:
        directory.recover("t", 0, SEALED, NOW_MS)
    assert lacks_key_only(opened.value)
    assert lacks_key_only(KeyUnavailable("it is away"))
    assert not lacks_key_only(OSError(EIO, "a bad disk"))
    assert not lacks_key_only(StorageError("a bad log"))


def test_rot_in_a_log_that_had_no_key_is_damage_when_it_is_opened() -> None:
    """The page cache has everything that was written, so a bad batch is not a torn tail."""
    machine = Machine()
    directory = machine.start_without_key()
    machine.rot()
    log = machine.reopen(directory)
    assert (len(log.damage), log.end_offset) == (1, COUNT)


@pytest.mark.parametrize("doubted", [True, False])
def test_without_an_intact_cache_rot_counts_as_a_torn_tail(doubted: bool) -> None:
    """After a power loss, or after a failed fsync in this run."""
    machine = Machine()
    machine.directory.note_offsets({})
    directory = machine.start_without_key(cache_is_intact=doubted)
    assert directory.unrecovered == ([] if doubted else ["t-0"])
    if doubted:
        directory.doubt_cache()
    machine.rot()
    log = machine.reopen(directory)
    assert not log.damage
    assert log.end_offset < COUNT
    assert directory.unrecovered == []


def test_the_stored_offsets_of_a_log_without_a_key_are_kept() -> None:
    """Also when the file is written for the other logs. They count when the log is opened."""
    machine = Machine()
    directory = machine.start_without_key()
    other = LogOffsets("other", 0, 1, 1)
    directory.note_offsets({"other-0": other})
    assert read_offsets(machine.disk, ROOT) == {"other-0": other, "t-0": machine.noted}
    assert machine.reopen(directory).restored_high_watermark == COUNT


def test_a_dropped_key_leaves_the_log_as_it_was() -> None:
    """It is let go, and opened again when the key is back, with all its records."""
    machine = Machine()
    log = machine.directory.get("t", 0)
    assert log is not None
    log.fail(str(KeyDropped("the key was dropped")), "bring it back", lacks_key=True)
    assert (log.failure, log.lacks_key) == ("the key was dropped; bring it back", True)
    machine.directory.let_go("t", 0, "the key was dropped")
    assert machine.reopen(machine.directory).end_offset == COUNT


def test_a_failed_fsync_counts_more_than_a_dropped_key() -> None:
    """The flush may have been running when the key was dropped. The other way round, the first
    failure stays."""
    log = Machine().directory.get("t", 0)
    assert log is not None
    log.fail("the key was dropped", "bring it back", lacks_key=True)
    log.fail("fsync failed")
    assert not log.lacks_key
    assert log.failure is not None
    log.fail("the key was dropped", "bring it back", lacks_key=True)
    assert not log.lacks_key
    assert log.failure.startswith("fsync failed")
