"""The words of a transcript: what machines send and do, in plain English."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from penstock.metadata.model import NO_LEADER, Partition
from penstock.partition.epochs import UNDEFINED_EPOCH
from penstock.partition.follower import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    Append,
    AskBounds,
    BatchSpan,
    Effect,
    Fetch,
    FetchAnswer,
    Follower,
    Halt,
    LogView,
    RetryAt,
    StartAt,
    Truncate,
    WaitForMetadata,
)
from penstock.partition.leadership import AlterIsr
from penstock.wire.errors import ErrorCode

from .transcript_log import Broker


def words_of(each: Iterable[object]) -> str:
    return " ".join(map(str, each)) or "none"


def batches(spans: Sequence[BatchSpan]) -> str:
    """The offsets of each batch, grouped by epoch: `0-2 3-4 of epoch 5, 5-5 of epoch 6`."""
    return ", ".join(
        " ".join(f"{each.base_offset}-{each.next_offset - 1}" for each in group)
        + f" of epoch {epoch}"
        for epoch, group in groupby(spans, key=lambda span: span.leader_epoch)
    )


def spans_of(text: str) -> tuple[BatchSpan, ...]:
    """Reads `0-2 3-4 of epoch 5, 5-5 of epoch 6`, the notation of `batches`."""
    spans = []
    for part in text.split(", "):
        offsets, _, epoch = part.partition(" of epoch ")
        for each in offsets.split():
            first, last = map(int, each.split("-"))
            spans.append(BatchSpan(first, last + 1, int(epoch), last + 1 - first))
    return tuple(spans)


def metadata(partition: Partition) -> str:
    leader = "no leader" if partition.leader == NO_LEADER else f"leader {partition.leader}"
    words = [leader, f"leader epoch {partition.leader_epoch}", f"ISR {words_of(partition.isr)}"]
    if partition.eligible_leaders:
        words.append(f"eligible leaders {words_of(partition.eligible_leaders)}")
    if partition.is_moving:
        words.append(f"adding {words_of(partition.adding_replicas)}")
        words.append(f"removing {words_of(partition.removing_replicas)}")
    words.append(f"partition epoch {partition.partition_epoch}")
    return "metadata: " + ", ".join(words)


def proposal(proposed: AlterIsr) -> str:
    members = words_of(each for each, _ in proposed.isr)
    epochs = words_of("unknown" if epoch < 0 else epoch for _, epoch in proposed.isr)
    about = f"broker epochs {epochs}, partition epoch {proposed.partition_epoch}"
    return f"propose ISR {members} ({about})"


def fetch(asked: Fetch) -> str:
    last = asked.last_fetched_epoch
    known = "no records yet" if last == UNDEFINED_EPOCH else f"last record of epoch {last}"
    return f"fetch from {asked.offset}, {known}, leader epoch {asked.leader_epoch}"


def why_no_fetch(broker: Broker, follower: Follower, view: LogView, now_ms: int) -> str:
    if follower.halted is not None:
        return "it has halted"
    if follower.superseded:
        return "it waits for metadata"
    if broker.sent is not None:
        return "it waits for an answer"
    if broker.retry_ms > now_ms:
        return f"it backs off for another {broker.retry_ms - now_ms} ms"
    assert view.counted_end < view.end_offset
    return f"its log is synced only to {view.counted_end}"


def answer(given: FetchAnswer) -> str:
    if given.error != ErrorCode.NONE:
        return given.error.name
    if given.diverging is not None:
        return f"logs diverge: epoch {given.diverging.epoch} ends at {given.diverging.end_offset}"
    records = f"records {batches(given.spans)}" if given.spans else "no records"
    words = [records, f"high watermark {given.high_watermark}"]
    if given.log_start_offset:
        words.append(f"log start {given.log_start_offset}")
    if given.flaw is not None:
        words.append("then a batch with a bad checksum")
    return ", ".join(words)


def effect(done: Effect, now_ms: int) -> str:
    match done:
        case Truncate(offset, loses):
            return f"truncates its log to {offset}" + _loss(loses)
        case StartAt(offset, loses):
            return f"discards its log and starts an empty one at {offset}" + _loss(loses)
        case Append(spans):
            return f"appends {batches(spans)}"
        case AdvanceHighWatermark(offset):
            return f"high watermark {offset}"
        case AdvanceLogStart(offset):
            return f"log start {offset}"
        case AskBounds():
            return "asks where the leader's log starts and ends"
        case WaitForMetadata(epoch):
            return f"waits for metadata of a leader epoch after {epoch}"
        case RetryAt(at_ms, reason):
            return f"retries in {at_ms - now_ms} ms: {reason}"
        case Halt(reason):
            return f"halts: {reason}"


def _loss(loses_committed: bool) -> str:
    return ", which loses committed records" if loses_committed else ""


def log(broker: Broker) -> str:
    held = broker.log
    role = broker.leadership or broker.follower
    high_watermark = broker.high_watermark if role is None else role.high_watermark
    words = [batches(held.batches) or "no records"]
    if held.start:
        words.append(f"starts at {held.start}")
    words.append(f"ends at {held.end}")
    if held.synced < held.end:
        words.append(f"synced to {held.synced}")
    words.append(f"high watermark {high_watermark}")
    return f"{broker.id}: " + ", ".join(words)
