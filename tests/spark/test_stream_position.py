"""Tests the position of a stream with backfills: every record exactly once, whatever happens."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.offset_ranges import before, cut, joined, size, to_json, without
from penstock.spark.offsets import Offsets, advance, from_spark, spans, to_spark
from penstock.spark.stream_position import (
    Backfill,
    BackfillRequest,
    Position,
    advanced,
    backfill_spans,
    begin,
    clipped,
    follow,
    forget,
    live_start,
    position_from_spark,
    position_to_spark,
    skip_deleted,
)
from penstock.topic_partition import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
numbers = st.integers(0, 30)
pairs = st.lists(st.tuples(numbers, numbers), max_size=6)


def offsets_in(ranges: object) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}  # type: ignore[attr-defined]


@settings(deadline=None, max_examples=80)
@given(pairs, pairs, numbers, numbers)
def test_ranges_are_sets_of_offsets(
    one: list[tuple[int, int]], other: list[tuple[int, int]], first: int, last: int
) -> None:
    mine, theirs = joined(one), joined(other)
    assert offsets_in(mine) == offsets_in(one)
    assert size(mine) == len(offsets_in(mine))
    assert offsets_in(before(mine, first)) == {each for each in offsets_in(mine) if each < first}
    assert offsets_in(without(mine, theirs)) == offsets_in(mine) - offsets_in(theirs)
    assert offsets_in(cut(mine, first, last)) == set(sorted(offsets_in(mine))[first:last])


def test_a_position_without_a_backfill_is_written_as_before() -> None:
    """Other versions of Penstock can read such a checkpoint."""
    position = Position({A1: 4, A0: 17})
    assert position_to_spark(position) == to_spark({A0: 17, A1: 4})
    assert position_from_spark(to_spark(position.live)) == position


def test_a_version_that_does_not_know_backfills_refuses_the_checkpoint() -> None:
    """Its error contains what is wrong."""
    position = begin(Position({A0: 9}, began={A0: 9}), request([0, 5]))
    with pytest.raises(ValueError, match="needs a newer Penstock"):
        from_spark(position_to_spark(position))


def test_a_position_survives_the_checkpoint_as_the_same_text() -> None:
    """Spark compares positions as text."""
    position = begin(Position({A1: 9, A0: 9}, {A1: 8, A0: 7}, {A1: ((0, 2),)}), request([0, 5]))
    text = json.dumps(position_to_spark(position))
    again = position_from_spark(json.loads(text))
    assert again == position
    assert json.dumps(position_to_spark(again)) == text


def request(
    *ranges: list[int], id_: int = 1, again: bool = False, cancelled: bool = False
) -> BackfillRequest:
    wanted = to_json({A0: joined([(start, end) for start, end in ranges])})
    return BackfillRequest(id_, "flow", wanted, again=again, bytes_max=1 << 30, cancelled=cancelled)


def test_what_the_stream_has_read_is_not_read_again() -> None:
    position = Position({A0: 20}, began={A0: 10}, read={A0: ((3, 5),)})
    asked = {A0: ((0, 30),)}
    assert clipped(asked, position, again=False) == {A0: ((0, 3), (5, 10))}
    assert clipped(asked, position, again=True) == {A0: ((0, 20),)}, "up to the live position"


def test_nothing_is_unread_if_the_beginning_is_not_known() -> None:
    """The stream began at the start of the log, or with a version that did not note it."""
    assert clipped({A0: ((0, 30),)}, Position({A0: 20}), again=False) == {}


def test_a_backfill_is_begun_once() -> None:
    position = follow(Position({A0: 9}, began={A0: 9}), [request([0, 9])])
    assert position.backfill is not None
    done = replace(position, backfill=replace(position.backfill, done={A0: 9}))
    assert follow(done, [request([0, 9])]) == done
    later = follow(done, [request([0, 9]), request([0, 9], id_=2)])
    assert later.backfill == Backfill(2, {}, {}, 1 << 30), "nothing of it is unread"
    assert later.read == {A0: ((0, 9),)}


def test_a_cancelled_backfill_ends_where_it_is() -> None:
    position = follow(Position({A0: 9}, began={A0: 9}), [request([0, 9])])
    assert position.backfill is not None
    half = replace(position, backfill=replace(position.backfill, done={A0: 4}))
    ended = follow(half, [request([0, 9], cancelled=True)])
    assert ended.backfill is not None
    assert (ended.backfill.has_ended, ended.backfill.cancelled) == (True, True)
    assert (ended.backfill.count, ended.backfill.asked) == (4, 9)
    assert backfill_spans(half, ended) == []
    rest = follow(ended, [request([0, 9], id_=2)])
    assert rest.backfill is not None
    assert rest.backfill.ranges == {A0: ((4, 9),)}


def test_a_request_that_is_cancelled_before_it_begins_does_not_begin() -> None:
    position = Position({A0: 9}, began={A0: 9})
    assert follow(position, [request([0, 9], cancelled=True)]) == position


def test_a_request_for_other_topics_is_not_begun() -> None:
    other = BackfillRequest(1, "flow", {"b": {"0": [[0, 9]]}})
    assert follow(Position({A0: 9}), [other]) == Position({A0: 9})


def test_the_backfill_of_a_deleted_log_ends() -> None:
    position = begin(Position({A0: 9, A1: 3}, began={A0: 9, A1: 3}), request([0, 9]))
    left = forget(position, {A0})
    assert left.live == left.began == {A1: 3}
    assert left.backfill is not None
    assert (left.backfill.has_ended, left.backfill.lost) == (True, 9)


def test_the_first_batch_is_repeated_from_where_it_began() -> None:
    """Spark asks again where the stream begins, and by then the log is longer."""
    logged = Position({A0: 12}, began={A0: 10})
    assert live_start(Position({A0: 15}, began={A0: 15}), logged) == {A0: 10}
    assert live_start(logged, Position({A0: 20}, began={A0: 10})) == {A0: 12}


# -- a stream as a whole ---------------------------------------------------------------------------


class Log:
    """Two partitions, of which the second appears later."""

    def __init__(self) -> None:
        self.ends: Offsets = {A0: 0}
        self.starts: Offsets = {A0: 0}


class Query:
    """A query whose checkpoint and sink work as Spark's: a batch counts once it is committed, and
    a batch that was logged is repeated after a crash."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.rows: Counter[tuple[TopicPartition, int]] = Counter()
        self.text = self.dump(Position(dict(log.ends), began=dict(log.ends)))
        self.requests: list[BackfillRequest] = []

    @staticmethod
    def dump(position: Position) -> str:
        return json.dumps(position_to_spark(position))

    @property
    def position(self) -> Position:
        return position_from_spark(json.loads(self.text))

    def trigger(self, records_max: int, backfill_max: int, crashes: int) -> None:
        start = self.position
        new = {each: self.log.starts[each] for each in self.log.ends if each not in start.live}
        live = advance({**new, **start.live}, self.log.ends, records_max=records_max)
        known = follow(start, self.requests)
        backfill = known.backfill
        if backfill is not None and not backfill.has_ended:
            backfill = advanced(
                skip_deleted(backfill, self.log.starts),
                records_max=backfill_max,
                bytes_max=None,
                record_bytes={},
            )
        text = self.dump(replace(known, live=live, backfill=backfill))
        if text == self.text:
            return
        end = position_from_spark(json.loads(text))
        for _ in range(crashes):
            self.read(start, end)
        self.rows.update(self.read(start, end))
        self.text = text

    def read(self, start: Position, end: Position) -> list[tuple[TopicPartition, int]]:
        new = {each: 0 for each in end.live if each not in start.live}
        whole = [*spans({**new, **live_start(start, end)}, end.live), *backfill_spans(start, end)]
        every = [
            (span.topic_partition, offset)
            for span in whole
            for offset in range(span.start, span.end)
        ]
        return [each for each in every if each[1] >= self.log.starts[each[0]]]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...]]]:
    kinds = st.sampled_from(["write", "trigger", "trigger", "request", "trim", "cancel", "grow"])
    values = st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 2))
    return draw(st.lists(st.tuples(kinds, values), max_size=40))


@settings(deadline=None, max_examples=250)
@given(steps(), st.integers(0, 15))
def test_every_record_is_read_once(
    script: list[tuple[str, tuple[int, ...]]], before_stream: int
) -> None:
    """For any order of writes, limits, crashes, requests, cancellations, new partitions, and
    retention that deletes records before a backfill reads them."""
    log = Log()
    log.ends[A0] = before_stream
    query = Query(log)
    trimmed: set[int] = set()
    for kind, (one, two, three) in script:
        match kind:
            case "write":
                for each in log.ends:
                    log.ends[each] += one
            case "trigger":
                query.trigger(one + 1, two, three)
            case "request":
                wanted = request(sorted((one, two)), id_=len(query.requests) + 1)
                query.requests.append(wanted)
            case "trim":
                # Retention deletes what the stream itself has read, or what lies before it.
                limit = min(log.starts[A0] + one, query.position.live[A0])
                trimmed |= set(range(log.starts[A0], limit))
                log.starts[A0] = limit
            case "cancel" if query.requests:
                last = len(query.requests) - 1
                query.requests[last] = replace(query.requests[last], cancelled=True)
            case "grow" if A1 not in log.ends:
                log.ends[A1], log.starts[A1] = one, 0
    wanted_at_last = request([0, 100], id_=len(query.requests) + 1)
    query.requests.append(wanted_at_last)
    for _ in range(400):
        query.trigger(7, 5, 0)
    assert max(query.rows.values(), default=1) == 1
    position = query.position
    assert position.live == log.ends
    assert position.backfill is not None
    assert (position.backfill.id, position.backfill.has_ended) == (wanted_at_last.id, True)
    for each, end in log.ends.items():
        missing = {offset for offset in range(end) if not query.rows[each, offset]}
        assert missing <= (trimmed if each == A0 else set()), "only deleted records are missing"


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 9), st.integers(0, 2))
def test_a_deliberate_repetition_reads_every_record_of_its_range_once_more(
    old: int, new: int, limit: int, crashes: int
) -> None:
    log = Log()
    log.ends[A0] = old
    query = Query(log)
    log.ends[A0] += new
    query.trigger(1_000, 0, crashes)
    query.requests.append(request([0, 1_000], again=True))
    for _ in range(100):
        query.trigger(1_000, limit, crashes)
    assert [query.rows[A0, offset] for offset in range(old)] == [1] * old
    assert [query.rows[A0, offset] for offset in range(old, old + new)] == [2] * new
