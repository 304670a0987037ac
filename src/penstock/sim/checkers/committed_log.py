"""What is committed in one partition: the reference that all replicas are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.sim.checkers.metadata_invariants import broken
from penstock.sim.checkers.shadow_log import Mark, ShadowLog, chain_with

_SEQUENCES: Final = 1 << 31

BatchCheck = Callable[[str, Mark, ShadowLog], None]
"""Takes the partition name, the batch, and the log that has it."""


@dataclass(slots=True)
class CommittedLog:
    """What is committed in one partition, and the state of its producers."""

    partition_name: str
    marks: list[Mark] = field(default_factory=list)
    chains: dict[int, int] = field(default_factory=lambda: {0: 0})
    """By end offset: the chain hash of everything below."""
    end_offset: int = 0
    synced_end: int = 0
    """The largest recovery point that any replica ever had."""
    told_end: int = 0
    """The largest end offset that clients may have received."""
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By producer: its epoch and its next sequence number."""
    is_recreated: bool = False
    """Another topic of this name was deleted before."""
    lasts: dict[int, int] = field(default_factory=dict)
    """By producer: the last offset of its last batch that has a sequence number."""
    batches: dict[tuple[int, int], int] = field(default_factory=dict)
    """By leader epoch and base offset: the chain hash up to and including that batch, in the first
    log that had it."""

    def extend(self, shadow: ShadowLog, high_watermark: int, check: BatchCheck) -> None:
        """Adds what is committed now. `check` is called with each batch."""
        for mark in shadow.marks_between(self.end_offset, high_watermark):
            if mark.base_offset != self.end_offset:
                text = f"offsets from {self.end_offset} to {mark.base_offset} are missing"
                raise broken("I1", self.partition_name, text, self.end_offset)
            self._check_sequence(mark, shadow.log.log_start_offset)
            check(self.partition_name, mark, shadow)
            self.marks.append(mark)
            before = self.chains[self.end_offset]
            self.end_offset = mark.next_offset
            self.chains[self.end_offset] = chain_with(before, mark)

    def _check_sequence(self, mark: Mark, start_offset: int) -> None:
        if mark.producer_id < 0:
            return
        epoch, due = self.sequences.get(mark.producer_id, (-1, 0))
        if mark.producer_epoch < epoch:
            text = f"producer {mark.producer_id} wrote in epoch {mark.producer_epoch} after {epoch}"
            raise broken("I9", self.partition_name, text, mark.base_offset)
        if mark.producer_epoch > epoch:
            due = 0
        if mark.base_sequence < 0 and mark.is_transactional:
            # A marker, or offsets that a broker wrote for the producer: these have no
            # sequence number.
            self.sequences[mark.producer_id] = (mark.producer_epoch, due)
            return
        # A replica whose log began after records had been deleted never saw the producer's last
        # sequence number. As leader it accepts any number, even if batches before it were given up.
        # The leader of a topic that was created again does the same for a producer that wrote to
        # the deleted one: requests name a topic by its name.
        last = self.lasts.get(mark.producer_id)
        is_forgotten = self.is_recreated if last is None else last < start_offset
        if mark.base_sequence != due and not (is_forgotten and mark.base_sequence > due):
            text = (
                f"a batch of producer {mark.producer_id} with sequence {mark.base_sequence} was "
                f"committed where {due} was expected"
            )
            raise broken("I9", self.partition_name, text, mark.base_offset)
        following = (mark.base_sequence + mark.record_count) % _SEQUENCES
        self.lasts[mark.producer_id] = mark.next_offset - 1
        self.sequences[mark.producer_id] = (mark.producer_epoch, following)
