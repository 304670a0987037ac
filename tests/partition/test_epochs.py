"""Leader epochs: which epoch wrote which offsets, and where each epoch ended."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition.epochs import (
    UNDEFINED_EPOCH,
    UNDEFINED_OFFSET,
    EpochEnd,
    EpochStart,
    LeaderEpochs,
    diverging_epoch,
)

UNDEFINED = EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


def some() -> LeaderEpochs:
    """Epoch 2 wrote [10, 20), epoch 5 [20, 35), and epoch 6 writes from 35 on."""
    return LeaderEpochs([EpochStart(2, 10), EpochStart(5, 20), EpochStart(6, 35)])


def test_an_empty_log_has_no_epochs() -> None:
    epochs = LeaderEpochs()
    assert epochs.entries == ()
    assert epochs.latest == UNDEFINED_EPOCH
    assert epochs.end_offset_for(0, 100) == UNDEFINED
    assert epochs.epoch_at(0) == UNDEFINED_EPOCH


def test_an_epoch_starts_where_it_first_writes() -> None:
    """Later batches of the same epoch add no entry."""
    epochs = LeaderEpochs()
    assert epochs.assign(3, 0)
    assert not epochs.assign(3, 10)
    assert epochs.assign(4, 20)
    assert epochs.entries == (EpochStart(3, 0), EpochStart(4, 20))
    assert epochs.latest == 4


def test_an_epoch_without_records_is_replaced() -> None:
    """Two epochs cannot start at the same offset: the first one wrote no record."""
    epochs = LeaderEpochs([EpochStart(3, 0), EpochStart(4, 20)])
    epochs.assign(7, 20)
    assert epochs.entries == (EpochStart(3, 0), EpochStart(7, 20))


def test_entries_that_contradict_a_new_one_are_removed() -> None:
    """They belong to records that this log no longer has."""
    epochs = some()
    epochs.assign(4, 15)
    assert epochs.entries == (EpochStart(2, 10), EpochStart(4, 15))


def test_the_latest_epoch_ends_with_the_log() -> None:
    """The leader of that epoch is still writing."""
    assert some().end_offset_for(6, 50) == EpochEnd(6, 50)


def test_an_earlier_epoch_ends_where_the_next_begins() -> None:
    """A follower in that epoch truncates to this offset."""
    assert some().end_offset_for(5, 50) == EpochEnd(5, 35)
    assert some().end_offset_for(2, 50) == EpochEnd(2, 20)


def test_an_unknown_epoch_is_answered_with_the_next_lower_one() -> None:
    """After quick failovers the follower's epoch may have written nothing here (KIP-279)."""
    assert some().end_offset_for(4, 50) == EpochEnd(2, 20)


def test_an_epoch_older_than_all_entries_ends_at_the_first_one() -> None:
    """Its records were deleted, or it never wrote here."""
    assert some().end_offset_for(1, 50) == EpochEnd(1, 10)


def test_the_end_of_a_newer_epoch_is_undefined() -> None:
    """The follower knows more than this log does. It must not truncate because of this answer."""
    assert some().end_offset_for(7, 50) == UNDEFINED
    assert some().end_offset_for(UNDEFINED_EPOCH, 50) == UNDEFINED


def test_truncation_removes_the_epochs_that_were_cut_off() -> None:
    """An epoch stays if any of its records may remain."""
    epochs = some()
    assert not epochs.truncate_from_end(36)
    assert epochs.truncate_from_end(35)
    assert list(epochs.entries) == [EpochStart(2, 10), EpochStart(5, 20)]
    assert epochs.truncate_from_end(0)
    assert list(epochs.entries) == []


def test_deletion_raises_the_first_start_offset() -> None:
    """The first epoch is then that of the last deleted record."""
    epochs = some()
    assert not epochs.truncate_from_start(5)
    assert not epochs.truncate_from_start(10)
    assert not epochs.truncate_from_start(11)
    assert epochs.truncate_from_start(25)
    assert list(epochs.entries) == [EpochStart(5, 24), EpochStart(6, 35)]
    assert epochs.truncate_from_start(35)
    assert list(epochs.entries) == [EpochStart(5, 34), EpochStart(6, 35)]
    assert epochs.truncate_from_start(36)
    assert list(epochs.entries) == [EpochStart(6, 35)]
    assert epochs.truncate_from_start(99)
    assert list(epochs.entries) == [EpochStart(6, 98)]


def test_a_log_that_ends_at_the_log_start_is_compared_by_the_last_deleted_record() -> None:
    """Offset 34 was written in epoch 5. A replica that has a record of epoch 2 or 4 there does not
    have the same record, although the record is deleted here (seed 437)."""
    epochs = some()
    epochs.truncate_from_start(35)
    assert diverging_epoch(epochs, 35, 5, 40) is None
    for other in (2, 4):
        found = diverging_epoch(epochs, 35, other, 40)
        assert found is not None
        assert found.end_offset < 35


def test_every_offset_has_an_epoch() -> None:
    """A fetch reports this as the epoch of its last record."""
    found = [some().epoch_at(offset) for offset in (9, 10, 19, 20, 34, 35, 1000)]
    assert found == [UNDEFINED_EPOCH, 2, 2, 5, 5, 6, 6]


CALLS = st.one_of(
    st.tuples(st.just("assign"), st.integers(0, 10), st.integers(0, 40)),
    st.tuples(st.just("cut"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("delete"), st.integers(0, 40), st.just(0)),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(CALLS, max_size=12))
def test_entries_always_increase(calls: list[tuple[str, int, int]]) -> None:
    """Both epochs and offsets increase after any calls, and the returned flag says whether the
    entries changed."""
    epochs = LeaderEpochs()
    for name, first, second in calls:
        before = epochs.entries
        if name == "assign":
            changed = epochs.assign(first, second)
        elif name == "cut":
            changed = epochs.truncate_from_end(first)
        else:
            changed = epochs.truncate_from_start(first)
        assert changed == (epochs.entries != before)
        for earlier, later in itertools.pairwise(epochs.entries):
            assert earlier.epoch < later.epoch
            assert earlier.start_offset < later.start_offset


@settings(deadline=None, max_examples=100)
@given(
    runs=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), min_size=1, max_size=6),
    asked=st.integers(0, 20),
)
def test_answers_agree_with_a_plain_log(runs: list[tuple[int, int]], asked: int) -> None:
    """Compared with a list of every record's epoch: an epoch ends at the first record of a later
    one."""
    written: list[int] = []
    epoch = 0
    for step, count in runs:
        epoch += step
        written += [epoch] * count
    epochs = LeaderEpochs()
    for offset, writer in enumerate(written):
        epochs.assign(writer, offset)
    found = epochs.end_offset_for(asked, len(written))
    if asked > written[-1]:
        assert found == UNDEFINED
    else:
        assert found.end_offset == sum(writer <= asked for writer in written)
    assert [epochs.epoch_at(offset) for offset in range(len(written))] == written


def test_an_epoch_without_records_can_be_replaced_by_an_older_one() -> None:
    """A leader stored its epoch and wrote nothing. Its successor's log continues in the epoch
    before."""
    epochs = LeaderEpochs([EpochStart(4, 3), EpochStart(5, 10)])
    assert epochs.assign(4, 10)
    assert epochs.entries == (EpochStart(4, 3),)
    assert epochs.assign(6, 12)
    assert [epochs.clear(), epochs.clear()] == [True, False]
    assert len(epochs.entries) == 0


def test_a_log_that_was_restarted_does_not_know_a_log_that_ends_where_it_starts() -> None:
    """The other log may have records there that were never committed. It must start over."""
    epochs = LeaderEpochs([EpochStart(5, 30)])
    assert diverging_epoch(epochs, 30, 4, 40) == EpochEnd(4, 29)
    assert diverging_epoch(epochs, 30, UNDEFINED_EPOCH, 40) is None
    assert diverging_epoch(epochs, 31, 5, 40) is None
    epochs = LeaderEpochs([EpochStart(4, 29), EpochStart(5, 30)])
    assert diverging_epoch(epochs, 30, 4, 40) is None
    assert diverging_epoch(epochs, 30, 3, 40) == EpochEnd(3, 29)
