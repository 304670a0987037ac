"""Parts of batches with promoted records."""

from __future__ import annotations

from penstock.shares.events import BatchKind, LogBatch
from penstock.shares.promoted_parts import PARTS_MAX, promoted_parts
from penstock.shares.record_marks import Mark
from penstock.shares.spans import Span
from penstock.shares.states import RecordState


def test_parts_end_before_a_record_whose_times_are_unknown() -> None:
    """It may have expired."""
    spans = [Span(2, 4, RecordState.AVAILABLE)]
    marks = {2: Mark(2, 2), 4: Mark(4, 4, expires_ms=1)}
    assert promoted_parts(spans, 2, [LogBatch(0, 9, 1)], marks) == (LogBatch(2, 2, 1),)


def test_a_record_that_is_gone_is_a_control_batch() -> None:
    spans = [Span(2, 4, RecordState.AVAILABLE)]
    marks = {at: Mark(at, at) for at in range(2, 5)}
    kinds = [each.kind for each in promoted_parts(spans, 2, [LogBatch(3, 9, 1)], marks)]
    assert kinds == [BatchKind.CONTROL, BatchKind.DATA, BatchKind.DATA]


def test_the_number_of_parts_is_limited() -> None:
    spans = [Span(0, 2 * PARTS_MAX, RecordState.AVAILABLE)]
    marks = {at: Mark(at, at) for at in range(2 * PARTS_MAX)}
    assert len(promoted_parts(spans, 0, [LogBatch(0, 3 * PARTS_MAX, 1)], marks)) == PARTS_MAX
