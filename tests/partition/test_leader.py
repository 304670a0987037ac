"""What a leader takes from clients."""

from __future__ import annotations

import pytest

from penstock.partition.leader import (
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
    AppendRules,
    BatchRefused,
    check_batch,
)
from penstock.records.batch import CONTROL, TRANSACTIONAL, BatchHeader, Codec

NOW_MS = 1_700_000_000_000
RULES = AppendRules(1000, 60_000, 10_000, checks_timestamps=True)
GOOD = BatchHeader(0, 88, -1, 2, 0, 0, 4, NOW_MS, NOW_MS, -1, -1, -1, 5)


def check(header: BatchHeader = GOOD, *, size: int = 100, zstd: bool = True) -> None:
    check_batch(header, size, RULES, NOW_MS, zstd)


def test_a_batch_within_the_rules_is_taken() -> None:
    """Up to every limit."""
    check()
    check(size=1000)
    check(GOOD._replace(base_timestamp=NOW_MS - 60_000, max_timestamp=NOW_MS + 10_000))
    check(GOOD._replace(base_timestamp=-1))
    check(GOOD._replace(attributes=int(Codec.ZSTD)))
    check(GOOD._replace(attributes=int(Codec.LZ4)), zstd=False)


@pytest.mark.parametrize(
    ("code", "size", "zstd", "changed"),
    [
        (MESSAGE_TOO_LARGE, 1001, True, {}),
        (INVALID_RECORD, 100, True, {"attributes": CONTROL}),
        (INVALID_RECORD, 100, True, {"attributes": TRANSACTIONAL}),
        (INVALID_RECORD, 100, True, {"record_count": 4}),
        (UNSUPPORTED_COMPRESSION_TYPE, 100, False, {"attributes": int(Codec.ZSTD)}),
        (INVALID_TIMESTAMP, 100, True, {"max_timestamp": NOW_MS + 10_001}),
        (INVALID_TIMESTAMP, 100, True, {"base_timestamp": NOW_MS - 60_001}),
        (INVALID_TIMESTAMP, 100, False, {"base_timestamp": 0}),
    ],
)
def test_whatever_breaks_a_rule_is_refused(
    code: int, size: int, zstd: bool, changed: dict[str, int]
) -> None:
    """With the code that tells the client what to do about it."""
    with pytest.raises(BatchRefused) as refused:
        check(GOOD._replace(**changed), size=size, zstd=zstd)
    assert refused.value.code == code


def test_with_log_append_time_the_clients_times_do_not_matter() -> None:
    """They are overwritten."""
    rules = AppendRules(1000, 60_000, 10_000, checks_timestamps=False)
    header = GOOD._replace(base_timestamp=0, max_timestamp=2 * NOW_MS)
    check_batch(header, 100, rules, NOW_MS)
