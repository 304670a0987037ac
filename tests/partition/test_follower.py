"""What a follower does with the responses to its fetches."""

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
    """Runs one round: a fetch, its response, the effects."""
    fetch = machine.next_fetch(view, 0)
    assert fetch is not None
    return machine.on_answer(fetch, reply, view, 0)


def diverging(epoch: int, end: int, start: int = 0) -> FetchAnswer:
    return FetchAnswer(ErrorCode.NONE, 0, start, EpochEnd(epoch, end))


def test_a_follower_fetches_from_its_log_end_with_its_last_epoch() -> None:
    """The last record's epoch counts, not one that was stored without records. One fetch at a
    time."""
    machine = follower()
    view = log(10, (1, 0), (4, 10), start=2)
    assert machine.next_fetch(view, 0) == Fetch(3, 7, 10, 1, 2, 1)
    assert machine.next_fetch(view, 0) is None
    assert last_epoch(log(0)) == -1
    assert last_epoch(log(5, (1, 0), start=5)) == -1


def test_a_follower_fetches_only_when_all_its_records_count() -> None:
    """The leader treats the fetch offset as safe on this replica."""
    machine = follower()
    assert machine.next_fetch(log(10, counted=9), 0) is None
    assert machine.next_fetch(log(10), 0) is not None


def test_batches_are_appended_and_the_leaders_offsets_adopted() -> None:
    """The follower adopts the high watermark and log start offset, as far as its own log
    reaches."""
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
def test_a_batch_that_does_not_continue_the_log_is_refused(bad: BatchSpan) -> None:
    """An overlap, a lower epoch, or an epoch above the leader's. The batches before it are kept."""
    machine = follower()
    good = BatchSpan(10, 11, 1, 9)
    appended, retry = told(machine, answer(good, bad), log(10))
    assert appended == Append((good,), 9)
    assert isinstance(retry, RetryAt)
    assert machine.next_fetch(log(11), BACKOFF_MS - 1) is None
    assert machine.next_fetch(log(11), BACKOFF_MS) is not None


def test_gaps_left_by_compaction_are_accepted() -> None:
    """Offsets may be missing from a leader's log, before and between batches. The follower accepts
    this whatever the topic's cleanup.policy is now."""
    spans = BatchSpan(15, 20, 1, 9), BatchSpan(40, 41, 1, 9)
    assert told(follower(), answer(*spans), log(10)) == (Append(spans, 18),)


def test_a_corrupt_batch_is_fetched_again() -> None:
    """The valid batches before it are kept."""
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
        (2, 12, 12),  # both have it, the leader's ended first
        (2, 18, 15),  # both have it, it ended here first
        (3, 14, 15),  # unknown here: only the records before it may match
        (1, 8, 5),
        (0, 3, 0),
    ],
)
def test_a_diverging_log_is_truncated_exactly(epoch: int, end: int, cut: int) -> None:
    """It is truncated to the last offset that both logs may share, however far below the end."""
    view = log(20, (1, 0), (2, 5), (5, 15))
    assert told(follower(), diverging(epoch, end), view) == (Truncate(cut, False),)


def test_truncation_takes_as_many_rounds_as_needed() -> None:
    """After quick leader changes each log may have epochs that the other one does not have."""
    machine = follower()
    view = log(20, (1, 0), (3, 8), (5, 15))
    assert told(machine, diverging(4, 18), view) == (Truncate(15, False),)
    view = log(15, (1, 0), (3, 8))
    assert told(machine, diverging(2, 12), view) == (Truncate(8, False),)
    fetch = machine.next_fetch(log(8, (1, 0)), 0)
    assert fetch is not None
    assert (fetch.offset, fetch.last_fetched_epoch) == (8, 1)


def test_a_truncation_that_removes_nothing_is_retried_later() -> None:
    """Otherwise the follower and this leader would repeat it forever."""
    (effect,) = told(follower(), diverging(1, 30), log(20))
    assert isinstance(effect, RetryAt)


def test_committed_records_are_not_truncated() -> None:
    """They may be the last copy: the follower halts and gives the reason."""
    machine = follower(high_watermark=12)
    (effect,) = told(machine, diverging(1, 11), log(20))
    assert isinstance(effect, Halt)
    assert "unclean.leader.election.enable" in effect.reason
    assert machine.next_fetch(log(20), 10**9) is None


def test_committed_records_are_truncated_where_the_topic_allows_it() -> None:
    """The effect says so, so that the shell can log it."""
    machine = follower(high_watermark=12, loses=True)
    assert told(machine, diverging(1, 11), log(20)) == (Truncate(11, True),)
    assert machine.high_watermark == 11


def test_a_log_below_the_leaders_log_start_starts_over() -> None:
    """The leader has deleted every offset that this log has."""
    machine = follower(high_watermark=10)
    out_of_range = FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE)
    assert told(machine, out_of_range, log(10)) == (AskBounds(3, 7),)
    assert machine.next_fetch(log(10), 0) is None
    assert machine.on_bounds(50, 90, log(10), 0) == (StartAt(50, False),)
    assert machine.high_watermark == 10
    machine.on_restarted(50)
    assert machine.high_watermark == 50


def test_a_log_that_diverges_below_the_leaders_log_start_starts_over() -> None:
    """It may diverge further below than the leader knows. Its high watermark does not rise before
    its records are gone: no consumer may read them."""
    machine = follower(high_watermark=2)
    answer = FetchAnswer(
        ErrorCode.NONE, high_watermark=90, log_start_offset=10, diverging=EpochEnd(4, 9)
    )
    assert told(machine, answer, log(10, (4, 0))) == (StartAt(10, False),)
    assert machine.high_watermark == 2


def test_a_log_beyond_the_leaders_end_is_truncated_to_it() -> None:
    """Unless that would remove committed records."""
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


def test_bounds_that_do_not_explain_the_error_are_requested_again() -> None:
    """The leader's log has changed meanwhile, or the leader did not answer."""
    machine = follower()
    told(machine, FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE), log(10))
    assert machine.on_bounds(0, 12, log(10), 0) != ()
    assert machine.next_fetch(log(10), BACKOFF_MS) is not None
    machine = follower()
    told(machine, FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE), log(10))
    (effect,) = machine.on_bounds_lost(5)
    assert effect == RetryAt(
        5 + BACKOFF_MS, "broker 3 did not report where its log starts and ends"
    )
    assert machine.next_fetch(log(10), 5 + BACKOFF_MS) is not None


def test_a_log_that_starts_within_a_batch_gets_the_whole_batch() -> None:
    """The leader deleted up to the middle of the batch, and batches are not split."""
    span = BatchSpan(48, 52, 1, 9)
    effects = told(follower(50), answer(span, high_watermark=60, start=50), log(50, start=50))
    assert effects == (
        StartAt(48, False),
        Append((span,), 9),
        AdvanceHighWatermark(52),
        AdvanceLogStart(50),
    )


def test_a_fenced_follower_waits_for_the_metadata() -> None:
    """There is a newer leader that the follower does not know of yet."""
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
    """The leader has not applied its new leader epoch yet, or has a problem of its own."""
    machine = follower()
    (effect,) = told(machine, FetchAnswer(code), log(10))
    assert isinstance(effect, RetryAt)
    assert code.name in effect.reason
    assert machine.next_fetch(log(10), effect.at_ms) is not None


def test_late_responses_are_dropped() -> None:
    """Only the response to the fetch in flight counts, and only once."""
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


def test_the_rules_can_change() -> None:
    """The topic's configs may change at any time."""
    machine = follower(high_watermark=12)
    machine.configure(FollowerRules(may_lose_committed=True))
    assert told(machine, diverging(1, 11), log(20)) == (Truncate(11, True),)


def test_a_leader_with_old_metadata_is_asked_again_with_growing_delays() -> None:
    """The delay grows up to the full backoff, and starts over after a successful response."""
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


def test_records_that_could_not_be_stored_do_not_count() -> None:
    """The high watermark returns to the end of the log, and the fetch is retried later."""
    machine = follower()
    effects = told(machine, answer(BatchSpan(10, 20, 1, 9), high_watermark=20), log(10))
    assert AdvanceHighWatermark(20) in effects
    assert machine.on_failed("the disk is full", log(10), 5) == (
        RetryAt(5 + BACKOFF_MS, "the disk is full"),
    )
    assert machine.high_watermark == 10
    assert machine.next_fetch(log(10), BACKOFF_MS) is None
    assert machine.next_fetch(log(10), 5 + BACKOFF_MS) is not None


def test_the_response_to_a_fetch_from_before_a_truncation_is_dropped() -> None:
    """Appending it would leave a gap in the log."""
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
