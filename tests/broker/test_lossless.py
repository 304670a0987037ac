"""What a broker proves about its logs after each way of ending."""

from __future__ import annotations

from dataclasses import replace
from errno import EIO
from random import Random

import pytest

from penstock.broker.lossless import FILE_NAME, Life, LosslessRecord, Proof, decode, encode
from penstock.sim.disk import SimDisk
from penstock.storage.checkpoints import read_file, write_atomic

CLUSTER = "cluster"
NOTHING = Proof(-1, -1, -1)


class Machine:
    """One machine with a data directory; it can lose power, and its disk."""

    def __init__(self) -> None:
        self.disk = self.new_disk()
        self.boot = 1

    def new_disk(self) -> SimDisk:
        disk = SimDisk(Random(1), Random(1))
        disk.mkdir("/data")
        disk.sync_directory("/")
        return disk

    def record(self, broker_id: int = 3) -> LosslessRecord:
        return LosslessRecord(self.disk, "/data", broker_id, lambda: f"boot-{self.boot}")

    def live(self, epoch: int, *, logs_are_whole: bool = True) -> tuple[Proof, LosslessRecord]:
        """A life up to the moment after it has registered; what it proved."""
        record = self.record()
        proof = record.read(CLUSTER, logs_are_whole=logs_are_whole)
        record.begin(CLUSTER, epoch)
        return proof, record

    def lose_power(self) -> None:
        self.disk.power_loss()
        self.boot += 1


def test_a_new_directory_proves_nothing() -> None:
    """Not even that what was synced in an earlier life is there."""
    assert Machine().live(7)[0] == NOTHING


def test_a_killed_process_has_lost_nothing() -> None:
    """However often: the chain goes back to the first life."""
    machine = Machine()
    machine.live(7)
    assert machine.live(9)[0] == Proof(7, 7, 7)
    assert machine.live(12)[0] == Proof(7, 7, 7)


def test_a_loss_of_power_breaks_the_chain_of_what_was_written() -> None:
    """What was synced is there; what was only written may not be, of this life or any before."""
    machine = Machine()
    machine.live(7)
    machine.lose_power()
    assert machine.live(9)[0] == Proof(-1, 7, 7)
    assert machine.live(12)[0] == Proof(9, 7, 7)


def test_a_clean_stop_outlives_the_machine() -> None:
    """But only until the next life, which may end otherwise."""
    machine = Machine()
    machine.live(7)[1].end()
    machine.lose_power()
    assert machine.live(9)[0] == Proof(7, 7, 7)
    machine.lose_power()
    assert machine.live(12)[0] == Proof(-1, 7, 7)


def test_a_life_that_never_registered_changes_nothing() -> None:
    """It has written nothing that could be lost."""
    machine = Machine()
    machine.live(7)[1].end()
    machine.record().read(CLUSTER, logs_are_whole=True)
    machine.lose_power()
    assert machine.live(9)[0] == Proof(7, 7, 7)


def test_a_failed_log_breaks_the_chain_at_once() -> None:
    """The page cache is not to be trusted any more, whatever the end; the next life begins anew."""
    machine = Machine()
    record = machine.live(7)[1]
    record.void()
    assert record.again() == Proof(-1, 7, 7)
    assert machine.live(9)[0] == Proof(-1, 7, 7)
    assert machine.live(12)[0] == Proof(9, 7, 7)


def test_a_failed_log_is_noted_again_until_the_disk_takes_it() -> None:
    """The disk that failed may refuse the note too; this life says so of itself meanwhile."""
    machine = Machine()
    record = machine.live(7)[1]
    machine.disk.fail_next("fsync", EIO, path_contains=FILE_NAME)
    with pytest.raises(OSError, match="error"):
        record.void()
    assert record.again() == Proof(-1, 7, 7)
    assert machine.record().read(CLUSTER, logs_are_whole=True) == Proof(7, 7, 7)
    record.void()
    assert machine.record().read(CLUSTER, logs_are_whole=True) == Proof(-1, 7, 7)


def test_damaged_logs_prove_nothing_of_what_was_written() -> None:
    """Though the machine was not booted: something was lost in another way."""
    machine = Machine()
    machine.live(7)
    assert machine.live(9, logs_are_whole=False)[0] == Proof(-1, 7, 7)


def test_a_lost_session_is_no_loss() -> None:
    """The process goes on and has all it wrote; before it has a life it proves nothing."""
    machine = Machine()
    assert machine.record().again() == NOTHING
    assert machine.live(7)[1].again() == Proof(7, 7, 7)


def test_a_machine_that_cannot_tell_its_boots_proves_only_clean_stops() -> None:
    """An unknown boot is not the same boot."""
    machine = Machine()

    def live(epoch: int) -> tuple[Proof, LosslessRecord]:
        record = LosslessRecord(machine.disk, "/data", 3, lambda: "")
        proof = record.read(CLUSTER, logs_are_whole=True)
        record.begin(CLUSTER, epoch)
        return proof, record

    live(7)
    proof, record = live(9)
    assert proof == Proof(-1, 7, 7)
    record.end()
    assert live(12)[0] == Proof(9, 7, 7)


def test_a_directory_of_another_broker_or_cluster_proves_nothing() -> None:
    """Its logs are not what this cluster took them for."""
    machine = Machine()
    machine.live(7)[1].end()
    assert machine.record(4).read(CLUSTER, logs_are_whole=True) == NOTHING
    assert machine.record().read("another", logs_are_whole=True) == NOTHING


def test_the_record_says_since_when_the_config_file_has_asked_for_fsync() -> None:
    """A life whose file asked for less breaks the chain, whatever else it has kept."""
    machine = Machine()

    def live(epoch: int, *, fsync: bool) -> Proof:
        boot = f"boot-{machine.boot}"
        record = LosslessRecord(machine.disk, "/data", 3, lambda: boot, asks_for_fsync=fsync)
        proof = record.read(CLUSTER, logs_are_whole=True)
        record.begin(CLUSTER, epoch)
        return proof

    assert live(7, fsync=True) == NOTHING
    assert live(8, fsync=False) == Proof(7, 7, 7)
    assert live(9, fsync=True) == Proof(7, 7, -1)
    machine.lose_power()
    assert live(10, fsync=True) == Proof(-1, 7, 9)


def test_a_file_without_the_note_is_of_a_broker_that_always_asked_for_fsync() -> None:
    """Earlier versions wrote none, and can read what is written for such a broker."""
    assert b"fsync_since" not in encode(LIFE)
    assert decode(encode(LIFE)).fsync_since == LIFE.synced_since
    other = replace(LIFE, fsync_since=-1)
    assert decode(encode(other)) == other


LIFE = Life(
    CLUSTER, 3, "boot", stopped_cleanly=True, lossless_since=7, synced_since=5, fsync_since=5
)


def test_the_file_is_read_as_it_was_written() -> None:
    """With all its fields."""
    assert decode(encode(LIFE)) == LIFE
    assert decode(encode(replace(LIFE, cluster_id='"\n'))).cluster_id == '"\n'


@pytest.mark.parametrize("at", range(0, len(encode(LIFE)), 7))
def test_a_file_that_is_not_whole_proves_nothing(at: int) -> None:
    """A flipped bit or a missing end: as if there were no file."""
    data = bytearray(encode(LIFE))
    for spoiled in (bytes(data[:at]), bytes([*data[:at], data[at] ^ 4, *data[at + 1 :]])):
        machine = Machine()
        write_atomic(machine.disk, "/data", FILE_NAME, spoiled)
        assert machine.record().read(CLUSTER, logs_are_whole=True) == NOTHING


def test_a_file_of_a_newer_version_proves_nothing() -> None:
    """What it would say is not known here."""
    from crc32c import crc32c

    body = b"penstock-life 2\n{}\n"
    machine = Machine()
    data = body + f"crc32c {crc32c(body):08x}\n".encode()
    write_atomic(machine.disk, "/data", FILE_NAME, data)
    assert machine.live(7)[0] == NOTHING
    assert read_file(machine.disk, f"/data/{FILE_NAME}") != data
