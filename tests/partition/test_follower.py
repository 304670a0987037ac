"""What a follower does with the answers to its fetches."""

from __future__ import annotations

import pytest

from penstock.partition.epochs import EpochEnd, EpochStart, LeaderEpochs
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
    FollowerRules,
    Halt,
    LogView,
    RetryAt,
    StartAt,
    Truncate,
    WaitForMetadata,
    last_epoch,
    read_spans,
)
from penstock.records.batch import BatchHeader, seal, write_header
from penstock.wire.errors import ErrorCode

BACKOFF_MS = 100


def log(end: int, *epochs: tuple[int, int], start: int = 0, counted: int | None = None) -> LogView:
    noted = LeaderEpochs(EpochStart(*each) for each in epochs or ((1, 0),))
    return LogView(start, end, end if counted is None else counted, noted)


def follower(high_watermark: int = 0, *, loses: bool = False) -> Follower:
    rules = FollowerRules(loses, BACKOFF_MS)
    return Follower(3, 7, high_watermark=high_watermark, rules=rules)


def answer(
    *spans: BatchSpan, high_watermark: int = 0, start: int = 0, flaw: str | None = None
) -> FetchAnswer:
    return FetchAnswer(ErrorCode.NONE, high_watermark, start, None, spans, flaw)


def told(machine: Follower, reply: FetchAnswer, view: LogView) -> tuple[Effect, ...]:
    """One round: fetch, answer, effects."""
    fetch = machine.next_fetch(view, 0)
    assert fetch is not None
    return machine.on_answer(fetch, reply, view, 0)


def diverging(epoch: int, end: int, start: int = 0) -> FetchAnswer:
    return FetchAnswer(ErrorCode.NONE, 0, start, EpochEnd(epoch, end))


def test_it_asks_from_its_end_with_its_last_epoch() -> None:
    """The epoch of the last record, not of one that was only noted; one fetch at a time."""
    machine = follower()
    view = log(10, (1, 0), (4, 10), start=2)
    assert machine.next_fetch(view, 0) == Fetch(3, 7, 10, 1, 2, 1)
    assert machine.next_fetch(view, 0) is None
    assert last_epoch(log(0)) == -1
    assert last_epoch(log(5, (1, 0), start=5)) == -1


def test_it_asks_only_when_what_it_has_counts() -> None:
    """The leader takes the offset for what is safe here."""
    machine = follower()
    assert machine.next_fetch(log(10, counted=9), 0) is None
    assert machine.next_fetch(log(10), 0) is not None


def test_batches_are_appended_and_the_leader_followed() -> None:
    """High watermark and log start, as far as the own log goes."""
    machine = follower()
    spans = (BatchSpan(10, 13, 1, 50), BatchSpan(13, 14, 7, 60))
    effects = told(machine, answer(*spans, high_watermark=20, start=4), log(10))
    assert effects == (Append(spans, 110), AdvanceHighWatermark(14), AdvanceLogStart(4))
    assert machine.high_watermark == 14
    view = log(14, (1, 0), (7, 13), start=4)
    assert told(machine, answer(high_watermark=12, start=4), view) == ()
    assert machine.high_watermark == 14


@pytest.mark.parametrize(
    "bad",
    [
        BatchSpan(10, 12, 1, 9),
        BatchSpan(11, 12, 0, 9),
        BatchSpan(11, 12, 8, 9),
    ],
)
def test_what_does_not_follow_on_is_refused(bad: BatchSpan) -> None:
    """An overlap, an epoch that falls or is not out yet. What came before is kept."""
    machine = follower()
    good = BatchSpan(10, 11, 1, 9)
    appended, retry = told(machine, answer(good, bad), log(10))
    assert appended == Append((good,), 9)
    assert isinstance(retry, RetryAt)
    assert machine.next_fetch(log(11), BACKOFF_MS - 1) is None
    assert machine.next_fetch(log(11), BACKOFF_MS) is not None


def test_compaction_leaves_gaps() -> None:
    """Offsets may be missing from a leader's log, and are then missing here: before and between
    batches, and whatever the topic's cleanup.policy is by now."""
    spans = BatchSpan(15, 20, 1, 9), BatchSpan(40, 41, 1, 9)
    assert told(follower(), answer(*spans), log(10)) == (Append(spans, 18),)


def test_a_corrupt_batch_is_fetched_again() -> None:
    """Sound ones before it are kept."""
    first, second = bytearray(61), bytearray(61)
    for batch, offset in ((first, 5), (second, 6)):
        write_header(batch, 0, BatchHeader(offset, 49, 1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1))
        seal(batch, 0, 61)
    second[60] ^= 1
    spans, flaw = read_spans(bytes(first + second))
    assert spans == (BatchSpan(5, 6, 1, 61),)
    assert flaw is not None
    appended, retry = told(follower(), answer(*spans, flaw=flaw), log(5))
    assert appended == Append(spans, 61)
    assert isinstance(retry, RetryAt)
    assert read_spans(bytes(first)) == (spans, None)


@pytest.mark.parametrize(
    ("epoch", "end", "cut"),
    [
        (2, 12, 12),  # both know it, the leader's ended first
        (2, 18, 15),  # both know it, it ended here first
        (3, 14, 15),  # not known here: what came before it may be shared
        (1, 8, 5),
        (0, 3, 0),
    ],
)
def test_a_diverging_log_is_cut_exactly(epoch: int, end: int, cut: int) -> None:
    """To the last offset that may be shared, however far below the end."""
    view = log(20, (1, 0), (2, 5), (5, 15))
    assert told(follower(), diverging(epoch, end), view) == (Truncate(cut, False),)


def test_cutting_takes_as_many_rounds_as_needed() -> None:
    """After quick changes of leaders each log has epochs the other has not."""
    machine = follower()
    view = log(20, (1, 0), (3, 8), (5, 15))
    assert told(machine, diverging(4, 18), view) == (Truncate(15, False),)
    view = log(15, (1, 0), (3, 8))
    assert told(machine, diverging(2, 12), view) == (Truncate(8, False),)
    fetch = machine.next_fetch(log(8, (1, 0)), 0)
    assert fetch is not None
    assert (fetch.offset, fetch.last_fetched_epoch) == (8, 1)


def test_a_cut_that_cuts_nothing_is_not_repeated_for_ever() -> None:
    """A leader that says such a thing is asked again later."""
    (effect,) = told(follower(), diverging(1, 30), log(20))
    assert isinstance(effect, RetryAt)


def test_what_is_committed_is_not_cut() -> None:
    """It may be the last copy: the follower halts and says why."""
    machine = follower(high_watermark=12)
    (effect,) = told(machine, diverging(1, 11), log(20))
    assert isinstance(effect, Halt)
    assert "unclean.leader.election.enable" in effect.reason
    assert machine.next_fetch(log(20), 10**9) is None


def test_it_is_cut_where_the_topic_allows_that() -> None:
    """And the shell is told, so that it can say so."""
    machine = follower(high_watermark=12, loses=True)
    assert told(machine, diverging(1, 11), log(20)) == (Truncate(11, True),)
    assert machine.high_watermark == 11


def test_a_log_that_the_leader_has_left_behind_begins_anew() -> None:
    """Everything here is below the leader's start."""
    machine = follower(high_watermark=10)
    out_of_range = FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE)
    assert told(machine, out_of_range, log(10)) == (AskBounds(3, 7),)
    assert machine.next_fetch(log(10), 0) is None
    assert machine.on_bounds(50, 90, log(10), 0) == (StartAt(50, False),)
    assert machine.high_watermark == 50


def test_a_log_beyond_the_leaders_end_is_cut_to_it() -> None:
    """Unless that would lose what is committed."""
    out_of_range = FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE)
    machine = follower(high_watermark=5)
    told(machine, out_of_range, log(10))
    assert machine.on_bounds(0, 7, log(10), 0) == (Truncate(7, False),)
    machine = follower(high_watermark=9)
    told(machine, out_of_range, log(10))
    (effect,) = machine.on_bounds(0, 7, log(10), 0)
    assert isinstance(effect, Halt)
    machine = follower(high_watermark=9, loses=True)
    told(machine, out_of_range, log(10, start=8))
    assert machine.on_bounds(2, 7, log(10, start=8), 0) == (StartAt(7, True),)


def test_bounds_that_explain_nothing_are_asked_for_again() -> None:
    """The leader's log has changed meanwhile, or the leader did not answer."""
    machine = follower()
    told(machine, FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE), log(10))
    assert machine.on_bounds(0, 12, log(10), 0) != ()
    assert machine.next_fetch(log(10), BACKOFF_MS) is not None
    machine = follower()
    told(machine, FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE), log(10))
    (effect,) = machine.on_bounds_lost(5)
    assert effect == RetryAt(5 + BACKOFF_MS, "broker 3 did not say where its log starts")
    assert machine.next_fetch(log(10), 5 + BACKOFF_MS) is not None


def test_a_log_that_starts_within_a_batch_gets_it_whole() -> None:
    """The leader deleted up to the middle of it; batches are not split."""
    span = BatchSpan(48, 52, 1, 9)
    effects = told(follower(50), answer(span, high_watermark=60, start=50), log(50, start=50))
    assert effects == (
        StartAt(48, False),
        Append((span,), 9),
        AdvanceHighWatermark(52),
        AdvanceLogStart(50),
    )


def test_a_fenced_follower_waits_for_the_metadata() -> None:
    """There is a newer leader, which it has not heard of."""
    machine = follower()
    effects = told(machine, FetchAnswer(ErrorCode.FENCED_LEADER_EPOCH), log(10))
    assert effects == (WaitForMetadata(7),)
    assert machine.next_fetch(log(10), 10**9) is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_a_leader_that_is_not_ready_is_asked_again(code: ErrorCode) -> None:
    """It has not heard of its term as yet, or has trouble of its own."""
    machine = follower()
    (effect,) = told(machine, FetchAnswer(code), log(10))
    assert isinstance(effect, RetryAt)
    assert code.name in effect.reason
    assert machine.next_fetch(log(10), effect.at_ms) is not None


def test_late_answers_are_dropped() -> None:
    """Only the fetch under way is answered, once."""
    machine = follower()
    first = machine.next_fetch(log(10), 0)
    assert first is not None
    assert machine.on_lost(first, 0) != ()
    assert machine.on_lost(first, 0) == ()
    second = machine.next_fetch(log(10), BACKOFF_MS)
    assert second is not None
    late = answer(BatchSpan(10, 11, 1, 9))
    assert machine.on_answer(first, late, log(10), 0) == ()
    assert machine.on_answer(second, late, log(10), 0) == (Append(late.spans, 9),)  # type: ignore[arg-type]
    assert machine.on_answer(second, late, log(11), 0) == ()


def test_rules_may_change() -> None:
    """As the topic's configs do."""
    machine = follower(high_watermark=12)
    machine.configure(FollowerRules(may_lose_committed=True))
    assert told(machine, diverging(1, 11), log(20)) == (Truncate(11, True),)


def test_a_leader_that_is_late_to_hear_is_asked_again_soon() -> None:
    """And ever later, up to the full backoff; an answer that is none of these begins anew."""
    machine = follower()
    view = log(10)
    waits = []
    now_ms = 0
    for _ in range(5):
        fetch = machine.next_fetch(view, now_ms)
        assert fetch is not None
        (effect,) = machine.on_answer(
            fetch, FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER), view, now_ms
        )
        assert isinstance(effect, RetryAt)
        waits.append(effect.at_ms - now_ms)
        now_ms = effect.at_ms
    assert waits == [20, 40, 80, BACKOFF_MS, BACKOFF_MS]
    fetch = machine.next_fetch(view, now_ms)
    assert fetch is not None
    assert machine.on_answer(fetch, answer(), view, now_ms) == ()
    fetch = machine.next_fetch(view, now_ms)
    assert fetch is not None
    refused = FetchAnswer(ErrorCode.UNKNOWN_LEADER_EPOCH)
    (effect,) = machine.on_answer(fetch, refused, view, now_ms)
    assert isinstance(effect, RetryAt)
    assert effect.at_ms == now_ms + 20


def test_what_could_not_be_stored_does_not_count() -> None:
    """The high watermark is not beyond the end of the log, and it is tried again later."""
    machine = follower()
    effects = told(machine, answer(BatchSpan(10, 20, 1, 9), high_watermark=20), log(10))
    assert AdvanceHighWatermark(20) in effects
    assert machine.on_failed("the disk is full", log(10), 5) == (
        RetryAt(5 + BACKOFF_MS, "the disk is full"),
    )
    assert machine.high_watermark == 10
    assert machine.next_fetch(log(10), BACKOFF_MS) is None
    assert machine.next_fetch(log(10), 5 + BACKOFF_MS) is not None


def test_a_fetch_from_before_a_cut_is_of_no_use() -> None:
    """Its answer would leave a gap where records are."""
    machine = follower(8)
    asked = [machine.has_asked]
    fetch = machine.next_fetch(log(10), 0)
    assert fetch is not None
    assert [*asked, machine.has_asked] == [False, True]
    machine.on_cut(log(4))
    assert machine.high_watermark == 4
    assert machine.on_answer(fetch, answer(BatchSpan(10, 11, 1, 9)), log(4), 0) == ()
    again = machine.next_fetch(log(4), 0)
    assert again is not None
    assert again.offset == 4
