"""The state of a share partition fits into one batch of `__share_group_state`."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.metadata.broker_configs import BROKER_CONFIGS
from penstock.metadata.topic_configs import TOPIC_CONFIGS
from penstock.records.record import Record, build_batch
from penstock.shares.acknowledgements import TABLES_SIZE
from penstock.shares.formats import Entry, Snapshot, record_of
from penstock.shares.image import Delta, LetterNumbers, ShareImage, StoredSpan
from penstock.shares.states import GiveUpReason, RecordState

from .driver import JOBS

LOCKS_MAX = 10_000
FAR = 2**62
LETTERS = LetterNumbers(FAR, FAR, 30_000, FAR)
ARCHIVING = (RecordState.ARCHIVING, 25, 0, GiveUpReason.REJECTED, FAR)
BACKOFF = (RecordState.AVAILABLE, 25, FAR)


@pytest.mark.parametrize("form", [ARCHIVING, BACKOFF], ids=["archiving", "back-off"])
def test_a_full_window_of_different_spans_fits_into_a_batch(form: tuple[Any, ...]) -> None:
    """Each offset that can be acquired is a span of its own, in the form that needs most bytes."""
    check = BROKER_CONFIGS["group.share.partition.max.record.locks"].check
    assert check is not None
    assert check(LOCKS_MAX + 1) is not None, "the window may be larger than this test assumes"
    count = TABLES_SIZE * LOCKS_MAX
    spans = tuple(StoredSpan(FAR + at, FAR + at, *form) for at in range(count))
    window, promoted = spans[: count * 2 // 3], spans[count * 2 // 3 :]
    delta = Delta(1, FAR, FAR, 1, window, LETTERS, promoted)
    image = ShareImage(1, FAR, FAR, 1, list(window), LETTERS, list(promoted))
    bytes_max = TOPIC_CONFIGS["max.message.bytes"].default
    assert isinstance(bytes_max, int)
    for content in (delta, Snapshot(image)):
        stored = record_of(Entry(JOBS, content))
        batch = build_batch([Record(0, 0, stored.key, stored.value)])
        assert len(batch) <= bytes_max
