"""Checks whether an idempotent producer's batch is in sequence: accept, duplicate, or send again.

This is the sequence gate. `producers` decides by the log alone. This module combines its result
with what the log cannot know: batches that were refused for a moment (`retry_window`), and batches
that were sent to an earlier leader. A client resends to a new leader what the old one did not
confirm, and librdkafka may begin with the wrong batch: it counts a batch as answered a moment
before it puts it back into its queue, and its thread for the new leader takes the next one (its
issue 4953). So until a producer has written in a leadership, a gap before its batch means only that
the batch came too early. Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka reacts to that with
a new producer epoch, and writes everything that is unconfirmed again, in every partition.

The same holds for a producer that is unknown here, from which any sequence would be accepted: early
in a leadership, its first batch may still be on the way. Later, an unknown producer is one whose
records were deleted or that was idle for a long time.

The wait is limited: after `retry_window.REMEMBERED_MS` the producer gets the real error.
"""

from __future__ import annotations

from typing import Protocol

from penstock.partition.guards import Verification
from penstock.partition.producer_errors import OutOfOrderSequence, ProducerRefused
from penstock.partition.producer_state import Duplicate
from penstock.partition.producers import ProducerStates
from penstock.partition.retry_window import REMEMBERED_MS, RetryWindow
from penstock.records.batch import BatchHeader
from penstock.wire.errors import ErrorCode


class OutOfSequence(ProducerRefused):
    """The batch came too early. Every client answers NOT_LEADER_OR_FOLLOWER by sending again, in
    order."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Term(Protocol):
    """A leadership. `start_offset` is where the leader's log ended when it began."""

    epoch: int
    start_offset: int

    @property
    def age_ms(self) -> int: ...


def check_sequence(
    header: BatchHeader,
    producers: ProducerStates,
    retry_window: RetryWindow,
    term: Term,
    now_ms: int,
    verification: Verification | None = None,
) -> Duplicate | None:
    """Calls `ProducerStates.check`; raises `OutOfSequence` if an earlier batch must come first."""
    producer_id, epoch = header.producer_id, header.producer_epoch
    try:
        seen = producers.check(header, verification=verification)
    except OutOfOrderSequence:
        missing = producers.missing_before(header, term.start_offset)
        if missing is not None:
            retry_window.expect(producer_id, epoch, missing, term.epoch, now_ms)
        _wait_for_one_before(header, retry_window, now_ms)
        raise
    if seen is not None:
        return seen
    if producers.knows(producer_id):
        if retry_window:
            retry_window.forget(producer_id, epoch)
        return None
    # In leader epoch 0 there was no earlier leader.
    if header.base_sequence > 0 and term.epoch > 0 and term.age_ms <= REMEMBERED_MS:
        retry_window.expect(producer_id, epoch, 0, term.epoch, now_ms)
    if retry_window:
        _wait_for_one_before(header, retry_window, now_ms)
    return None


def _wait_for_one_before(header: BatchHeader, retry_window: RetryWindow, now_ms: int) -> None:
    sequence = header.base_sequence
    if retry_window.holds_back(header.producer_id, header.producer_epoch, sequence, now_ms):
        raise OutOfSequence(
            f"producer {header.producer_id} sent sequence {sequence}, but an earlier batch was "
            "refused temporarily, or was sent to the previous leader and has not arrived yet: "
            "send the earlier batch first"
        )
