"""Which batches a leader accepts from clients."""

from __future__ import annotations

import pytest

from penstock.partition.batch_rules import AppendRules, BatchRefused, check_batch
from penstock.records.batch import CONTROL, TRANSACTIONAL, BatchHeader, Codec
from penstock.wire.errors import ErrorCode

NOW_MS = 1_700_000_000_000
RULES = AppendRules(1000, 60_000, 10_000, checks_timestamps=True)
GOOD = BatchHeader(0, 88, -1, 2, 0, 0, 4, NOW_MS, NOW_MS, -1, -1, -1, 5)


def check(header: BatchHeader = GOOD, *, size: int = 100, zstd: bool = True) -> None:
    check_batch(header, size, RULES, zstd)


def test_a_batch_within_the_rules_is_accepted() -> None:
    """Every limit is inclusive."""
    check()
    check(size=1000)
    check(GOOD._replace(producer_id=0, producer_epoch=0, base_sequence=0))
    check(GOOD._replace(producer_id=2**63 - 1, producer_epoch=2**15 - 1, base_sequence=2**31 - 1))
    check(GOOD._replace(attributes=int(Codec.ZSTD)))
    check(GOOD._replace(attributes=int(Codec.LZ4)), zstd=False)


@pytest.mark.parametrize(
    ("code", "size", "zstd", "changed"),
    [
        (ErrorCode.MESSAGE_TOO_LARGE, 1001, True, {}),
        (ErrorCode.INVALID_RECORD, 100, True, {"attributes": CONTROL}),
        (ErrorCode.INVALID_RECORD, 100, True, {"attributes": TRANSACTIONAL}),
        (ErrorCode.INVALID_RECORD, 100, True, {"record_count": 4}),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 100, False, {"attributes": int(Codec.ZSTD)}),
        (ErrorCode.INVALID_RECORD, 100, True, {"producer_id": 7, "producer_epoch": 0}),
        (
            ErrorCode.INVALID_RECORD,
            100,
            True,
            {"producer_id": 7, "producer_epoch": 0, "base_sequence": -2},
        ),
        (ErrorCode.INVALID_RECORD, 100, True, {"producer_id": 7}),
        (
            ErrorCode.INVALID_RECORD,
            100,
            True,
            {"producer_id": -2, "producer_epoch": 0, "base_sequence": 0},
        ),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 100, True, {"producer_id": 7, "base_sequence": 0}),
    ],
)
def test_a_batch_that_breaks_a_rule_is_refused(
    code: int, size: int, zstd: bool, changed: dict[str, int]
) -> None:
    """The error code tells the client what to do about it."""
    with pytest.raises(BatchRefused) as refused:
        check(GOOD._replace(**changed), size=size, zstd=zstd)
    assert refused.value.code == code
