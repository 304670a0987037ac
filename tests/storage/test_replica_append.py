"""A follower's log becomes the leader's, byte for byte, with all state derived from the bytes."""

from __future__ import annotations

import pytest

from penstock.partition.epochs import EpochStart
from penstock.records.batch import CorruptBatch, read_header
from penstock.records.record import build_batch
from penstock.storage.config import LogConfig
from penstock.storage.log import Log

from .log_bench import NOW_MS, LogBench, append, new_bench, offsets_of, record, state_of

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=4 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)


def grow(log: Log, end_offset: int) -> None:
    while log.end_offset < end_offset:
        number = log.end_offset
        batch = build_batch(
            [record(number)], producer_id=number % 3, producer_epoch=0, base_sequence=number // 3
        )
        log.append(batch, number // 5, NOW_MS)


def copy(leader: Log, follower: Log, bytes_max: int = 1 << 16) -> None:
    """Copies everything that the follower lacks, in pieces of `bytes_max`."""
    while (piece := leader.read(follower.end_offset, bytes_max)) is not None:
        follower.append_replica(piece.data, NOW_MS)


@pytest.mark.parametrize("bytes_max", [1, 300, 1 << 16])
def test_a_follower_has_what_the_leader_has(bench: LogBench, bytes_max: int) -> None:
    """Records, offsets, epochs and producers, with pieces of any size, also after a power cut."""
    leader = new_bench().create(SEGMENTED)
    grow(leader, 23)
    follower = bench.create(SEGMENTED)
    copy(leader, follower, bytes_max)
    assert state_of(follower) == state_of(leader)
    follower.flush()
    bench.lose_power()
    assert state_of(bench.open()) == state_of(leader)


def test_a_truncated_log_becomes_the_leaders_log_again(bench: LogBench) -> None:
    """Producers and epochs of truncated records are rolled back, and then follow the new leader."""
    leader = new_bench().create(SEGMENTED)
    grow(leader, 10)
    follower = bench.create(SEGMENTED)
    copy(leader, follower)
    # The follower's own tail, which no other replica has: another producer, another epoch.
    for sequence in range(6):
        batch = build_batch([record(0)], producer_id=77, producer_epoch=0, base_sequence=sequence)
        follower.append(batch, 2, NOW_MS)
    for number in range(10, 20):
        batch = build_batch([record(number)], producer_id=8, producer_epoch=1, base_sequence=number)
        leader.append(batch, 4, NOW_MS)
    follower.truncate_to(10)
    assert 77 not in {entry.producer_id for entry in follower.producers.entries()}
    copy(leader, follower)
    assert state_of(follower) == state_of(leader)
    assert follower.epochs.entries[-1] == EpochStart(4, 10)
    assert state_of(bench.kill_and_open()) == state_of(leader)


def test_a_retry_after_failover_is_a_duplicate(bench: LogBench) -> None:
    """The follower recognizes copied batches as the leader did: the retried batch gets its
    offset."""
    leader = new_bench().create()
    batches = [
        build_batch([record(at)], producer_id=5, producer_epoch=3, base_sequence=at)
        for at in range(4)
    ]
    for batch in batches:
        leader.append(bytearray(batch), 0, NOW_MS)
    follower = bench.create()
    copy(leader, follower)
    for restart in (lambda held: held, bench.reopen, lambda _: bench.kill_and_open()):
        follower = restart(follower)
        retried = bytearray(batches[3])
        seen = follower.producers.check(read_header(retried))
        assert seen is not None
        assert (seen.base_offset, seen.last_offset) == (3, 3)


@pytest.mark.parametrize("stop", [None, "kill"])
def test_an_epoch_without_records_is_replaced(bench: LogBench, stop: str | None) -> None:
    """Its leader wrote nothing, and the next leader continues in the epoch before."""
    leader = new_bench().create()
    append(leader, 6, epoch=4)
    follower = bench.create()
    copy(leader, follower)
    append(leader, 2, epoch=4)
    follower.note_epoch(5)
    follower.flush()
    copy(leader, follower)
    append(leader, 1, epoch=6)
    copy(leader, follower)
    if stop is not None:
        follower = bench.kill_and_open()
    assert follower.epochs.entries == (EpochStart(4, 0), EpochStart(6, 8))
    assert offsets_of(follower) == list(range(9))


def test_an_epoch_with_records_is_not_replaced(bench: LogBench) -> None:
    """Epochs never decrease within a log: that would be bit rot, or a log that was not
    truncated."""
    leader = new_bench().create()
    append(leader, 8, epoch=4)
    follower = bench.create()
    copy(leader, follower)
    append(follower, 1, epoch=5)
    append(leader, 3, epoch=4)
    piece = leader.read(9, 1 << 16)
    assert piece is not None
    with pytest.raises(CorruptBatch, match="epoch 4 is older than leader epoch 5"):
        follower.append_replica(piece.data, NOW_MS)
    assert follower.end_offset == 9
