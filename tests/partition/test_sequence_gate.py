"""A batch that overtook others on its way to a new leader gets a retriable error.

After OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka writes unacknowledged records again (its issue 4953).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from penstock.partition.producer_errors import DuplicateSequence, OutOfOrderSequence
from penstock.partition.producer_state import Duplicate
from penstock.partition.producers import ProducerStates
from penstock.partition.retry_window import REMEMBERED_MS, RetryWindow
from penstock.partition.sequence_gate import OutOfSequence, check_sequence
from penstock.records.batch import BatchHeader


@dataclass
class Leader:
    """One leader's view of producer 7. Accepted batches are in its log at once."""

    epoch: int = 1
    start_offset: int = 0
    age_ms: int = 0
    end: int = 0
    producers: ProducerStates = field(default_factory=ProducerStates)
    refused: RetryWindow = field(default_factory=RetryWindow)

    def send(
        self, sequence: int, count: int = 1, *, epoch: int = 0, now_ms: int = 0
    ) -> Duplicate | None:
        header = BatchHeader(
            self.end, 100, 0, 2, 0, 0, count - 1, 1000, 1000, 7, epoch, sequence, count
        )
        seen = check_sequence(header, self.producers, self.refused, self, now_ms)
        if seen is None:
            self.producers.update(header)
            self.end += count
        return seen

    def next_term(self) -> None:
        self.epoch += 1
        self.start_offset = self.end
        self.age_ms = 0


def leader_with(*sequences: int) -> Leader:
    """Returns a leader in a new leader epoch. These batches were written in the previous one."""
    leader = Leader(epoch=0)
    for sequence in sequences:
        assert leader.send(sequence) is None
    leader.next_term()
    return leader


def test_a_batch_that_overtook_others_waits_for_them() -> None:
    """The previous leader had 0 to 4 and died; 0 to 2 are replicated. The client sends 5 first."""
    leader = leader_with(0, 1, 2)
    for _ in range(2):
        with pytest.raises(OutOfSequence, match="sent sequence 5"):
            leader.send(5)
    assert [leader.send(sequence) for sequence in (1, 2)] == [
        Duplicate(1, 1, 1000),
        Duplicate(2, 2, 1000),
    ]
    with pytest.raises(OutOfSequence):
        leader.send(5)
    assert [leader.send(sequence) for sequence in (3, 4, 5)] == [None] * 3


def test_a_batch_in_sequence_is_accepted_while_retries_are_still_to_come() -> None:
    """All batches before it are replicated, and retries of those are recognized."""
    leader = leader_with(*range(6))
    assert leader.send(6) is None
    assert leader.send(4) == Duplicate(4, 4, 1000)
    with pytest.raises(DuplicateSequence):
        leader.send(0)


def test_a_gap_within_a_leadership_is_the_producers_fault() -> None:
    """The producer has written to this leader, so its batches at the previous leader have
    arrived."""
    leader = leader_with(0, 1)
    assert leader.send(2) is None
    with pytest.raises(OutOfOrderSequence):
        leader.send(4)


def test_a_batch_does_not_wait_forever() -> None:
    """A batch that is not sent again in time counts as lost. In the same leader epoch later
    batches do not wait for it again, in the next one they do."""
    leader = leader_with(0, 1)
    for now_ms in range(0, REMEMBERED_MS + 1, 1000):
        with pytest.raises(OutOfSequence):
            leader.send(5, now_ms=now_ms)
    for now_ms in (REMEMBERED_MS + 1, REMEMBERED_MS + 2, 10 * REMEMBERED_MS):
        with pytest.raises(OutOfOrderSequence):
            leader.send(5, now_ms=now_ms)
    leader.next_term()
    with pytest.raises(OutOfSequence):
        leader.send(5, now_ms=11 * REMEMBERED_MS)


def test_a_batch_that_overlaps_earlier_ones_is_out_of_order() -> None:
    """Other batch boundaries than before are not a gap: no batch on its way can fill it."""
    leader = leader_with(0, 1, 2)
    with pytest.raises(OutOfOrderSequence):
        leader.send(1, 4)


def test_the_second_batch_of_a_new_epoch_waits_for_the_first() -> None:
    """The first one was sent to the previous leader."""
    leader = leader_with(0, 1)
    with pytest.raises(OutOfSequence):
        leader.send(3, epoch=1)
    assert leader.send(0, 3, epoch=1) is None
    assert leader.send(3, epoch=1) is None


def test_the_second_batch_of_an_unknown_producer_waits_for_the_first() -> None:
    """None of its batches was replicated. If the second were accepted, the first could not be
    written."""
    leader = leader_with()
    with pytest.raises(OutOfSequence):
        leader.send(2)
    assert [leader.send(0, 2), leader.send(2)] == [None, None]


@pytest.mark.parametrize(
    "leader", [Leader(epoch=0), Leader(age_ms=REMEMBERED_MS + 1)], ids=["first", "old"]
)
def test_an_unknown_producer_may_begin_with_any_sequence(leader: Leader) -> None:
    """In a partition's first leader epoch, and in one that has lasted long: its earlier records
    are gone, not on their way."""
    assert leader.send(9) is None


def test_an_unknown_producer_does_not_wait_forever() -> None:
    """Its earlier records were deleted, just before the leader changed."""
    leader = leader_with()
    with pytest.raises(OutOfSequence):
        leader.send(9)
    assert leader.send(9, now_ms=REMEMBERED_MS + 1) is None
    assert leader.send(10, now_ms=REMEMBERED_MS + 1) is None
