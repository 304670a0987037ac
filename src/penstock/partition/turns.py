"""In whose turn a batch of an idempotent producer comes: taken, known already, or sent back.

`producers` decides by the log alone. Here its verdict meets what the log cannot know: batches that
were refused for the moment (`refused`), and batches that another leader has, or had. A client sends
on to a new leader what the old one did not confirm, and librdkafka may begin with the wrong one: it
counts a batch as answered a moment before that is back in its queue, and another thread of it, the
new leader's, takes what is behind (its issue 4953). In a term in which a producer has not written
yet, a gap before its batch therefore means: not so fast. Kafka says OUT_OF_ORDER_SEQUENCE_NUMBER,
by which librdkafka begins a new epoch and writes again all that is unconfirmed, in every partition.

The same for a producer that is unknown here, to whom any number would do: early in a term its first
batch may be the one on the way. From then on its records were deleted, or it was idle for long.

Nobody waits for ever: after `refused.REMEMBERED_MS` the answer is the producer's own trouble.
"""

from __future__ import annotations

from typing import Protocol

from penstock.partition.producers import (
    OutOfOrderSequence,
    ProducerRefused,
    ProducerStates,
    Verification,
)
from penstock.partition.refused import REMEMBERED_MS, RefusedBatches
from penstock.partition.remembered import Duplicate
from penstock.records.batch import BatchHeader


class OutOfTurn(ProducerRefused):
    """NOT_LEADER_OR_FOLLOWER, which every client answers by sending it again, in order."""

    code = 6


class Term(Protocol):
    """A leader's. `start_offset` is where its log ended when it began."""

    epoch: int
    start_offset: int

    @property
    def age_ms(self) -> int: ...


def check_turn(
    header: BatchHeader,
    producers: ProducerStates,
    refused: RefusedBatches,
    term: Term,
    now_ms: int,
    verification: Verification | None = None,
) -> Duplicate | None:
    """As `ProducerStates.check`, or `OutOfTurn` where one before it is to be waited for."""
    producer_id, epoch = header.producer_id, header.producer_epoch
    try:
        seen = producers.check(header, verification=verification)
    except OutOfOrderSequence:
        missing = producers.missing_before(header, term.start_offset)
        if missing is not None:
            refused.expect(producer_id, epoch, missing, term.epoch, now_ms)
        _wait_for_one_before(header, refused, now_ms)
        raise
    if seen is not None:
        return seen
    if producers.knows(producer_id):
        if refused:
            refused.forget(producer_id, epoch)
        return None
    # In its very first term nobody led the partition before.
    if header.base_sequence > 0 and term.epoch > 0 and term.age_ms <= REMEMBERED_MS:
        refused.expect(producer_id, epoch, 0, term.epoch, now_ms)
    if refused:
        _wait_for_one_before(header, refused, now_ms)
    return None


def _wait_for_one_before(header: BatchHeader, refused: RefusedBatches, now_ms: int) -> None:
    sequence = header.base_sequence
    if refused.holds_back(header.producer_id, header.producer_epoch, sequence, now_ms):
        raise OutOfTurn(
            f"a batch of producer {header.producer_id} before sequence {sequence} was refused for "
            "the moment, or is still on its way from an earlier leader: send that first"
        )
