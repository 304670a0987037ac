"""Tests what an answer means for a batch, and how lanes number their batches."""

from __future__ import annotations

import pytest

from penstock.client.producing.batches import Batch
from penstock.client.producing.sequences import EPOCH_MAX, Identity, Numbering, Verdict, judge
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode


@pytest.mark.parametrize(
    ("code", "first", "count", "verdict"),
    [
        (ErrorCode.NONE, True, 2, Verdict.DONE),
        (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, False, 2, Verdict.DONE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True, 2, Verdict.RETRY),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, False, 2, Verdict.RETRY),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, True, 2, Verdict.RENUMBER),
        (ErrorCode.UNKNOWN_PRODUCER_ID, True, 2, Verdict.RENUMBER),
        (ErrorCode.MESSAGE_TOO_LARGE, True, 2, Verdict.SPLIT),
        (ErrorCode.RECORD_LIST_TOO_LARGE, True, 2, Verdict.SPLIT),
        (ErrorCode.MESSAGE_TOO_LARGE, True, 1, Verdict.REFUSED),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, True, 2, Verdict.REFUSED),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True, 2, Verdict.REFUSED),
        (ErrorCode.INVALID_PRODUCER_EPOCH, True, 2, Verdict.FATAL),
        (ErrorCode.PRODUCER_FENCED, True, 2, Verdict.FATAL),
        (12_345, True, 2, Verdict.REFUSED),
    ],
)
def test_the_verdict_for_each_error_code(
    code: int, first: bool, count: int, verdict: Verdict
) -> None:
    """For a numbered batch, depending on whether an earlier batch is unresolved."""
    assert judge(code, numbered=True, first=first, count=count) is verdict


def test_sequence_errors_without_idempotence_are_refusals() -> None:
    """A broker that reports a sequence error to a producer without an id has refused the batch."""
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert judge(code, numbered=False, first=True, count=2) is Verdict.REFUSED


def batch_of(count: int) -> Batch:
    batch = Batch(TopicPartition("topic", 0), 1, 0.0, 1.0)
    for _ in range(count):
        batch.append(0, None, b"x", ())
    return batch


def test_sequences_wrap_around() -> None:
    """The sequence after 2**31 - 1 is 0."""
    numbering = Numbering()
    numbering.next_sequence = (1 << 31) - 2
    batches = [batch_of(3), batch_of(1)]
    for batch in batches:
        numbering.number(batch, Identity(5, 0))
    assert [batch.sequence for batch in batches] == [(1 << 31) - 2, 1]


def test_a_new_epoch_voids_the_sequences_of_unresolved_batches() -> None:
    """They are numbered again, from 0, when they are sent again."""
    numbering = Numbering()
    batches = [batch_of(2), batch_of(2)]
    for batch in batches:
        numbering.number(batch, Identity(5, 0))
    assert numbering.begin_again(Identity(5, 0))
    assert not any(batch.is_numbered for batch in batches)
    numbering.number(batches[0], Identity(5, 0))
    assert (batches[0].epoch, batches[0].sequence) == (1, 0)


def test_an_exhausted_epoch_needs_another_producer_id() -> None:
    """The same identity is refused; another one begins at its own epoch."""
    numbering = Numbering()
    numbering.number(batch_of(1), Identity(5, EPOCH_MAX))
    assert not numbering.begin_again(Identity(5, EPOCH_MAX))
    assert numbering.begin_again(Identity(6, 0))
    assert (numbering.producer_id, numbering.epoch, numbering.next_sequence) == (6, 0, 0)


@pytest.mark.parametrize(
    ("confirmed", "transactional", "stamps"),
    [
        (False, False, [(0, 0), (1, 0)]),
        (True, False, [(0, 0), (0, 1), (0, 3)]),
        (False, True, [(0, 0), (0, 2)]),
    ],
    ids=["of an unknown producer", "of a known one", "in a transaction"],
)
def test_numbering_after_a_batch_with_unknown_fate(
    confirmed: bool, transactional: bool, stamps: list[tuple[int, int]]
) -> None:
    """A broker that does not know the producer accepts any sequence, so the next batch
    begins a new epoch. A broker that knows it detects a gap. The epoch of a transaction is
    not the client's to change."""
    numbering = Numbering()
    batches = [batch_of(1)] if confirmed else []
    batches += [batch_of(2), batch_of(1)]
    for batch in batches:
        batch.is_transactional = transactional
        numbering.number(batch, Identity(5, 0))
        if confirmed and batch is batches[0]:
            numbering.on_written(batch)
        else:
            batch.uncertain = True
            numbering.on_gone(batch)
    assert [(batch.epoch, batch.sequence) for batch in batches] == stamps
