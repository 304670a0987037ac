"""Idempotence: which number a batch carries, and what a broker's answer about it means. Pure.

The broker lets a producer id write to a partition only in sequence: epoch, then record numbers
from 0 without a gap. It recognises the last five batches of each producer, so a batch that is sent
again after a lost answer is kept once. From this follow our rules, per partition (a "lane"):

- A batch is numbered when it is first sent, and keeps its number over all retries.
- From the first unresolved batch on, at most five are numbered and sent, all on one connection, in
  order. Those that were acknowledged meanwhile count too: the broker has room for five, whatever
  we know of them, and one that it forgot while we still retry it would be taken for a gap.
- Only one is sent until the broker has confirmed the first. A broker that does not know a producer
  takes any sequence from it, so the second could be taken where the first was refused.
- When any of them fails, nothing is sent until all in flight have been answered; then they go out
  again in their order.
- OUT_OF_ORDER_SEQUENCE_NUMBER for a batch with an unresolved one before it only says that the
  earlier one was not written: both are retried.
- The same for the first unresolved batch says that the broker never saw something that came
  before: a batch that was refused for good, or whose time ran out. It also says that the batch
  itself, and all behind it, were never written, or the broker would have answered "duplicate". So
  they may safely be renumbered: from 0, under the next epoch, which also shuts out any late copy
  of the old numbering. A batch that timed out does not move the epoch: whether it was written is
  what the answer to the next batch tells us. Only if the broker has confirmed nothing yet it would
  tell us nothing, since any sequence may be taken: then the next batch begins the next epoch.
- UNKNOWN_PRODUCER_ID is answered by brokers that forgot the producer: the same treatment.
- DUPLICATE_SEQUENCE_NUMBER is success whose offset nobody remembers.
- A batch that was refused before it could have been written gives its numbers back if nothing was
  numbered after it. If an earlier attempt may have been written it must not: the next batch under
  those numbers could pass for its duplicate, and be lost.

The broker keeps producers per partition, so an epoch may move for one lane and not the others; no
round trip is needed, and lanes never wait for each other. Only when an epoch is used up (32767) a
new producer id must be asked for.

A transactional producer has its id and epoch from the coordinator, the same in all lanes and for
one transaction, and may not move it alone: there, what would renumber is refused, and with it the
transaction can only be aborted. The same goes for an epoch that is too old: the coordinator knows
whether it ended the transaction, for the time it took, or whether the producer is fenced.
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
    producer_id: int
    epoch: int


class Verdict(Enum):
    """What to do with a batch after an answer about it."""

    DONE = auto()
    RETRY = auto()
    RENUMBER = auto()
    """Retry it and all behind it under the next epoch."""
    SPLIT = auto()
    REFUSED = auto()
    FATAL = auto()
    """Not only this batch: the whole producer is finished."""


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
"""Errors that a broker finds before it writes. After any other the batch may be in the log: also
after NOT_LEADER_OR_FOLLOWER, which is what a leader answers that was deposed while its followers
had not taken the batch yet, and they may have it."""


def judge(
    code: int, *, numbered: bool, first: bool, count: int, transactional: bool = False
) -> Verdict:
    """What an error code means for a batch of `count` records; `first` of the unresolved ones."""
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
    """The numbers of one lane."""

    __slots__ = ("epoch", "is_confirmed", "is_lost", "next_sequence", "producer_id", "window")

    def __init__(self) -> None:
        self.window: list[Batch] = []
        """What was numbered, in order, from the first that is unresolved on."""
        self.is_confirmed = False
        """Whether the broker has written something under this id and epoch."""
        self.is_lost = False
        """Whether nobody will ever say what became of the first numbers under this epoch."""
        self.producer_id = NO_PRODUCER_ID
        self.epoch = -1
        self.next_sequence = 0

    def number(self, batch: Batch, identity: Identity) -> None:
        """Give a batch the next numbers."""
        if self.producer_id == NO_PRODUCER_ID:
            self.producer_id, self.epoch = identity
        elif self.is_lost and not self.window:
            self.begin_again(Identity(self.producer_id, self.epoch))
        batch.stamp(self.producer_id, self.epoch, self.next_sequence)
        self.next_sequence = (self.next_sequence + batch.count) & _SEQUENCE_MASK
        self.window.append(batch)

    def may_send(self, batch: Batch) -> bool:
        """Whether the broker will still know the first unresolved batch after this one."""
        if batch.is_numbered:
            return self.window.index(batch) < WINDOW_MAX
        return len(self.window) < WINDOW_MAX

    def on_written(self, batch: Batch) -> None:
        self.is_confirmed = True
        self._resolve(batch)

    def on_gone(self, batch: Batch) -> None:
        """It will not be sent again."""
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
        """Start at 0 under this; nothing of what was numbered before is unresolved."""
        self.producer_id, self.epoch = identity
        self.next_sequence = 0
        self.is_confirmed = self.is_lost = False
        self.window.clear()

    def begin_again(self, identity: Identity) -> bool:
        """Start at 0 under a new epoch; False when that takes a new producer id."""
        if identity.producer_id != self.producer_id:
            self.producer_id, self.epoch = identity
        elif self.epoch >= EPOCH_MAX:
            return False
        else:
            self.epoch += 1
        self.next_sequence = 0
        self.is_confirmed = self.is_lost = False
        for batch in self.window:
            # Its numbers are void; it gets others when it is sent again.
            batch.sequence = NO_SEQUENCE
            batch.uncertain = False
        self.window.clear()
        return True
