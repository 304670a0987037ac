"""A batch that overtook others on its way to a new leader is sent back, not called out of order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from penstock.partition.producers import DuplicateSequence, OutOfOrderSequence, ProducerStates
from penstock.partition.refused import REMEMBERED_MS, RefusedBatches
from penstock.partition.remembered import Duplicate
from penstock.partition.turns import OutOfTurn, check_turn
from penstock.records.batch import BatchHeader


@dataclass
class Leader:
    """One leader's view of producer 7; what it takes is in its log at once."""

    epoch: int = 1
    start_offset: int = 0
    age_ms: int = 0
    end: int = 0
    producers: ProducerStates = field(default_factory=ProducerStates)
    refused: RefusedBatches = field(default_factory=RefusedBatches)

    def send(
        self, sequence: int, count: int = 1, *, epoch: int = 0, now_ms: int = 0
    ) -> Duplicate | None:
        header = BatchHeader(
            self.end, 100, 0, 2, 0, 0, count - 1, 1000, 1000, 7, epoch, sequence, count
        )
        seen = check_turn(header, self.producers, self.refused, self, now_ms)
        if seen is None:
            self.producers.update(header)
            self.end += count
        return seen

    def next_term(self) -> None:
        self.epoch += 1
        self.start_offset = self.end
        self.age_ms = 0


def leader_with(*sequences: int) -> Leader:
    """Of the next term; these batches were written in the one before."""
    leader = Leader(epoch=0)
    for sequence in sequences:
        assert leader.send(sequence) is None
    leader.next_term()
    return leader


def test_a_batch_that_overtook_others_waits_for_them() -> None:
    """The leader before had 0 to 4 and died; 0 to 2 are replicated. 5 comes first, by mistake."""
    leader = leader_with(0, 1, 2)
    for _ in range(2):
        with pytest.raises(OutOfTurn, match="before sequence 5"):
            leader.send(5)
    assert [leader.send(sequence) for sequence in (1, 2)] == [
        Duplicate(1, 1, 1000),
        Duplicate(2, 2, 1000),
    ]
    with pytest.raises(OutOfTurn):
        leader.send(5)
    assert [leader.send(sequence) for sequence in (3, 4, 5)] == [None] * 3


def test_what_is_in_order_is_taken_though_others_are_still_to_come() -> None:
    """All before it is replicated; those sent again are known."""
    leader = leader_with(*range(6))
    assert leader.send(6) is None
    assert leader.send(4) == Duplicate(4, 4, 1000)
    with pytest.raises(DuplicateSequence):
        leader.send(0)


def test_a_gap_within_a_term_is_the_producers_fault() -> None:
    """It has written here, so whatever another leader had of it has come."""
    leader = leader_with(0, 1)
    assert leader.send(2) is None
    with pytest.raises(OutOfOrderSequence):
        leader.send(4)


def test_nobody_waits_for_ever() -> None:
    """What does not come within the time is lost. In the same term it is not waited for again, in
    the next one it is."""
    leader = leader_with(0, 1)
    for now_ms in range(0, REMEMBERED_MS + 1, 1000):
        with pytest.raises(OutOfTurn):
            leader.send(5, now_ms=now_ms)
    for now_ms in (REMEMBERED_MS + 1, REMEMBERED_MS + 2, 10 * REMEMBERED_MS):
        with pytest.raises(OutOfOrderSequence):
            leader.send(5, now_ms=now_ms)
    leader.next_term()
    with pytest.raises(OutOfTurn):
        leader.send(5, now_ms=11 * REMEMBERED_MS)


def test_what_begins_further_back_is_out_of_order() -> None:
    """Batches cut otherwise than before are no gap: nothing is on its way that would mend it."""
    leader = leader_with(0, 1, 2)
    with pytest.raises(OutOfOrderSequence):
        leader.send(1, 4)


def test_the_second_batch_of_a_new_epoch_waits_for_the_first() -> None:
    """The first one is with the leader before."""
    leader = leader_with(0, 1)
    with pytest.raises(OutOfTurn):
        leader.send(3, epoch=1)
    assert leader.send(0, 3, epoch=1) is None
    assert leader.send(3, epoch=1) is None


def test_an_unknown_producers_second_batch_waits_for_the_first() -> None:
    """Nothing of it was replicated. Taken, it would make the first one a batch of the past."""
    leader = leader_with()
    with pytest.raises(OutOfTurn):
        leader.send(2)
    assert [leader.send(0, 2), leader.send(2)] == [None, None]


@pytest.mark.parametrize(
    "leader", [Leader(epoch=0), Leader(age_ms=REMEMBERED_MS + 1)], ids=["first", "old"]
)
def test_an_unknown_producer_begins_anywhere(leader: Leader) -> None:
    """In a partition's first term, and in an old one: its records are gone, not on their way."""
    assert leader.send(9) is None


def test_an_unknown_producer_does_not_wait_for_ever() -> None:
    """Its earlier records were deleted, just when another leader came."""
    leader = leader_with()
    with pytest.raises(OutOfTurn):
        leader.send(9)
    assert leader.send(9, now_ms=REMEMBERED_MS + 1) is None
    assert leader.send(10, now_ms=REMEMBERED_MS + 1) is None
