"""Due times that a leader refuses, in topics with timed records."""

from __future__ import annotations

import pytest

from penstock.partition.batch_rules import AppendRules
from penstock.partition.record_validation import (
    ON_LOOP_BYTES_MAX,
    LargeBatch,
    RecordsRefused,
    validate_batch,
)
from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.wire.errors import ErrorCode

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
PLAIN = AppendRules(1 << 20, 2**63 - 1, 3_600_000, checks_timestamps=True)
TIMED = AppendRules(1 << 20, 2**63 - 1, 3_600_000, checks_timestamps=True, due_after_max_ms=DAY_MS)
codecs = pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])


def batch_of(*times: tuple[str, bytes], codec: Codec = Codec.NONE, value: bytes = b"") -> bytearray:
    """Returns a batch with one record for each header, and a plain one before them."""
    records = [Record(0, NOW_MS, b"key", value)]
    records += [Record(at, NOW_MS, None, b"", (each,)) for at, each in enumerate(times, 1)]
    return build_batch(records, codec=codec)


def check(batch: bytearray, rules: AppendRules = TIMED, on_loop: bool = True) -> None:
    validate_batch(memoryview(batch), rules, NOW_MS, True, on_loop)


@codecs
def test_a_due_time_within_the_retention_is_accepted(codec: Codec) -> None:
    check(batch_of(("penstock-deliver-at", b"%d" % (NOW_MS + DAY_MS)), codec=codec))
    check(batch_of(("penstock-expires-at", b"%d" % (NOW_MS + 2 * DAY_MS)), codec=codec))


@codecs
@pytest.mark.parametrize("on_loop", [True, False])
def test_a_due_time_beyond_the_retention_is_refused(codec: Codec, on_loop: bool) -> None:
    late = "penstock-deliver-at", b"%d" % (NOW_MS + DAY_MS + 1)
    batch = batch_of(("penstock-deliver-at", b"5"), late, codec=codec)
    with pytest.raises(RecordsRefused, match=r"retention\.ms") as caught:
        check(batch, on_loop=on_loop)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [each.number for each in caught.value.errors] == [2]


@pytest.mark.parametrize("text", [b"", b"-1", b"soon", b"1e9", b"9" * 19])
def test_a_due_time_that_is_not_a_number_is_refused(text: bytes) -> None:
    for name in ("penstock-deliver-at", "penstock-expires-at"):
        with pytest.raises(RecordsRefused, match="not a number"):
            check(batch_of((name, text)))


@codecs
def test_other_topics_accept_any_header(codec: Codec) -> None:
    check(batch_of(("penstock-deliver-at", b"soon"), codec=codec), PLAIN)


def test_only_plain_topics_use_the_fast_path() -> None:
    assert PLAIN.are_ordinary
    assert not TIMED.are_ordinary


def test_a_large_batch_is_read_on_a_thread() -> None:
    with pytest.raises(LargeBatch):
        check(batch_of(value=bytes(ON_LOOP_BYTES_MAX)))
    check(batch_of(value=bytes(ON_LOOP_BYTES_MAX)), on_loop=False)
