"""Decides how a follower handles each fetch response: one follower in one leader epoch.

A follower fetches from the end of its log and sends the epoch of its last record. It fetches again
only once what it has counts under the topic's durability (with `durability=fsync`: synced), because
the leader takes the fetch offset as what the follower has. A response is one of these:

- The logs diverge below the follower's end: the leader names an epoch that both may know, and where
  that epoch ended. The follower truncates its log to that offset. If it does not know the epoch, it
  truncates to the end of the last epoch before it. Then it fetches again. Several rounds may be
  needed, one for each of several quick leader changes (KIP-101, KIP-279). Nothing is ever truncated
  merely for being above the high watermark: that is how records were lost before leader epochs.
- Batches: valid, with increasing offsets, and with epochs that do not decrease. Gaps between
  offsets are allowed. The follower appends them; its high watermark and log start offset follow the
  leader's, up to its own log end. Everything after an invalid batch is fetched again.
- The offset is out of range: if the leader's log starts after the follower's end, the follower
  discards its log and starts an empty one there; if the leader's log ends earlier, the follower
  truncates its own.
- The epoch is not the leader's: whichever of the two is behind learns the new one from the
  metadata.

Truncating below the follower's own high watermark would discard committed records. It is done, and
reported, only where the topic allows that loss (an unclean election, or copies that were lost
before they were synced). Otherwise the follower halts, and keeps what may be the last copy.

A response is used only if it answers the one fetch in flight; any other is late, and is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.partition.epochs import UNDEFINED_EPOCH, EpochEnd, LeaderEpochs
from penstock.records.batch import Buffer, CorruptBatch, iter_batches
from penstock.wire.errors import ErrorCode

BACKOFF_MS: Final = 1_000
"""The default of replica.fetch.backoff.ms."""
SOON_MS: Final = 20
"""The first backoff where the leader has not yet received metadata that the follower has, or the
connection was lost. It doubles up to the full backoff."""
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
    """A snapshot of the follower's log."""

    start_offset: int
    end_offset: int
    counted_end: int
    """How far the log counts: its end, or with `durability=fsync` the end of what is synced."""
    epochs: LeaderEpochs


class BatchSpan(NamedTuple):
    """One batch of a response; `size` is its length there in bytes."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    size: int


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One partition of a fetch response. `flaw` describes what is wrong after the last span."""

    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: EpochEnd | None = None
    spans: Sequence[BatchSpan] = ()
    flaw: str | None = None


@dataclass(frozen=True, slots=True)
class FollowerRules:
    may_lose_committed: bool = False
    """Whether a leader that lacks committed records can be legitimate: with
    unclean.leader.election.enable, or with durability=replicated after enough replicas lost power
    at once."""
    backoff_ms: int = BACKOFF_MS


# Effects: the shell carries them out in the order in which they are returned


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send a fetch to the leader. `attempt` numbers the fetches."""

    leader: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log: drop everything at or above the offset."""

    offset: int
    loses_committed: bool


@dataclass(frozen=True, slots=True)
class StartAt:
    """Discard the whole log and start an empty one at the offset."""

    offset: int
    loses_committed: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Append the first `size` bytes of the response's records, which are these spans."""

    spans: tuple[BatchSpan, ...]
    size: int


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    offset: int


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Delete the records below the offset, as the leader did."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskBounds:
    """Ask the leader where its log starts and ends (ListOffsets), for `on_bounds`."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class WaitForMetadata:
    """Wait: there is a newer leader epoch than this one, and the metadata will bring it."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class RetryAt:
    """A temporary failure: call `next_fetch` again at this time."""

    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Halt:
    """The follower must not continue on its own; the reason is meant for operators."""

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
    """Returns the valid batches at the front of a response's records, and the flaw after them."""
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
    """Follows one leader through one leader epoch; a new epoch gets a new follower.

    The shell owns the log. It must carry out the returned effects before it calls again.
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

    @property
    def is_released(self) -> bool:
        """Whether it has halted, and the topic now allows what it halted for: start a new one."""
        return self.halted is not None and self._rules.may_lose_committed

    def next_fetch(self, log: LogView, now_ms: int) -> Fetch | None:
        """Returns the fetch to send now; None while one is in flight or it must wait."""
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
        """Handles a lost connection: the fetch will not be answered."""
        if not self._is_due(fetch):
            return ()
        return self._retry_soon(now_ms, f"broker {self.leader} did not answer")

    def on_answer(
        self, fetch: Fetch, answer: FetchAnswer, log: LogView, now_ms: int
    ) -> tuple[Effect, ...]:
        """Returns the effects of a fetch response."""
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
        """Handles the leader's log start and end, requested after OFFSET_OUT_OF_RANGE."""
        self._bounds_asked = False
        if end_offset < log.end_offset:
            return self._cut_to(end_offset, start_offset, log)
        if start_offset > log.end_offset:
            return self._begin_at(start_offset, log)
        # The leader's log has since grown, or was truncated, to where this log ends.
        return self._back_off(now_ms, "the leader's log has changed in the meantime")

    def on_bounds_lost(self, now_ms: int) -> tuple[Effect, ...]:
        """Handles the failure of the request for the leader's log start and end."""
        self._bounds_asked = False
        return self._back_off(
            now_ms, f"broker {self.leader} did not report where its log starts and ends"
        )

    def on_failed(self, reason: str, log: LogView, now_ms: int) -> tuple[Effect, ...]:
        """Handles effects that could not all be carried out; `log` is the log's state now."""
        self.high_watermark = min(self.high_watermark, log.end_offset)
        return self._back_off(now_ms, reason)

    def on_restarted(self, start_offset: int) -> None:
        """Notes that the log was restarted: everything before `start_offset` was committed."""
        self.high_watermark = max(self.high_watermark, start_offset)

    def on_cut(self, log: LogView) -> None:
        """Drops the fetch in flight, because the shell discarded a damaged part of the log."""
        self._pending = None
        self.high_watermark = min(self.high_watermark, log.end_offset)

    @property
    def has_asked(self) -> bool:
        """Whether the leader may have received a fetch in this epoch."""
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

    # Truncation

    def _on_diverging(
        self, found: EpochEnd, leader_start: int, log: LogView, now_ms: int
    ) -> tuple[Effect, ...]:
        """Truncates to the end of the last epoch that both logs may share."""
        own = log.epochs.end_offset_for(found.epoch, log.end_offset)
        if own.epoch == UNDEFINED_EPOCH:
            offset = found.end_offset
        elif own.epoch == found.epoch:
            offset = min(own.end_offset, found.end_offset)
        else:
            # This log does not know the epoch. What came before it may be shared: fetch from there.
            offset = own.end_offset
        if offset >= log.end_offset:
            return self._back_off(
                now_ms,
                f"the leader reports that leader epoch {found.epoch} ends at offset "
                f"{found.end_offset}, but this log ends at offset {log.end_offset}: there is "
                "nothing to truncate",
            )
        return self._cut_to(offset, leader_start, log)

    def _cut_to(self, offset: int, leader_start: int, log: LogView) -> tuple[Effect, ...]:
        if offset < max(log.start_offset, leader_start):
            # The logs have nothing in common that the leader still has.
            return self._begin_at(max(offset, leader_start), log)
        if (halt := self._guard(offset)) is not None:
            return (halt,)
        loses = offset < self.high_watermark
        self.high_watermark = min(self.high_watermark, offset)
        return (Truncate(offset, loses),)

    def _begin_at(self, offset: int, log: LogView) -> tuple[Effect, ...]:
        # Records that the leader deleted below its log start are no loss; others that it lacks are.
        if offset < log.end_offset and (halt := self._guard(offset)) is not None:
            return (halt,)
        loses = offset < self.high_watermark
        # It rises to the offset in `on_restarted`. What the log still has may not be committed.
        self.high_watermark = min(self.high_watermark, offset)
        return (StartAt(offset, loses),)

    def _guard(self, offset: int) -> Halt | None:
        """Halts the follower if truncating to the offset would lose committed records."""
        if offset >= self.high_watermark or self._rules.may_lose_committed:
            return None
        self.halted = (
            f"leader {self.leader} (leader epoch {self.epoch}) does not have the records from "
            f"offset {offset} on, although they are committed up to offset "
            f"{self.high_watermark}. This replica keeps its records. "
            "Find the cause; then set unclean.leader.election.enable on the topic to discard "
            "the records, or make this broker the leader to restore them"
        )
        return Halt(self.halted)

    # Appending

    def _on_records(self, answer: FetchAnswer, log: LogView, now_ms: int) -> tuple[Effect, ...]:
        """Accepts the batches up to the first invalid one, and follows the leader's offsets."""
        effects: list[Effect] = []
        end, epoch, size, flaw = log.end_offset, last_epoch(log), 0, answer.flaw
        taken: list[BatchSpan] = []
        if answer.spans and end == log.start_offset and answer.spans[0].base_offset < end:
            # The leader's log starts in the middle of a batch, and the batch is sent whole.
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
            return f"its base offset {span.base_offset} is below the log end offset {end}"
        if not epoch <= span.leader_epoch <= self.epoch:
            return (
                f"its leader epoch {span.leader_epoch}, at offset {span.base_offset}, is not "
                f"between {epoch} (the last one in this log) and {self.epoch} (the leader's own)"
            )
        return None


def last_epoch(log: LogView) -> int:
    """Returns the epoch of the last record, or UNDEFINED_EPOCH if the log is empty.

    That may not be the last entry in `epochs`: a leader notes its epoch before it writes in it.
    """
    if log.end_offset == log.start_offset:
        return UNDEFINED_EPOCH
    return log.epochs.epoch_at(log.end_offset - 1)
