"""The time of a producer's last append: producers expire by it, and it survives restarts."""

from __future__ import annotations

from random import Random

import pytest

from penstock.records.batch import stamp
from penstock.records.record import Record, build_batch
from penstock.sim.disk.disk import SimDisk
from penstock.storage.log import Log

from .log_bench import ROOT, LogBench

EXPIRATION_MS = 1_000
PRODUCER = 4


class Clocked:
    """A bench whose disk and log share one clock."""

    def __init__(self) -> None:
        self.now_ms = 50_000
        disk = SimDisk(Random(1), Random(2), now_ms=lambda: self.now_ms)
        disk.mkdir(ROOT)
        disk.sync_directory("/")
        self.bench = LogBench(disk)
        self.log = self.bench.create()

    def append(self, sequence: int, *, timestamp_ms: int = 7) -> None:
        """Appends a batch whose timestamp is far from the clock."""
        self.log.append(self._batch(sequence, timestamp_ms), 0, self.now_ms)

    def _batch(self, sequence: int, timestamp_ms: int) -> bytearray:
        return build_batch(
            [Record(0, timestamp_ms, b"k", b"v")],
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=sequence,
        )

    def append_replica(self, sequence: int) -> None:
        batch = self._batch(sequence, 7)
        stamp(batch, 0, self.log.end_offset, 0)
        self.log.append_replica(bytes(batch), self.now_ms)

    def other_append(self) -> None:
        self.log.append(build_batch([Record(0, 7, b"k", b"v")]), 0, self.now_ms)

    def expires_at(self) -> int:
        """Returns the time from which the producer counts as expired."""
        times = self.log.producers.append_times()
        return times[PRODUCER] + EXPIRATION_MS

    def restart(self) -> Log:
        self.log = self.bench.reopen(self.log)
        return self.log


@pytest.mark.parametrize("timestamp_ms", [7, 10**12])
def test_a_producer_of_old_records_is_remembered(timestamp_ms: int) -> None:
    """A backfill keeps its deduplication until it is idle, whatever the timestamps of its records
    are."""
    clocked = Clocked()
    clocked.append(0, timestamp_ms=timestamp_ms)
    states = clocked.log.producers
    assert states.expire(clocked.now_ms + EXPIRATION_MS - 1, EXPIRATION_MS) == []
    assert states.expire(clocked.now_ms + EXPIRATION_MS, EXPIRATION_MS) == [PRODUCER]


def test_a_follower_uses_the_time_of_its_own_append() -> None:
    clocked = Clocked()
    clocked.append_replica(0)
    assert clocked.expires_at() == clocked.now_ms + EXPIRATION_MS


def test_a_clean_restart_keeps_the_exact_time() -> None:
    """However often the broker restarts, an idle producer still expires."""
    clocked = Clocked()
    clocked.append(0)
    due = clocked.expires_at()
    for _ in range(3):
        clocked.now_ms += 500
        clocked.other_append()
        clocked.restart()
        assert clocked.expires_at() == due


def test_after_a_kill_the_last_write_of_the_segment_counts() -> None:
    """A batch does not contain the time of its append. The producer expires late, never early."""
    clocked = Clocked()
    clocked.append(0)
    due = clocked.expires_at()
    clocked.now_ms += 300
    clocked.other_append()
    written_ms = clocked.now_ms
    clocked.now_ms += 10_000
    clocked.log = clocked.bench.kill_and_open()
    assert due <= clocked.expires_at() <= written_ms + EXPIRATION_MS


def test_a_snapshot_at_a_roll_contains_the_time() -> None:
    """Batches replayed after it do not change producers that wrote before."""
    clocked = Clocked()
    clocked.append(0)
    due = clocked.expires_at()
    clocked.now_ms += 300
    clocked.log.roll(clocked.now_ms)
    clocked.now_ms += 300
    clocked.other_append()
    clocked.log = clocked.bench.kill_and_open()
    assert clocked.expires_at() == due
