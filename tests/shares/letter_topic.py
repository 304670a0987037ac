"""A dead-letter partition that checks the sequence numbers of producers as a broker does."""

from __future__ import annotations

from penstock.partition.producer_errors import DuplicateSequence, ProducerRefused
from penstock.partition.producer_state import BATCHES_REMEMBERED, ProducerState
from penstock.partition.producers import ProducerStates
from penstock.records.batch import BatchHeader
from penstock.shares.events import DeadLettersWritten, WriteDeadLetters


class LetterTopic:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        """The offset of the record of each dead letter, in order."""
        self.refused = 0
        self._producers = ProducerStates()

    def restart(self) -> None:
        """The broker loads a snapshot, which has the last batches of each producer."""
        states = [
            (producer_id, entry)
            for producer_id, state in self._producers._producers.items()
            for entry in state.entries(producer_id, BATCHES_REMEMBERED)
        ]
        self._producers = ProducerStates()
        for producer_id, entry in states:
            held = self._producers._producers.setdefault(producer_id, ProducerState(entry.epoch))
            held.load(entry)

    def write(self, order: WriteDeadLetters, count: int | None = None) -> DeadLettersWritten:
        """Writes the first letters of an order, or all of them. Returns what became of them."""
        written: list[int] = []
        for letter in order.letters[:count]:
            number = len(self.offsets)
            producer = order.producer_id, order.producer_epoch, letter.sequence
            header = BatchHeader(number, 0, 0, 2, 0, 0, 0, 0, 0, *producer, 1)
            try:
                seen = self._producers.check(header)
            except DuplicateSequence:
                pass
            except ProducerRefused:
                self.refused += 1
                return DeadLettersWritten(tuple(written), is_refused=True)
            else:
                if seen is None:
                    self._producers.update(header)
                    self.offsets.append(letter.offset)
            written.append(letter.offset)
        return DeadLettersWritten(tuple(written))
