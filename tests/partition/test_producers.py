"""Producer state: which batches are accepted, which are recognized as retries, which are
refused."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition.producer_errors import (
    CoordinatorFenced,
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    ProducerRefused,
)
from penstock.partition.producer_state import Duplicate, ProducerEntry
from penstock.partition.producers import CompletedTransaction, ProducerStates
from penstock.partition.sequence_gate import OutOfSequence
from penstock.records.batch import CONTROL, TRANSACTIONAL, BatchHeader
from penstock.records.record import ControlType

SEQUENCES = 2**31


def batch(
    offset: int,
    sequence: int,
    count: int = 1,
    *,
    producer: int = 7,
    epoch: int = 0,
    timestamp: int = 1000,
    attributes: int = 0,
) -> BatchHeader:
    return BatchHeader(
        offset, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, producer, epoch,
        sequence, count,
    )  # fmt: skip


def transactional(offset: int, sequence: int, *, producer: int = 7, epoch: int = 0) -> BatchHeader:
    return batch(offset, sequence, producer=producer, epoch=epoch, attributes=TRANSACTIONAL)


def marker(offset: int, *, producer: int = 7, epoch: int = 0, timestamp: int = 1000) -> BatchHeader:
    return batch(
        offset,
        -1,
        producer=producer,
        epoch=epoch,
        timestamp=timestamp,
        attributes=TRANSACTIONAL | CONTROL,
    )


def states_after(*headers: BatchHeader) -> ProducerStates:
    states = ProducerStates()
    for header in headers:
        assert states.check(header) is None
        states.update(header)
    return states


def test_batches_in_sequence_are_accepted() -> None:
    """Each batch begins where the previous one ended."""
    states_after(batch(0, 0, 3), batch(3, 3, 2), batch(5, 5, 1))


def test_a_retry_is_answered_with_the_original_offset() -> None:
    """Each of the last five batches is recognized, and its first offset and timestamp are
    returned."""
    headers = [batch(100 + 10 * i, 3 * i, 3, timestamp=1000 + i) for i in range(5)]
    states = states_after(*headers)
    for number, header in enumerate(headers):
        offset = 100 + 10 * number
        assert states.check(header) == Duplicate(offset, offset + 2, 1000 + number)


def test_a_retry_older_than_five_batches_is_a_duplicate_without_an_offset() -> None:
    """A batch that left the window but is known to be in the log is a duplicate, not a gap."""
    headers = [batch(10 * i, 3 * i, 3) for i in range(7)]
    states = states_after(*headers)
    for header in headers[:2]:
        with pytest.raises(DuplicateSequence) as refused:
            states.check(header)
        assert refused.value.code == 46


def test_an_older_batch_that_was_never_seen_is_not_acknowledged() -> None:
    """A partition that first saw the producer late must not call an earlier batch a duplicate."""
    states = states_after(*(batch(i, 10 + i) for i in range(8)))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(8, 5, 3))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(8, 8, 3))
    with pytest.raises(DuplicateSequence):
        states.check(batch(8, 10))


def test_a_gap_is_refused() -> None:
    """If a batch before this one is missing, records would be lost or reordered."""
    states = states_after(batch(0, 0, 2))
    with pytest.raises(OutOfOrderSequence, match="3, but 2 was expected") as refused:
        states.check(batch(2, 3))
    assert refused.value.code == 45


def test_a_retry_with_other_batch_boundaries_is_refused() -> None:
    """A batch with the same first sequence but another length is not a retry of the same batch."""
    states = states_after(batch(0, 0, 2), batch(2, 2, 2))
    for first, count in [(0, 1), (0, 4), (1, 2), (2, 1)]:
        with pytest.raises(OutOfOrderSequence):
            states.check(batch(4, first, count))


def test_an_unknown_producer_may_begin_with_any_sequence() -> None:
    """Its state may have expired. Any first sequence and epoch is accepted, and continued from
    there."""
    states = states_after(batch(50, 1234, 2, epoch=9), batch(52, 1236, epoch=9))
    assert states.check(batch(53, 1237, epoch=9)) is None


def test_an_older_epoch_is_fenced() -> None:
    """A zombie is refused even if its sequence fits, and even if it sends a retry."""
    states = states_after(batch(0, 0, epoch=1), batch(1, 0, epoch=2))
    for header in [batch(2, 1, epoch=1), batch(2, 0, epoch=1)]:
        for from_client in (True, False):
            with pytest.raises(InvalidProducerEpoch) as refused:
                states.check(header, from_client=from_client)
            assert refused.value.code == 47


def test_a_new_epoch_begins_at_sequence_zero() -> None:
    """A new epoch restarts the sequences, and the batches of the old epoch are forgotten."""
    states = states_after(batch(0, 0, 5))
    with pytest.raises(OutOfOrderSequence, match="must begin with sequence 0"):
        states.check(batch(5, 5, epoch=1))
    states.update(batch(5, 0, 2, epoch=1))
    assert states.check(batch(7, 2, epoch=1)) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(7, 0, 5, epoch=1))


def test_sequences_wrap_to_zero() -> None:
    """0 follows 2**31 - 1, between batches and within one. Retries across the boundary are
    recognized."""
    states = states_after(
        batch(0, SEQUENCES - 4, 3), batch(3, SEQUENCES - 1), batch(4, 0, 2), batch(6, 2)
    )
    assert states.check(batch(9, SEQUENCES - 1)) == Duplicate(3, 3, 1000)
    states = states_after(batch(0, SEQUENCES - 2, 5), batch(5, 3))
    assert states.check(batch(9, SEQUENCES - 2, 5)) == Duplicate(0, 4, 1000)
    for i in range(5):
        states.update(batch(6 + i, 4 + i))
    with pytest.raises(DuplicateSequence):
        states.check(batch(20, SEQUENCES - 2, 5))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(20, SEQUENCES - 3, 6))


def test_batches_written_by_a_broker_have_no_sequences() -> None:
    """For offsets committed in a transaction only the epoch and the transaction are checked."""
    states = ProducerStates()
    for offset in range(3):
        header = transactional(offset, -1)
        assert states.check(header, from_client=False) is None
        states.update(header)
    assert states.first_unstable_offset(10) == 0


def test_producers_are_independent() -> None:
    """Two producers with equal sequences do not affect each other."""
    states = states_after(batch(0, 0, producer=1), batch(1, 0, producer=2))
    assert states.check(batch(2, 1, producer=1)) is None
    assert states.check(batch(2, 0, producer=2)) == Duplicate(1, 1, 1000)
    assert len(states) == 2


def test_a_transaction_holds_back_readers_until_its_marker_is_replicated() -> None:
    """The first unstable offset belongs to the oldest transaction that is open, or that ended
    above the high watermark."""
    states = states_after(
        batch(0, 0, producer=9), transactional(1, 0), transactional(2, 0, producer=8)
    )
    states.update(transactional(3, 1))
    assert states.first_unstable_offset(4) == 1
    ended = states.on_control(marker(4), ControlType.COMMIT, 3)
    assert ended == CompletedTransaction(7, 1, 4, False, 2)
    assert states.first_unstable_offset(4) == 1
    assert states.first_unstable_offset(5) == 2
    ended = states.on_control(marker(5, producer=8), ControlType.ABORT, 3)
    assert ended == CompletedTransaction(8, 2, 5, True, 6)
    assert states.first_unstable_offset(5) == 2
    assert states.first_unstable_offset(6) is None


def test_sequences_continue_after_a_marker_of_the_same_epoch() -> None:
    """Before KIP-890 a marker changed neither epoch nor sequences. Retries are still recognized."""
    states = states_after(transactional(0, 0))
    states.on_control(marker(1), ControlType.COMMIT, 0)
    assert states.check(transactional(2, 0)) == Duplicate(0, 0, 1000)
    assert states.check(transactional(2, 1)) is None


def test_a_marker_with_a_new_epoch_fences_and_restarts_the_sequences() -> None:
    """Since KIP-890 the marker raises the epoch, so late data of the ended transaction is
    refused."""
    states = states_after(transactional(0, 0))
    states.on_control(marker(1, epoch=1), ControlType.COMMIT, 0)
    with pytest.raises(InvalidProducerEpoch):
        states.check(transactional(2, 1))
    with pytest.raises(OutOfOrderSequence):
        states.check(transactional(2, 1, epoch=1))
    assert states.check(transactional(2, 0, epoch=1)) is None


def test_a_marker_without_data_completes_nothing() -> None:
    """The coordinator may write markers to partitions that the producer never reached. Their epoch
    still fences."""
    states = ProducerStates()
    assert states.on_control(marker(0, epoch=5), ControlType.ABORT, 2) is None
    assert states.first_unstable_offset(0) is None
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(1, 0, epoch=4))


def test_a_batch_outside_the_open_transaction_is_refused() -> None:
    """A producer in a transaction may write only transactional batches."""
    states = states_after(transactional(0, 0))
    with pytest.raises(InvalidTransactionState) as refused:
        states.check(batch(1, 1))
    assert refused.value.code == 48


def test_late_and_fenced_markers_are_refused() -> None:
    """A strict marker must raise the epoch, unless it repeats the marker that ended the
    transaction. A former coordinator is fenced."""
    states = states_after(transactional(0, 0, epoch=4))
    with pytest.raises(InvalidProducerEpoch):
        states.check_marker(7, 3, 0, strict=False)
    with pytest.raises(InvalidProducerEpoch):
        states.check_marker(7, 4, 0, strict=True)
    states.check_marker(7, 4, 0, strict=False)
    states.check_marker(7, 5, 0, strict=True)
    states.on_control(marker(1, epoch=5), ControlType.COMMIT, 6)
    states.check_marker(7, 5, 6, strict=True)
    with pytest.raises(CoordinatorFenced) as refused:
        states.check_marker(7, 6, 5, strict=True)
    assert refused.value.code == 52
    states.check_marker(1, 0, 0, strict=True)


def test_an_emptied_control_batch_keeps_its_epoch() -> None:
    """Compaction may empty a marker. Replaying it must still fence older epochs."""
    states = states_after(batch(0, 0))
    states.update(marker(1, epoch=3))
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(2, 1))


def test_idle_producers_expire_unless_a_transaction_is_open() -> None:
    """Idle time counts from the append of the last batch or marker."""
    states = ProducerStates()
    states.update(batch(0, 0, producer=1), 100)
    states.update(batch(1, 0, producer=2), 101)
    states.update(batch(2, 0, producer=3, attributes=TRANSACTIONAL), 100)
    assert states.expire(200, 100) == [1]
    assert len(states) == 2
    assert states.check(batch(3, 40, producer=1)) is None
    states.on_control(marker(3, producer=3), ControlType.COMMIT, 0, 500)
    assert states.expire(599, 100) == [2]
    assert states.expire(600, 100) == [3]


@pytest.mark.parametrize("timestamp", [5, 5_000_000])
def test_record_timestamps_do_not_expire_a_producer(timestamp: int) -> None:
    """A producer that writes records with old or future timestamps is as active as any other."""
    states = ProducerStates()
    states.update(batch(0, 0, timestamp=timestamp), 1_000)
    assert states.expire(1_099, 100) == []
    assert isinstance(states.check(batch(0, 0, timestamp=timestamp)), Duplicate)
    assert states.expire(1_100, 100) == [7]


def test_replay_accepts_everything_that_is_in_the_log() -> None:
    """Recovery accepts gaps, older epochs and repeats, and continues from the last batch."""
    states = ProducerStates()
    for header in [batch(0, 5), batch(1, 90, 2), batch(3, 0, epoch=2), batch(4, 7, epoch=1)]:
        states.update(header)
    assert states.check(batch(5, 8, epoch=1)) is None


def test_batches_before_a_gap_in_the_replayed_log_are_not_acknowledged() -> None:
    """Compaction may have removed batches, so the state before the gap is not certain."""
    states = ProducerStates()
    for i in (*range(3), *range(6, 14)):
        states.update(batch(i, i))
    for sequence in (2, 4):
        with pytest.raises(OutOfOrderSequence):
            states.check(batch(20, sequence))
    with pytest.raises(DuplicateSequence):
        states.check(batch(20, 6))


def test_last_data_offsets_names_the_batches_that_compaction_must_keep() -> None:
    """These are each producer's last data batches. A marker that began a new epoch has no
    sequence."""
    states = states_after(batch(0, 0, 3), transactional(3, 0, producer=8))
    assert states.last_data_offsets() == {7: 2, 8: 3}
    states.on_control(marker(4, producer=8, epoch=1), ControlType.COMMIT, 0)
    assert states.last_data_offsets() == {7: 2}


def test_snapshot_entries_contain_the_last_batch() -> None:
    """Kafka's snapshot has one entry for each producer."""
    states = states_after(batch(0, 0, 3, timestamp=5), batch(3, 3, 2, timestamp=6))
    assert states.entries() == [ProducerEntry(7, 0, 4, 4, 1, 6, -1, -1)]
    states.on_control(marker(5, epoch=1, timestamp=9), ControlType.COMMIT, 2)
    assert states.entries() == [ProducerEntry(7, 1, -1, -1, 0, 9, 2, -1)]


def test_state_loaded_from_a_snapshot_continues() -> None:
    """The last batch is recognized, the next one is accepted, and open transactions are still
    open."""
    states = states_after(
        transactional(0, 0, producer=8),
        batch(1, 0, 3),
        batch(4, 3, 2),
        transactional(6, 0, epoch=1),
    )
    loaded = ProducerStates()
    loaded.load(reversed(states.entries()))
    assert loaded.check(transactional(7, 0, epoch=1)) == Duplicate(6, 6, 1000)
    assert loaded.check(transactional(7, 1, epoch=1)) is None
    assert loaded.first_unstable_offset(7) == 0
    assert sorted(loaded.entries()) == sorted(states.entries())


def test_a_snapshot_of_one_batch_does_not_acknowledge_older_ones() -> None:
    """After a restart an older retry is refused as out of order: the broker cannot know that it is
    there."""
    states = states_after(*(batch(i, i) for i in range(9)))
    loaded = ProducerStates()
    loaded.load(states.entries())
    with pytest.raises(OutOfOrderSequence):
        loaded.check(batch(9, 7))


def test_several_entries_for_a_producer_restore_the_whole_window() -> None:
    """Of five entries Kafka uses the last one; Penstock recognizes all five."""
    headers = [batch(10 * i, 2 * i, 2, timestamp=i) for i in range(8)]
    states = states_after(*headers)
    entries = states.entries(batches_per_producer=5)
    assert len(entries) == 5
    assert entries[-1:] == states.entries()
    loaded = ProducerStates()
    loaded.load(entries)
    for header in headers[3:]:
        assert loaded.check(header) == states.check(header)


def test_clear_forgets_everything() -> None:
    """Truncation rebuilds the state from nothing."""
    states = states_after(transactional(0, 0))
    states.on_control(marker(1), ControlType.COMMIT, 0)
    states.update(transactional(2, 1))
    states.clear()
    assert len(states) == 0
    assert states.first_unstable_offset(0) is None
    assert states.entries() == []


def test_a_producer_takes_less_than_400_bytes() -> None:
    """With five batches remembered."""
    count = 2000
    tracemalloc.start()
    try:
        states = ProducerStates()
        for producer in range(count):
            for i in range(6):
                offset = 10**12 + producer * 10 + i
                states.update(batch(offset, 1000 + i, producer=10**6 + producer, timestamp=10**12))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(states) == count
    assert size / count < 400


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Returns a first sequence, and (producer, batch number) pairs as a network might deliver
    them."""
    start = draw(st.sampled_from([0, 3, SEQUENCES - 6]))
    events = draw(
        st.lists(st.tuples(st.integers(1, 2), st.integers(0, 12)), min_size=10, max_size=60)
    )
    return start, events


@settings(deadline=None, max_examples=60)
@given(deliveries(), st.integers(0, 60))
def test_the_log_has_each_batch_once_and_in_order(
    plan: tuple[int, list[tuple[int, int]]], restart_at: int
) -> None:
    """Whatever is lost, repeated or reordered, the sequences of each producer in the log are
    contiguous. A duplicate gets its true offset, and no batch is called a duplicate unless it is
    in the log, also after a restart from a snapshot with one batch (I9)."""
    start, events = plan
    states = ProducerStates()
    log: dict[int, list[tuple[int, int]]] = defaultdict(list)
    offset = 0
    for step, (producer, number) in enumerate(events):
        if step == restart_at:
            entries = states.entries()
            states.clear()
            states.load(entries)
        count = number % 3 + 1
        sequence = (start + sum(i % 3 + 1 for i in range(number))) % SEQUENCES
        header = batch(offset, sequence, count, producer=producer)
        written = {at: number for number, at in log[producer]}
        try:
            found = states.check(header)
        except DuplicateSequence:
            assert number in written.values()
        except OutOfOrderSequence:
            assert not log[producer] or number != log[producer][-1][0] + 1
        else:
            if found is None:
                states.update(header)
                log[producer].append((number, offset))
                offset += count
            else:
                assert written[found.base_offset] == number
    for appended in log.values():
        assert all(after[0] == before[0] + 1 for before, after in pairwise(appended))


def test_every_refusal_has_its_own_kafka_code() -> None:
    """Clients act on these codes."""
    assert OutOfSequence in ProducerRefused.__subclasses__()
    codes = {refusal.__name__: refusal.code for refusal in ProducerRefused.__subclasses__()}
    assert codes == {
        "OutOfOrderSequence": 45,
        "DuplicateSequence": 46,
        "InvalidProducerEpoch": 47,
        "InvalidTransactionState": 48,
        "CoordinatorFenced": 52,
        "OutOfSequence": 6,
    }
