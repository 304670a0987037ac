"""Batches with a correct header and records that no reader can decode."""

from __future__ import annotations

import pytest

from penstock.records.batch import CorruptBatch, validate
from penstock.records.record import Record, read_records
from penstock.sim.actors.bad_batches import KINDS, bad_batch

RECORDS = [Record(at, 1_700_000_000_000, b"key", b"value %d" % at) for at in range(3)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_batch_has_a_valid_header_and_undecodable_records(kind: str, count: int) -> None:
    batch = bad_batch(kind, RECORDS[:count], producer_id=7, producer_epoch=0, base_sequence=0)
    header = validate(batch)
    assert header.size == len(batch)
    assert header.record_count == header.last_offset_delta + 1
    assert (header.producer_id, header.base_sequence) == (7, 0)
    with pytest.raises(CorruptBatch):
        read_records(batch)


def test_records_that_cannot_be_corrupted_reliably_are_refused() -> None:
    with pytest.raises(ValueError, match="less than 64 bytes"):
        bad_batch("noise", [Record(0, 0, None, bytes(100))])
    with pytest.raises(ValueError, match="from 0 on"):
        bad_batch("noise", [])
