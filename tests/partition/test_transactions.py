"""Transactions in a partition: what readers of committed records see, compared with a model; the
index of aborted transactions; verification guards; and what compaction may remove."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition.compaction import OffsetMap, compact_batch, is_needed_empty, map_batch
from penstock.partition.producer_snapshot import decode_snapshot, encode_snapshot
from penstock.partition.producers import (
    CompletedTransaction,
    ProducerStates,
)
from penstock.partition.transactions import (
    ENTRY_SIZE,
    AbortedEntry,
    CleaningTransactions,
    CorruptTransactionIndex,
    MarkerFate,
    TransactionIndex,
    aborted_entries,
    aborted_transactions,
    decode_entries,
    encode_entries,
)
from penstock.records.aborted import AbortedProducers
from penstock.records.batch import read_header
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
    read_control,
    read_records,
)

from .test_producers import marker, transactional

SEGMENT = 8
"""Number of offsets in a segment."""


# The index


def test_an_index_entry_has_kafkas_bytes() -> None:
    """34 bytes: version, producer, first and last offset, last stable offset."""
    entry = AbortedEntry.of(CompletedTransaction(7, 100, 200, True, 150))
    data = encode_entries([entry])
    assert data == struct.pack(">hqqqq", 0, 7, 100, 200, 150)
    assert len(data) == ENTRY_SIZE == 34
    assert decode_entries(data * 0) == []
    assert decode_entries(data) == [entry]


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        struct.pack(">hqqqq", 1, 7, 1, 2, 3),
        struct.pack(">hqqqq", 0, 7, 5, 2, 3),
        encode_entries([AbortedEntry(1, 0, 9, 9), AbortedEntry(2, 0, 8, 9)]),
    ],
)
def test_a_damaged_index_is_found(data: bytes) -> None:
    """Cut short, of another version, with reversed offsets, or out of order. The index is rebuilt
    then."""
    with pytest.raises(CorruptTransactionIndex):
        decode_entries(data)


def test_entries_must_be_added_in_the_order_of_their_markers() -> None:
    """Another order is a bug of the caller."""
    index = TransactionIndex([AbortedEntry(1, 0, 9, 10)])
    with pytest.raises(ValueError, match="in the order of the log"):
        index.add(AbortedEntry(2, 3, 9, 10))


def test_a_search_reads_no_more_segments_than_it_needs() -> None:
    """An entry whose last stable offset is beyond the range is the last one that can matter."""
    first = TransactionIndex([AbortedEntry(1, 0, 5, 6), AbortedEntry(2, 3, 7, 8)])

    def later() -> Sequence[TransactionIndex]:
        raise AssertionError("the next segment is not looked at")

    def indexes() -> object:
        yield first
        yield from later()

    assert aborted_entries(indexes(), 0, 7) == [AbortedEntry(1, 0, 5, 6), AbortedEntry(2, 3, 7, 8)]  # type: ignore[arg-type]
    assert first.search(6, 8) == ([AbortedEntry(2, 3, 7, 8)], True)
    assert first.search(0, 3) == ([AbortedEntry(1, 0, 5, 6)], True)


def test_truncation_removes_the_entry_with_the_marker() -> None:
    """The transaction is then open again."""
    index = TransactionIndex([AbortedEntry(1, 0, 5, 6), AbortedEntry(2, 3, 7, 8)])
    index.truncate(7)
    assert index.entries == [AbortedEntry(1, 0, 5, 6)]
    index.add(AbortedEntry(3, 6, 7, 8))
    index.truncate(0)
    assert len(index) == 0


# A model of committed reads

Kind = Literal["plain", "data", "commit", "abort"]


@dataclass
class Written:
    kind: Kind
    producer: int
    value: int


def decided(history: Sequence[Written]) -> tuple[list[tuple[int, bool]], int]:
    """The model, computed from the whole history: for each value its offset and whether it is
    committed, and the offset below which everything is decided."""
    fates: dict[int, bool | None] = {}
    open_of: dict[int, list[int]] = {}
    for offset, written in enumerate(history):
        if written.kind == "plain":
            fates[offset] = True
        elif written.kind == "data":
            fates[offset] = None
            open_of.setdefault(written.producer, []).append(offset)
        else:
            for member in open_of.pop(written.producer, []):
                fates[member] = written.kind == "commit"
    stable = min((offset for offset, fate in fates.items() if fate is None), default=len(history))
    return [(offset, fate is True) for offset, fate in fates.items()], stable


class Machine:
    """The real producer state and index over real batches, in segments."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.states = ProducerStates()
        self.indexes: list[TransactionIndex] = [TransactionIndex()]
        self.sequences: dict[int, int] = {}

    def write(self, written: Written) -> None:
        offset = len(self.log)
        producer = written.producer
        if written.kind in ("commit", "abort"):
            kind = ControlType.COMMIT if written.kind == "commit" else ControlType.ABORT
            data = control_batch(
                ControlMarker(kind, 0),
                producer_id=producer,
                producer_epoch=0,
                timestamp=0,
                offset=offset,
            )
        else:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + 1
            data = build_batch(
                [Record(offset, 0, b"k%d" % (written.value % 3), b"%d" % written.value)],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=written.kind == "data",
            )
        self.log.append(bytes(data))
        self.note(bytes(data))

    def note(self, data: bytes) -> None:
        header = read_header(data)
        while len(self.indexes) <= header.base_offset // SEGMENT:
            self.indexes.append(TransactionIndex())
        if not header.is_control:
            self.states.update(header)
            return
        found = read_control(read_records(data, header)[0])
        ended = self.states.on_control(header, found.type, found.coordinator_epoch)
        if ended is not None and ended.aborted:
            self.indexes[header.base_offset // SEGMENT].add(AbortedEntry.of(ended))

    def truncate(self, end: int) -> None:
        """Truncates as the product does: loads a snapshot at a segment's start, and replays from
        there."""
        del self.log[end:]
        base = end // SEGMENT * SEGMENT
        before = ProducerStates()
        self.states, indexes, self.indexes = before, self.indexes, [TransactionIndex()]
        for data in self.log[:base]:
            self.note(data)
        snapshot = encode_snapshot(self.states.entries(5))
        self.states, self.indexes = ProducerStates(), indexes[: base // SEGMENT + 1]
        self.states.load(decode_snapshot(snapshot))
        for index in self.indexes:
            index.truncate(base)
        for data in self.log[base:]:
            self.note(data)

    def read_committed(self, start: int, end: int) -> list[tuple[int, bool]]:
        """Returns each data offset in [start, end), and whether a reader accepts it."""
        segments = self.indexes[start // SEGMENT :]
        reader = AbortedProducers(aborted_transactions(segments, start, end))
        seen = []
        for data in self.log[start:end]:
            header = read_header(data)
            passes = reader.passes(memoryview(data), header, 1 << 20)
            if not header.is_control:
                seen.append((header.base_offset, passes))
        return seen


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["data", "data", "data", "plain", "commit", "abort", "cut"]),
        st.integers(1, 3),
        st.integers(0, 99),
    ),
    max_size=50,
)


def histories(events: Sequence[tuple[str, int, int]]) -> tuple[Machine, list[Written]]:
    """Plays events. Plain batches come from other producers than transactional ones."""
    machine, history = Machine(), list[Written]()
    for kind, producer, value in events:
        if kind == "cut":
            end = max(0, len(history) - value % 7)
            del history[end:]
            machine.truncate(end)
        else:
            who = producer + 10 if kind == "plain" else producer
            written = Written(kind, who, value)  # type: ignore[arg-type]
            history.append(written)
            machine.write(written)
    return machine, history


@settings(deadline=None, max_examples=200)
@given(EVENTS, st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_readers_see_what_the_model_says(
    events: list[tuple[str, int, int]], start: int, length: int, watermark: int
) -> None:
    """Any fetch within the stable part, after any truncations: committed data passes, aborted data
    does not. A reader of uncommitted data gets everything."""
    machine, history = histories(events)
    fates, stable = decided(history)
    end_offset = len(history)
    assert machine.states.last_stable_offset(end_offset) == stable
    if watermark < end_offset:
        low = machine.states.__class__()
        low.load(machine.states.entries(5))
        assert low.last_stable_offset(watermark) == min(watermark, stable)
    start = min(start, stable)
    end = min(start + length, stable)
    wanted = [(offset, counts) for offset, counts in fates if start <= offset < end]
    assert machine.read_committed(start, end) == wanted
    assert len(machine.log) == end_offset


@settings(deadline=None, max_examples=100)
@given(EVENTS)
def test_a_transaction_is_stable_once_its_marker_is_replicated(
    events: list[tuple[str, int, int]],
) -> None:
    """The high watermark advances one by one. At each step the stable part ends at the first
    transaction that has no marker below the high watermark, and it never shrinks."""
    machine, history = Machine(), list[Written]()
    for kind, producer, value in events:
        if kind != "cut":
            who = producer + 10 if kind == "plain" else producer
            history.append(Written(kind, who, value))  # type: ignore[arg-type]
            machine.write(history[-1])
    before = 0
    for watermark in range(len(history) + 1):
        _, undecided = decided(history[:watermark])
        stable = machine.states.last_stable_offset(watermark)
        assert stable == min(undecided, watermark)
        assert stable >= before
        before = stable


def test_records_below_the_log_start_do_not_hold_readers_back() -> None:
    """Records of an open transaction were deleted. The rest of it is still undecided."""
    states = ProducerStates()
    states.update(transactional(3, 0))
    assert states.last_stable_offset(10) == 3
    assert states.last_stable_offset(10, log_start_offset=6) == 6
    assert states.last_stable_offset(10, log_start_offset=10) == 10


# Compaction


def clean(
    log: list[bytes], index: list[AbortedEntry], now_ms: int
) -> tuple[list[bytes], list[AbortedEntry]]:
    """Runs one round over the whole log."""
    offsets = OffsetMap(1 << 16)
    mapping = CleaningTransactions(index)
    for data in log:
        header = read_header(data)
        aborted = False if header.is_control else mapping.on_data(header)
        if header.is_control:
            mapping.on_marker(header, now_ms)
        assert map_batch(offsets, data, header, start_offset=0, aborted=aborted)
    cleaning = CleaningTransactions(index)
    kept = []
    for data in log:
        header = read_header(data)
        fate = MarkerFate.KEEP
        aborted = False
        if header.is_control:
            fate = cleaning.on_marker(header, now_ms)
        else:
            aborted = cleaning.on_data(header)
        left = compact_batch(
            data,
            header,
            offsets,
            now_ms=now_ms,
            delete_retention_ms=100,
            needed_empty=is_needed_empty(header, {}, -1, {}),
            aborted=aborted,
            marker=fate,
        )
        if left is not None:
            kept.append(bytes(left))
    return kept, cleaning.kept


def committed_values(log: list[bytes], index: list[AbortedEntry]) -> dict[bytes, bytes]:
    """Returns the newest value of each key, as a reader of committed records collects it."""
    reader = AbortedProducers(aborted_transactions([TransactionIndex(index)], 0, 1 << 40))
    found: dict[bytes, bytes] = {}
    for data in log:
        header = read_header(data)
        if reader.passes(memoryview(data), header, 1 << 20):
            for record in read_records(data, header):
                assert record.key is not None
                assert record.value is not None
                found[record.key] = record.value
    return found


@settings(deadline=None, max_examples=100)
@given(EVENTS)
def test_compaction_keeps_what_readers_of_committed_records_see(
    events: list[tuple[str, int, int]],
) -> None:
    """After each round the newest committed value of each key is still there, and replaying the
    log opens no transaction that was ended. In the end there are no markers and no aborted data
    that are not needed."""
    machine, history = histories([event for event in events if event[0] != "cut"])
    _, stable = decided(history)
    log, tail = machine.log[:stable], machine.log[stable:]
    index = [entry for each in machine.indexes for entry in each.entries]
    later = [entry for entry in index if entry.last_offset >= stable]
    wanted = committed_values(log, index)
    for now_ms in (0, 1000, 2000, 3000, 4000):
        log, kept = clean(log, index, now_ms)
        index = kept + later
        assert committed_values(log, index) == wanted
        replayed = Machine()
        for data in log + tail:
            replayed.note(data)
        assert replayed.states.last_stable_offset(len(history)) == stable
        markers = {read_header(data).base_offset for data in log if read_header(data).is_control}
        assert {entry.last_offset for entry in kept} <= markers
    producers = {read_header(data).producer_id for data in log if not read_header(data).is_control}
    for data in log:
        header = read_header(data)
        assert not header.is_control or header.producer_id in producers


def test_a_marker_stays_until_its_delete_horizon() -> None:
    """The horizon is stamped in the first round that finds no data of the transaction. The marker
    is removed in a round after that time."""
    marking = bytes(
        control_batch(ControlMarker(ControlType.COMMIT, 3), producer_id=7, producer_epoch=2,
                      timestamp=50, offset=9)
    )  # fmt: skip
    (stamped,), _ = clean([marking], [], 1000)
    header = read_header(stamped)
    assert header.delete_horizon_ms == 1100
    assert read_control(read_records(stamped)[0]) == ControlMarker(ControlType.COMMIT, 3)
    assert clean([stamped], [], 1099)[0] == [stamped]
    assert clean([stamped], [], 1100)[0] == []


def test_the_only_marker_with_a_producers_epoch_stays_as_an_empty_batch() -> None:
    """Its producer is active and has no data. Without the marker a zombie would not be fenced
    after a replay."""
    states = ProducerStates()
    states.on_control(marker(9, epoch=2), ControlType.COMMIT, 3)
    assert states.marker_epochs() == {7: 2}
    marking = bytes(
        control_batch(ControlMarker(ControlType.COMMIT, 3), producer_id=7, producer_epoch=2,
                      timestamp=50, offset=9)
    )  # fmt: skip
    header = read_header(marking)
    assert is_needed_empty(header, {}, -1, states.marker_epochs())
    assert not is_needed_empty(header, {}, -1, {7: 3})
    left = compact_batch(
        marking,
        header,
        OffsetMap(1 << 16),
        now_ms=0,
        delete_retention_ms=1,
        needed_empty=True,
        marker=MarkerFate.DROP,
    )
    assert left is not None
    empty = read_header(left)
    assert (empty.record_count, empty.is_control, empty.producer_epoch) == (0, True, 2)
    states.update(transactional(10, 0, epoch=2))
    assert states.marker_epochs() == {}
