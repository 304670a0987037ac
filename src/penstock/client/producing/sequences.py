"""Idempotence: assigns sequence numbers to batches, and interprets the broker's answers. Pure.

The broker lets a producer id write to a partition only in sequence: epoch, then record numbers from
0 without a gap. It remembers the last five batches of each producer, so a batch that is sent again
after a lost answer is stored once. This leads to the following rules for each partition (a "lane"):

- A batch is numbered when it is first sent, and keeps its number in all retries.
- Counted from the first unresolved batch, at most five are numbered and sent, all on one
  connection, in order. Batches that were acknowledged in the meantime count too: the broker
  remembers five, whatever the client knows of them, and one that it forgot while it is still
  retried would look like a gap.
- Only one batch is sent until the broker has confirmed the first. A broker that does not know a
  producer accepts any sequence from it, so it could accept the second after refusing the first.
- When one of them fails, nothing is sent until all in flight have been answered; then they are sent
  again in order.
- OUT_OF_ORDER_SEQUENCE_NUMBER for a batch with an unresolved one before it only means that the
  earlier one was not written: both are retried.
- The same error for the first unresolved batch means that the broker never saw an earlier one: a
  batch that was refused for good, or that timed out. It also means that the batch itself, and all
  after it, were never written, or the broker would have answered "duplicate". So they can safely be
  renumbered from 0 under the next epoch, which also fences any late copy with the old numbers. A
  batch that timed out does not change the epoch: the answer to the next batch shows whether it was
  written. Only if the broker has confirmed nothing yet would that answer show nothing, because any
  sequence may be accepted. Then the next batch begins the next epoch.
- UNKNOWN_PRODUCER_ID means that the broker forgot the producer. It is handled the same way.
- DUPLICATE_SEQUENCE_NUMBER is success, but the offset is no longer known.
- A batch that was refused before it could have been written returns its numbers if no later batch
  was numbered. If an earlier attempt may have been written it must not: the next batch with those
  numbers could be taken for its duplicate, and be lost.

The broker keeps producer state per partition, so one lane's epoch may change independently of the
others. This needs no round trip, and lanes never wait for each other. Only when the epochs are used
up (32767) must a new producer id be requested.

A transactional producer gets its id and epoch from the coordinator, the same for all lanes and for
one transaction, and must not change it by itself. There, what would cause renumbering is refused
instead, and the transaction can then only be aborted. The same applies to an epoch that is too old:
only the coordinator knows whether it ended the transaction because of its timeout, or whether the
producer was fenced.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.client.producing.batches import Batch
from penstock.records.batch import NO_PRODUCER_ID, NO_SEQUENCE
from penstock.wire.errors import ErrorCode

EPOCH_MAX: Final = 32767
WINDOW_MAX: Final = 5
_SEQUENCE_MASK: Final = 0x7FFFFFFF


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class Verdict(Enum):
    """What to do with a batch after an answer."""

    DONE = auto()
    RETRY = auto()
    RENUMBER = auto()
    """Retry it and all batches after it under the next epoch."""
    SPLIT = auto()
    REFUSED = auto()
    FATAL = auto()
    """Not only the batch has failed: the producer cannot be used any more."""


_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_OUT_OF_SEQUENCE: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)
_FENCED: Final = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
NOT_WRITTEN: Final = frozenset(
    {
        *_TOO_LARGE,
        *_OUT_OF_SEQUENCE,
        *_FENCED,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Errors that a broker detects before it writes. After any other error the batch may be in the log.
That includes NOT_LEADER_OR_FOLLOWER: a leader that was deposed before its followers had replicated
the batch answers with it, and they may have the batch nevertheless."""


def judge(
    code: int, *, numbered: bool, first: bool, count: int, transactional: bool = False
) -> Verdict:
    """Interprets the error code for a batch of `count` records.

    `first` says whether it is the first unresolved batch of its lane.
    """
    if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return Verdict.DONE
    if code in _TOO_LARGE:
        return Verdict.SPLIT if count > 1 else Verdict.REFUSED
    if numbered and code in _OUT_OF_SEQUENCE:
        again = Verdict.REFUSED if transactional else Verdict.RENUMBER
        return again if first else Verdict.RETRY
    if transactional and code == ErrorCode.INVALID_PRODUCER_EPOCH:
        return Verdict.REFUSED
    if numbered and code in _FENCED:
        return Verdict.FATAL
    return Verdict.RETRY if _retriable(code) else Verdict.REFUSED


def _retriable(code: int) -> bool:
    try:
        return ErrorCode(code).retriable
    except ValueError:
        return False


class Numbering:
    """The sequence numbers of one lane."""

    __slots__ = ("epoch", "is_confirmed", "is_lost", "next_sequence", "producer_id", "window")

    def __init__(self) -> None:
        self.window: list[Batch] = []
        """The numbered batches in order, starting with the first unresolved one."""
        self.is_confirmed = False
        """Whether the broker has written something under this id and epoch."""
        self.is_lost = False
        """Whether the outcome of the first numbers under this epoch will never be known."""
        self.producer_id = NO_PRODUCER_ID
        self.epoch = -1
        self.next_sequence = 0

    def number(self, batch: Batch, identity: Identity) -> None:
        """Assigns the next numbers to a batch."""
        if self.producer_id == NO_PRODUCER_ID:
            self.producer_id, self.epoch = identity
        elif self.is_lost and not self.window:
            self.begin_again(Identity(self.producer_id, self.epoch))
        batch.stamp(self.producer_id, self.epoch, self.next_sequence)
        self.next_sequence = (self.next_sequence + batch.count) & _SEQUENCE_MASK
        self.window.append(batch)

    def may_send(self, batch: Batch) -> bool:
        """Returns whether the broker will still remember the first unresolved batch after this
        one."""
        if batch.is_numbered:
            return self.window.index(batch) < WINDOW_MAX
        return len(self.window) < WINDOW_MAX

    def on_written(self, batch: Batch) -> None:
        self.is_confirmed = True
        self._resolve(batch)

    def on_gone(self, batch: Batch) -> None:
        """Handles a batch that will not be sent again."""
        if self.window[-1] is batch and not batch.uncertain:
            self.next_sequence = batch.sequence
            self.window.pop()
        elif batch.uncertain and not (self.is_confirmed or batch.is_transactional):
            self.is_lost = True
        self._resolve(batch)

    def on_split(self, batch: Batch, parts: Sequence[Batch]) -> None:
        at = self.window.index(batch)
        self.window[at : at + 1] = parts

    def _resolve(self, batch: Batch) -> None:
        batch.is_resolved = True
        while self.window and self.window[0].is_resolved:
            self.window.pop(0)

    def adopt(self, identity: Identity) -> None:
        """Starts at 0 under this identity. No batch numbered before is unresolved."""
        self.producer_id, self.epoch = identity
        self.next_sequence = 0
        self.is_confirmed = self.is_lost = False
        self.window.clear()

    def begin_again(self, identity: Identity) -> bool:
        """Starts at 0 under a new epoch. Returns False if that needs a new producer id."""
        if identity.producer_id != self.producer_id:
            self.producer_id, self.epoch = identity
        elif self.epoch >= EPOCH_MAX:
            return False
        else:
            self.epoch += 1
        self.next_sequence = 0
        self.is_confirmed = self.is_lost = False
        for batch in self.window:
            # Its numbers are void. It gets new ones when it is sent again.
            batch.sequence = NO_SEQUENCE
            batch.uncertain = False
        self.window.clear()
        return True
