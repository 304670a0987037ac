"""What a broker can prove about its logs after each way in which its last run ended."""

from __future__ import annotations

from dataclasses import replace
from errno import EIO
from random import Random

import pytest

from penstock.broker.control.membership import Proof
from penstock.broker.repair.durability_proof import FILE_NAME, Life, LosslessRecord, decode, encode
from penstock.sim.disk.disk import SimDisk
from penstock.storage.checkpoints import read_file, write_atomic

CLUSTER = "cluster"
NOTHING = Proof(-1, -1, -1)


class Machine:
    """A machine with a data directory. It can lose power and its disk."""

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
        """Runs a broker until it has registered. Returns the proof that it read at startup."""
        record = self.record()
        proof = record.read(CLUSTER, logs_are_whole=logs_are_whole)
        record.begin(CLUSTER, epoch)
        return proof, record

    def lose_power(self) -> None:
        self.disk.power_loss()
        self.boot += 1


def test_a_new_directory_proves_nothing() -> None:
    """Not even that records which were synced in an earlier run are there."""
    assert Machine().live(7)[0] == NOTHING


def test_a_killed_process_has_lost_nothing() -> None:
    """However often it is killed, the proof goes back to the first run."""
    machine = Machine()
    machine.live(7)
    assert machine.live(9)[0] == Proof(7, 7, 7)
    assert machine.live(12)[0] == Proof(7, 7, 7)


def test_a_power_loss_voids_the_proof_for_written_records() -> None:
    """Synced records are there. Records that were only written, in this run or an earlier one, may
    be lost.
    """
    machine = Machine()
    machine.live(7)
    machine.lose_power()
    assert machine.live(9)[0] == Proof(-1, 7, 7)
    assert machine.live(12)[0] == Proof(9, 7, 7)


def test_the_proof_of_a_clean_stop_survives_a_reboot() -> None:
    """But only until the next run, which may end differently."""
    machine = Machine()
    machine.live(7)[1].end()
    machine.lose_power()
    assert machine.live(9)[0] == Proof(7, 7, 7)
    machine.lose_power()
    assert machine.live(12)[0] == Proof(-1, 7, 7)


def test_a_run_that_never_registered_does_not_change_the_proof() -> None:
    """It has written nothing that could be lost."""
    machine = Machine()
    machine.live(7)[1].end()
    machine.record().read(CLUSTER, logs_are_whole=True)
    machine.lose_power()
    assert machine.live(9)[0] == Proof(7, 7, 7)


def test_a_failed_log_voids_the_proof_for_written_records_at_once() -> None:
    """The page cache cannot be trusted any more, however the run ends. The next run starts a new
    proof.
    """
    machine = Machine()
    record = machine.live(7)[1]
    record.void()
    assert record.again() == Proof(-1, 7, 7)
    assert machine.live(9)[0] == Proof(-1, 7, 7)
    assert machine.live(12)[0] == Proof(9, 7, 7)


def test_voiding_the_proof_can_be_retried_if_the_disk_fails() -> None:
    """The disk that failed may also refuse this write. In memory the proof is void at once."""
    machine = Machine()
    record = machine.live(7)[1]
    machine.disk.fail_next("fsync", EIO, path_contains=FILE_NAME)
    with pytest.raises(OSError, match="error"):
        record.void()
    assert record.again() == Proof(-1, 7, 7)
    assert machine.record().read(CLUSTER, logs_are_whole=True) == Proof(7, 7, 7)
    record.void()
    assert machine.record().read(CLUSTER, logs_are_whole=True) == Proof(-1, 7, 7)


def test_damaged_logs_void_the_proof_for_written_records() -> None:
    """Even if the machine was not rebooted: something was lost in another way."""
    machine = Machine()
    machine.live(7)
    assert machine.live(9, logs_are_whole=False)[0] == Proof(-1, 7, 7)


def test_a_lost_lease_does_not_void_the_proof() -> None:
    """The process goes on and has everything it wrote. Before it first registers it proves
    nothing.
    """
    machine = Machine()
    assert machine.record().again() == NOTHING
    assert machine.live(7)[1].again() == Proof(7, 7, 7)


def test_without_a_boot_id_only_a_clean_stop_proves_written_records() -> None:
    """An unknown boot id does not count as the same boot."""
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
    """The cluster knows nothing about the logs in it."""
    machine = Machine()
    machine.live(7)[1].end()
    assert machine.record(4).read(CLUSTER, logs_are_whole=True) == NOTHING
    assert machine.record().read("another", logs_are_whole=True) == NOTHING


def test_the_proof_has_the_epoch_since_which_the_config_file_sets_fsync() -> None:
    """A run with a weaker durability in its config file ends this part of the proof, whatever else
    is kept.
    """
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


def test_a_file_without_fsync_since_means_that_fsync_was_always_set() -> None:
    """Earlier versions did not write the field. It is left out in this case, so that they can read
    the file.
    """
    assert b"fsync_since" not in encode(LIFE)
    assert decode(encode(LIFE)).fsync_since == LIFE.synced_since
    other = replace(LIFE, fsync_since=-1)
    assert decode(encode(other)) == other


def test_logs_that_were_not_recovered_after_a_reboot_are_listed_until_they_are() -> None:
    """The proof for all other logs stays. The list is left out while it is empty, so that earlier
    versions can read the file.
    """
    machine = Machine()
    machine.live(7)
    machine.lose_power()
    assert not machine.record().intact_caches()("a-0")
    record = machine.record()
    record.read(CLUSTER, logs_are_whole=False)
    record.begin(CLUSTER, 9, ["a-0"])
    intact = machine.record().intact_caches()
    assert (intact("a-0"), intact("b-0")) == (False, True)
    record.keep_unrecovered(())
    assert machine.record().intact_caches()("a-0")
    record.void()
    assert not machine.record().intact_caches()("b-0")
    assert b"unrecovered" not in encode(LIFE)
    listed = replace(LIFE, unrecovered=("a-0", "b-0"))
    assert decode(encode(listed)) == listed


LIFE = Life(
    CLUSTER, 3, "boot", stopped_cleanly=True, lossless_since=7, synced_since=5, fsync_since=5
)


def test_the_file_is_read_as_it_was_written() -> None:
    assert decode(encode(LIFE)) == LIFE
    assert decode(encode(replace(LIFE, cluster_id='"\n'))).cluster_id == '"\n'


@pytest.mark.parametrize("at", range(0, len(encode(LIFE)), 7))
def test_a_damaged_file_proves_nothing(at: int) -> None:
    """With a flipped bit or a missing end, it is treated like a missing file."""
    data = bytearray(encode(LIFE))
    for spoiled in (bytes(data[:at]), bytes([*data[:at], data[at] ^ 4, *data[at + 1 :]])):
        machine = Machine()
        write_atomic(machine.disk, "/data", FILE_NAME, spoiled)
        assert machine.record().read(CLUSTER, logs_are_whole=True) == NOTHING


def test_a_file_of_a_newer_version_proves_nothing() -> None:
    """This version does not know what it means, and overwrites it."""
    from crc32c import crc32c

    body = b"penstock-life 2\n{}\n"
    machine = Machine()
    data = body + f"crc32c {crc32c(body):08x}\n".encode()
    write_atomic(machine.disk, "/data", FILE_NAME, data)
    assert machine.live(7)[0] == NOTHING
    assert read_file(machine.disk, f"/data/{FILE_NAME}") != data
