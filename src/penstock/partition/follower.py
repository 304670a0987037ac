"""What a follower makes of each answer to its fetches: one leader epoch of one follower.

A follower asks from the end of its log on, and names the epoch of its last record. It asks again
only when what it has counts by the topic's measure (on disk, with `durability=fsync`), since the
leader takes the offset asked for as what the follower has. An answer is one of these:

- The logs part below the end: the leader names an epoch both may know and where that ended. The
  follower cuts its log to there, or where it does not know that epoch to the end of the last one
  before it, and asks again. It takes as many rounds as there were quick changes of leaders
  (KIP-101, KIP-279). Never is anything cut for being above the high watermark: that is how records
  were lost before there were epochs.
- Batches: sound, with increasing offsets, of epochs that do not fall. Offsets may be missing. They
  are appended; the high watermark and the log start follow the leader's, as far as the own log
  goes. What comes after a batch that is not sound is fetched again.
- The offset is out of range: the leader's log starts further on, so the own one is of no use and
  begins anew there; or it ends earlier, and the own one is cut.
- The epoch is not the leader's: whichever of the two is behind hears of it by the metadata.

To cut below the own high watermark would throw away what was committed. Only where the topic lets
that happen (an unclean election, or copies that were lost before they were synced) is it done, and
said; elsewhere the follower halts, and keeps what may be the last copy.

An answer is taken only if it is to the one fetch under way; all else came late, and is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.partition.epochs import UNDEFINED_EPOCH, EpochEnd, LeaderEpochs
from penstock.records.batch import Buffer, CorruptBatch, iter_batches
from penstock.wire.errors import ErrorCode

BACKOFF_MS: Final = 1_000
"""replica.fetch.backoff.ms, where nobody says otherwise."""
SOON_MS: Final = 20
"""The first backoff where the leader is only late to hear of what the follower knows already, or
the connection was lost; it doubles up to the full one."""
_LATE_TO_HEAR: Final = frozenset(
    {
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class LogView(NamedTuple):
    """What the follower's log is like at the moment."""

    start_offset: int
    end_offset: int
    counted_end: int
    """How far it counts: the end, or with `durability=fsync` what is on disk."""
    epochs: LeaderEpochs


class BatchSpan(NamedTuple):
    """One batch of an answer; `size` is its length there."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    size: int


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One partition of a fetch response. `flaw` says what is wrong behind the last span."""

    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: EpochEnd | None = None
    spans: Sequence[BatchSpan] = ()
    flaw: str | None = None


@dataclass(frozen=True, slots=True)
class FollowerRules:
    may_lose_committed: bool = False
    """Whether a leader can be right that lacks what was committed: unclean.leader.election.enable,
    or durability=replicated, where enough lost power at once."""
    backoff_ms: int = BACKOFF_MS


# Effects: what the shell is to do, in this order


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask the leader. `attempt` tells fetches apart."""

    leader: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log: drop what lies at or above the offset."""

    offset: int
    loses_committed: bool


@dataclass(frozen=True, slots=True)
class StartAt:
    """Throw the whole log away and begin an empty one at the offset."""

    offset: int
    loses_committed: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Append the first `size` bytes of the answer's records, which are these spans."""

    spans: tuple[BatchSpan, ...]
    size: int


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    offset: int


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Delete below the offset, as the leader has."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskBounds:
    """Ask the leader where its log starts and ends (ListOffsets), for `on_bounds`."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class WaitForMetadata:
    """There is a newer leader than this; its epoch will come with the metadata."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Nothing was wrong that time cannot mend: call `next_fetch` again then."""

    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Halt:
    """The follower must not go on by itself; the reason is for people."""

    reason: str


Effect = (
    Truncate
    | StartAt
    | Append
    | AdvanceHighWatermark
    | AdvanceLogStart
    | AskBounds
    | WaitForMetadata
    | RetryAt
    | Halt
)


def read_spans(records: Buffer) -> tuple[tuple[BatchSpan, ...], str | None]:
    """The sound batches at the front of an answer's records, and what is wrong after them."""
    spans: list[BatchSpan] = []
    try:
        for _, header in iter_batches(records):
            spans.append(
                BatchSpan(header.base_offset, header.next_offset, header.leader_epoch, header.size)
            )
    except CorruptBatch as flaw:
        return tuple(spans), str(flaw)
    return tuple(spans), None


class Follower:
    """Follows one leader through one leader epoch; a new epoch is a new follower.

    The shell owns the log: it carries out the effects before it calls again.
    """

    __slots__ = (
        "_attempts",
        "_bounds_asked",
        "_late_answers",
        "_pending",
        "_retry_ms",
        "_rules",
        "epoch",
        "halted",
        "high_watermark",
        "leader",
        "superseded",
    )

    def __init__(
        self, leader: int, epoch: int, *, high_watermark: int, rules: FollowerRules
    ) -> None:
        self.leader = leader
        self.epoch = epoch
        self.high_watermark = high_watermark
        self.halted: str | None = None
        self.superseded = False
        """A newer leader epoch is known to exist."""
        self._rules = rules
        self._pending: Fetch | None = None
        self._bounds_asked = False
        self._attempts = 0
        self._late_answers = 0
        self._retry_ms = 0

    def configure(self, rules: FollowerRules) -> None:
        self._rules = rules

    def next_fetch(self, log: LogView, now_ms: int) -> Fetch | None:
        """The fetch to send now; None while one is under way, or there is a reason to wait."""
        if (
            self._pending is not None
            or self._bounds_asked
            or self.superseded
            or self.halted is not None
            or now_ms < self._retry_ms
            or log.counted_end < log.end_offset
        ):
            return None
        self._attempts += 1
        self._pending = Fetch(
            self.leader,
            self.epoch,
            log.end_offset,
            last_epoch(log),
            log.start_offset,
            self._attempts,
        )
        return self._pending

    def on_lost(self, fetch: Fetch, now_ms: int) -> tuple[Effect, ...]:
        """No answer will come: the connection is gone."""
        if not self._is_due(fetch):
            return ()
        return self._retry_soon(now_ms, f"broker {self.leader} did not answer")

    def on_answer(
        self, fetch: Fetch, answer: FetchAnswer, log: LogView, now_ms: int
    ) -> tuple[Effect, ...]:
        if not self._is_due(fetch):
            return ()
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._bounds_asked = True
            return (AskBounds(self.leader, self.epoch),)
        if answer.error == ErrorCode.FENCED_LEADER_EPOCH:
            self.superseded = True
            return (WaitForMetadata(self.epoch),)
        if answer.error in _LATE_TO_HEAR:
            return self._retry_soon(now_ms, f"broker {self.leader} answered {answer.error.name}")
        if answer.error != ErrorCode.NONE:
            return self._back_off(now_ms, f"broker {self.leader} answered {answer.error.name}")
        self._late_answers = 0
        if answer.diverging is not None:
            return self._on_diverging(answer.diverging, answer.log_start_offset, log, now_ms)
        return self._on_records(answer, log, now_ms)

    def on_bounds(
        self, start_offset: int, end_offset: int, log: LogView, now_ms: int
    ) -> tuple[Effect, ...]:
        """Where the leader's log starts and ends, after a fetch was out of its range."""
        self._bounds_asked = False
        if end_offset < log.end_offset:
            return self._cut_to(end_offset, start_offset, log)
        if start_offset > log.end_offset:
            return self._begin_at(start_offset, log)
        # By now it has grown, or been cut, to where the own log ends.
        return self._back_off(now_ms, "the leader's log has changed meanwhile")

    def on_bounds_lost(self, now_ms: int) -> tuple[Effect, ...]:
        """Where the leader's log starts and ends could not be found out."""
        self._bounds_asked = False
        return self._back_off(now_ms, f"broker {self.leader} did not say where its log starts")

    def on_failed(self, reason: str, log: LogView, now_ms: int) -> tuple[Effect, ...]:
        """The effects of an answer could not all be carried out; the log is like this now."""
        self.high_watermark = min(self.high_watermark, log.end_offset)
        return self._back_off(now_ms, reason)

    def on_cut(self, log: LogView) -> None:
        """The shell has thrown a damaged part of the log away: a fetch under way is of no use."""
        self._pending = None
        self.high_watermark = min(self.high_watermark, log.end_offset)

    @property
    def has_asked(self) -> bool:
        """Whether the leader can know of a fetch in this epoch."""
        return self._attempts > 0

    def _is_due(self, fetch: Fetch) -> bool:
        if self._pending is None or self._pending.attempt != fetch.attempt:
            return False
        if fetch.leader_epoch != self.epoch:
            return False
        self._pending = None
        return True

    def _retry_soon(self, now_ms: int, reason: str) -> tuple[Effect, ...]:
        soon_ms = SOON_MS << min(self._late_answers, 10)
        self._late_answers += 1
        self._retry_ms = now_ms + min(soon_ms, self._rules.backoff_ms)
        return (RetryAt(self._retry_ms, reason),)

    def _back_off(self, now_ms: int, reason: str) -> tuple[Effect, ...]:
        self._retry_ms = now_ms + self._rules.backoff_ms
        return (RetryAt(self._retry_ms, reason),)

    # Cutting

    def _on_diverging(
        self, found: EpochEnd, leader_start: int, log: LogView, now_ms: int
    ) -> tuple[Effect, ...]:
        own = log.epochs.end_offset_for(found.epoch, log.end_offset)
        if own.epoch == UNDEFINED_EPOCH:
            offset = found.end_offset
        elif own.epoch == found.epoch:
            offset = min(own.end_offset, found.end_offset)
        else:
            # The epoch is not known here. What came before it may be shared: ask from there.
            offset = own.end_offset
        if offset >= log.end_offset:
            return self._back_off(
                now_ms,
                f"the leader has epoch {found.epoch} end at {found.end_offset}, which is no reason "
                f"to cut a log that ends at {log.end_offset}",
            )
        return self._cut_to(offset, leader_start, log)

    def _cut_to(self, offset: int, leader_start: int, log: LogView) -> tuple[Effect, ...]:
        if offset < log.start_offset:
            return self._begin_at(max(offset, leader_start), log)
        if (halt := self._guard(offset)) is not None:
            return (halt,)
        loses = offset < self.high_watermark
        self.high_watermark = min(self.high_watermark, offset)
        return (Truncate(offset, loses),)

    def _begin_at(self, offset: int, log: LogView) -> tuple[Effect, ...]:
        # What the leader has deleted below its start is no loss; what it lacks above is.
        if offset < log.end_offset and (halt := self._guard(offset)) is not None:
            return (halt,)
        loses = offset < self.high_watermark
        self.high_watermark = offset
        return (StartAt(offset, loses),)

    def _guard(self, offset: int) -> Halt | None:
        if offset >= self.high_watermark or self._rules.may_lose_committed:
            return None
        self.halted = (
            f"leader {self.leader} of epoch {self.epoch} lacks the records from {offset} on, which "
            f"are committed up to {self.high_watermark}: they are kept here. Find the cause, then "
            "set unclean.leader.election.enable on the topic to drop them, or make this broker "
            "the leader to bring them back"
        )
        return Halt(self.halted)

    # Appending

    def _on_records(self, answer: FetchAnswer, log: LogView, now_ms: int) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        end, epoch, size, flaw = log.end_offset, last_epoch(log), 0, answer.flaw
        taken: list[BatchSpan] = []
        if answer.spans and end == log.start_offset and answer.spans[0].base_offset < end:
            # The leader's log starts within a batch, which comes whole.
            end = answer.spans[0].base_offset
            effects.append(StartAt(end, loses_committed=False))
        for span in answer.spans:
            wrong = self._check(span, end, epoch)
            if wrong is not None:
                flaw = wrong
                break
            taken.append(span)
            end, epoch, size = span.next_offset, span.leader_epoch, size + span.size
        if taken:
            effects.append(Append(tuple(taken), size))
        elif effects:
            end = log.end_offset
            effects.clear()
        committed = min(answer.high_watermark, end)
        if committed > self.high_watermark:
            self.high_watermark = committed
            effects.append(AdvanceHighWatermark(committed))
        start = min(answer.log_start_offset, self.high_watermark)
        if start > log.start_offset or (effects and isinstance(effects[0], StartAt)):
            effects.append(AdvanceLogStart(max(start, log.start_offset)))
        if flaw is not None:
            effects += self._back_off(now_ms, f"broker {self.leader} sent a bad batch: {flaw}")
        return tuple(effects)

    def _check(self, span: BatchSpan, end: int, epoch: int) -> str | None:
        # A gap is not an error: compaction removes records, and what it removed stays missing
        # when the topic's cleanup.policy changes to delete.
        if span.base_offset < end:
            return f"offset {span.base_offset} came where {end} was due"
        if not epoch <= span.leader_epoch <= self.epoch:
            return (
                f"epoch {span.leader_epoch} at offset {span.base_offset} does not follow {epoch} "
                f"under a leader of epoch {self.epoch}"
            )
        return None


def last_epoch(log: LogView) -> int:
    """The epoch of the last record; undefined without one.

    Not the last that is noted: a leader notes its epoch before it writes anything in it.
    """
    if log.end_offset == log.start_offset:
        return UNDEFINED_EPOCH
    return log.epochs.epoch_at(log.end_offset - 1)
