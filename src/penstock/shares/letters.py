"""The dead letters of a share partition: their numbers, and which of them to write next. Pure.

Dead letters are written exactly once, because the leader writes them as an idempotent producer. The
delta that sets a record to archiving gives its letter a number. A new leader writes the letters
that are left under the same numbers, and the dead-letter partition recognizes those that it has.

A partition remembers the last five batches of a producer, by their exact sequence numbers. So each
letter is a batch of its own, letters are written in the order of their numbers, and at most
`LETTERS_AT_A_TIME` of them, a *round*, are written and not yet archived. The next round begins when
those of the last one are archived durably, or are gone from the window.

A letter that is never written leaves a gap: the log start has passed its record, there is no record
at its offset, or the delta with its number was not stored. Then the partition would refuse all
later numbers. So the letters that are left are numbered again, in a new producer epoch that begins
with sequence number 0, and that is durable before any of them is written. Until this broker has
written a letter it does not know what the partition expects. If the partition refuses a number, the
letter is not there: a copy of it would have been recognized.

Numbers count up over all epochs. `LetterNumbers.base` is the first number of the current epoch. An
archiving record with a lower number, such as one whose delta was under way when the epoch began,
has no letter yet. It gets the next number of the current epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.shares.events import DeadLetter, DeadLettersWritten, TakeProducerId, WriteDeadLetters
from penstock.shares.image import LetterNumbers
from penstock.shares.promoted_spans import SpanTables
from penstock.shares.spans import Span
from penstock.shares.states import RecordState

LETTERS_AT_A_TIME: Final = 5
"""As many batches of a producer are recognized by a partition."""
_EPOCH_MAX: Final = (1 << 15) - 1
_SEQUENCE_MASK: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class NumberAgain:
    """Store these spans in the state archiving again: they get new numbers."""

    spans: tuple[Span, ...]


Step = WriteDeadLetters | TakeProducerId | NumberAgain


class _Waiting(NamedTuple):
    number: int
    """Of the letter of the span's first offset."""
    span: Span
    is_durable: bool


class LetterBook:
    """See the module's docstring."""

    __slots__ = ("_expected", "_is_asking", "_is_refused", "_round", "_written", "numbers")

    def __init__(self, numbers: LetterNumbers) -> None:
        self.numbers = numbers
        """They are stored with the next delta."""
        self._expected: int | None = None
        """The number that the dead-letter partition expects; None: this leader does not know."""
        self._round: tuple[int, ...] = ()
        """The offsets of the letters that are being written, or are written and not archived."""
        self._written: list[tuple[int, int]] = []
        """Archiving records that need no letter any more."""
        self._is_asking = False
        self._is_refused = False

    def shift(self, span: Span) -> int:
        """Gives the letters of a span the next numbers, and returns its `letter_shift`."""
        shift = self.numbers.next - span.first
        self.numbers = self.numbers._replace(next=self.numbers.next + len(span))
        return shift

    # Reports

    def on_producer_id(self, producer_id: int) -> None:
        self._is_asking = False
        if self.numbers.producer_id < 0:
            begin = self.numbers.next
            self.numbers = LetterNumbers(begin, begin, 0, producer_id)
            self._expected = begin

    def on_written(self, event: DeadLettersWritten, spans: Iterable[Span]) -> None:
        numbers = [
            offset + span.letter_shift
            for span in spans
            if span.state is RecordState.ARCHIVING
            for offset in event.offsets
            if span.first <= offset <= span.last
        ]
        if numbers:
            self._expected = max(numbers) + 1
        self._is_refused = event.is_refused
        self._round = (*event.offsets, *event.missing)
        self._written += [(offset, offset) for offset in self._round]

    def skip(self, spans: Iterable[Span]) -> None:
        """The group has no dead letters any more: no archiving record needs one."""
        self._round = ()
        self._is_asking = False  # The shell has forgotten what it was asked for.
        self._written += [
            (span.first, span.last) for span in spans if span.state is RecordState.ARCHIVING
        ]

    # Decisions

    def to_archive(self, table: SpanTables) -> list[Span]:
        """Cuts and returns what needs no letter, unless a write of it is under way."""
        self._written = [
            (first, last)
            for first, last in dict.fromkeys(self._written)
            if any(span.state is RecordState.ARCHIVING for span in table.overlapping(first, last))
        ]
        return [
            span
            for first, last in self._written
            for span in table.cut(first, last)
            if span.state is RecordState.ARCHIVING and span.change is None
        ]

    def next_step(self, spans: Iterable[Span]) -> Step | None:
        """Returns what to do next; None if something is under way, or no letter is left."""
        archiving = [span for span in spans if span.state is RecordState.ARCHIVING]
        for span in archiving:
            if any(span.first <= offset <= span.last for offset in self._round):
                return None
        self._round = ()
        waiting = _waiting(spans)
        if not any(each.is_durable for each in waiting):
            return None
        if self.numbers.producer_id < 0:
            return self._take_producer_id()
        base = self.numbers.base
        old = tuple(each.span for each in waiting if each.number < base and each.is_durable)
        if old:
            return NumberAgain(old)
        current = [each for each in waiting if each.number >= base]
        if not current or not current[0].is_durable:
            # A letter with a lower number comes first, unless its delta fails.
            return None
        is_gap = self._expected is not None and current[0].number != self._expected
        if self._is_refused or is_gap:
            return self._begin_epoch(current)
        return self._begin_round(current)

    def _take_producer_id(self) -> TakeProducerId | None:
        if self._is_asking:
            return None
        self._is_asking = True
        return TakeProducerId()

    def _begin_epoch(self, current: list[_Waiting]) -> Step | None:
        _, begin, epoch, producer_id = self.numbers
        self._is_refused = False
        if epoch == _EPOCH_MAX:
            self.numbers = LetterNumbers(begin, begin)
            return self._take_producer_id()
        self.numbers = LetterNumbers(begin, begin, epoch + 1, producer_id)
        self._expected = begin
        return NumberAgain(tuple(each.span for each in current if each.is_durable))

    def _begin_round(self, waiting: list[_Waiting]) -> WriteDeadLetters:
        letters: list[DeadLetter] = []
        base, _, epoch, producer_id = self.numbers
        number = waiting[0].number
        for first, span, is_durable in waiting:
            if not is_durable or first != number:
                break
            last = min(span.last, span.first + LETTERS_AT_A_TIME - len(letters) - 1)
            for offset in range(span.first, last + 1):
                sequence = (number - base) & _SEQUENCE_MASK
                letters.append(DeadLetter(offset, sequence, span.delivery_count, span.reason))
                number += 1
            if len(letters) == LETTERS_AT_A_TIME:
                break
        self._round = tuple(letter.offset for letter in letters)
        return WriteDeadLetters(producer_id, epoch, tuple(letters))


def _waiting(spans: Iterable[Span]) -> list[_Waiting]:
    """Returns the spans whose letters are not written, also those whose delta is under way."""
    found: list[_Waiting] = []
    for span in spans:
        change = span.change
        if change is None:
            if span.state is RecordState.ARCHIVING:
                found.append(_Waiting(span.first + span.letter_shift, span, True))
        elif change.state is RecordState.ARCHIVING:
            found.append(_Waiting(span.first + change.letter_shift, span, False))
    return sorted(found, key=lambda each: each.number)
