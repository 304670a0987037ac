"""Tests that fetched records leave the buffer completely, in order, and once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.consuming.logs import MadeLog, fill, logs, piece_of, value
from penstock.client.consuming.buffer import Ledger, PartitionBuffer, measure
from penstock.records.batch import CorruptBatch

cuts = st.lists(st.integers(0, 20), max_size=4)


def taken(buffer: PartitionBuffer, limits: list[int]) -> list[tuple[int, bytes | None]]:
    """Takes all records from the buffer, using the limits in rotation."""
    found: list[tuple[int, bytes | None]] = []
    turn = 0
    while (rows := buffer.next_rows(limits[turn % len(limits)])) is not None:
        turn += 1
        found += [(row[0], row[3]) for row in rows.rows]
        buffer.advance_to(rows.next_offset)
    return found


def plain_log(*counts: int) -> MadeLog:
    log = MadeLog()
    for count in counts:
        log.add(range(count), count)
    return log


@settings(deadline=None, max_examples=120)
@given(logs(), cuts, st.lists(st.integers(1, 9), min_size=1, max_size=4), st.booleans())
def test_every_visible_record_is_returned_once_and_in_order(
    log: MadeLog, where: list[int], limits: list[int], committed_only: bool
) -> None:
    """For any batches, pieces and limits: gaps, markers and aborted records are skipped, all other
    records are returned, and no memory is held at the end."""
    ledger = Ledger()
    buffer = PartitionBuffer(committed_only=committed_only)
    fill(buffer, log, where, ledger)
    assert ledger.held_bytes == buffer.size == sum(map(len, log.batches))
    expected = [(offset, value(offset)) for offset in log.seen(committed_only=committed_only)]
    assert taken(buffer, limits) == expected
    assert (buffer.size, ledger.held_bytes, bool(buffer)) == (0, 0, False)
    assert buffer.floor == log.end


@settings(deadline=None, max_examples=120)
@given(logs(), cuts, st.data())
def test_skipping_forward_within_the_buffer(
    log: MadeLog, where: list[int], data: st.DataObject
) -> None:
    """A seek within the buffered data needs no new fetch, no matter what was taken before."""
    buffer = PartitionBuffer()
    fill(buffer, log, where)
    for _ in range(3):
        if data.draw(st.booleans()):
            rows = buffer.next_rows(data.draw(st.integers(1, 4)))
            if rows is not None:
                buffer.advance_to(rows.next_offset)
        target = data.draw(st.integers(0, log.end + 1))
        inside = buffer.floor <= target < log.end and bool(buffer)
        assert buffer.skip_to(target) == inside
    expected = [offset for offset in log.all_offsets if offset >= buffer.floor]
    assert [offset for offset, _ in taken(buffer, [3])] == expected


@settings(deadline=None, max_examples=80)
@given(logs(), cuts, st.integers(1, 12), st.integers(1, 400), st.booleans())
def test_peeking_returns_whole_batches_from_the_front(
    log: MadeLog, where: list[int], rows_max: int, bytes_max: int, mixed: bool
) -> None:
    """Spans cover every batch exactly once, also when records are taken in between. They exceed a
    limit only if a single batch does."""
    buffer = PartitionBuffer()
    fill(buffer, log, where)
    reached = 0
    while buffer:
        if mixed and (rows := buffer.next_rows(2)) is not None:
            buffer.advance_to(rows.next_offset)
            reached = rows.next_offset
            if not buffer:
                break
        spans = buffer.peek(rows_max, bytes_max)
        assert spans
        if sum(span.rows for span in spans) > rows_max or sum(s.size for s in spans) > bytes_max:
            assert len(spans) == 1
            whole = measure(spans[0].data[-spans[0].size :])
            assert whole is not None
            assert whole.batches == 1
        assert spans[-1].next_offset > reached
        reached = spans[-1].next_offset
        buffer.advance_to(reached)
    assert reached == log.end
    assert buffer.size == 0


def test_a_batch_is_cut_at_the_position() -> None:
    """A broker returns the whole batch that contains an offset. The consumer drops the
    records before its position."""
    log = plain_log(10)
    buffer = PartitionBuffer()
    buffer.clear(floor=4)
    buffer.push(piece_of(log.batches))
    assert [offset for offset, _ in taken(buffer, [100])] == [4, 5, 6, 7, 8, 9]


def test_an_incomplete_batch_at_the_end_is_ignored() -> None:
    """A fetch may end in the middle of a batch; the next fetch returns that batch again."""
    log = plain_log(3, 3)
    extent = measure(memoryview(b"".join(log.batches)[:-1]))
    assert extent is not None
    assert (extent.size, extent.batches, extent.next_offset) == (len(log.batches[0]), 1, 3)
    assert measure(memoryview(log.batches[0][:-1])) is None


def test_a_batch_shorter_than_its_header_is_corrupt() -> None:
    batch = bytearray(plain_log(1).batches[0])
    batch[8:12] = (3).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="less than a batch header"):
        measure(memoryview(batch))


def test_a_bad_checksum_is_detected_unless_checks_are_off() -> None:
    batch = bytearray(plain_log(1).batches[0])
    batch[-2] ^= 1
    checking, trusting = PartitionBuffer(), PartitionBuffer(check_crcs=False)
    for buffer in (checking, trusting):
        buffer.push(piece_of([bytes(batch)]))
    with pytest.raises(CorruptBatch, match="CRC"):
        checking.next_rows(1)
    assert trusting.next_rows(1) is not None


def test_the_memory_of_a_response_is_held_until_its_last_piece_is_taken() -> None:
    """Two partitions of one response share its memory, so it counts until both are done."""
    log = plain_log(2)
    ledger = Ledger()
    first, second = PartitionBuffer(), PartitionBuffer()
    piece = piece_of(log.batches, ledger=ledger)
    first.push(piece)
    second.push(type(piece)(piece.data, piece.extent, piece.answer))
    size = ledger.held_bytes
    assert size == len(log.batches[0])
    first.clear()
    assert ledger.held_bytes == size
    second.clear()
    assert ledger.held_bytes == 0
