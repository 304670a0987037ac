"""Tests backfills of a stream from a real broker, planned and read as by Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import Admin, Producer
from penstock.spark import backfill_file
from penstock.spark.stream_position import BackfillRequest, position_from_spark
from penstock.testing import Broker
from penstock.topic_partition import TopicPartition
from spark.direct import Stream, offsets_of, rows_of

FLOW = {"flow": "copied"}


class Surroundings:
    """A topic with two partitions, a stream of it, and the file with requests."""

    def __init__(self, broker: Broker, producer: Producer[Any, Any], path: Path) -> None:
        self.topic = broker.new_topic(2)
        self._broker = broker
        self._producer = producer
        self._path = path
        self._requests: list[BackfillRequest] = []
        self.streams: list[Stream] = []

    def stream(self, **options: str) -> Stream:
        self.streams.append(Stream(self._broker.bootstrap, self.topic, **{**FLOW, **options}))
        return self.streams[-1]

    def write(self, count: int) -> None:
        for partition in (0, 1):
            for _ in range(count):
                self._producer.send(self.topic, b"x" * 10, partition=partition)
        self._producer.flush()

    def request(self, start: int, end: int, **more: Any) -> None:
        ranges = {self.topic: {"0": [[start, end]], "1": [[start, end]]}}
        made = BackfillRequest(len(self._requests) + 1, "copied", ranges, ["copied"], **more)
        self._requests.append(made)
        backfill_file.write_requests(self._path, self._requests)

    def cancel(self) -> None:
        self._requests.append(replace(self._requests.pop(), cancelled=True))
        backfill_file.write_requests(self._path, self._requests)


@pytest.fixture
def around(
    broker: Broker, producer: Producer[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Surroundings]:
    path = tmp_path / "backfills.json"
    monkeypatch.setenv(backfill_file.VARIABLE, str(path))
    made = Surroundings(broker, producer, path)
    yield made
    for stream in made.streams:
        stream.reader.stop()


def read(batches: list[Any]) -> Counter[tuple[int, int]]:
    return Counter((row["partition"], row["offset"]) for batch in batches for row in batch.rows)


def every(start: int, end: int, times: int = 1) -> Counter[tuple[int, int]]:
    return Counter(
        {(partition, offset): times for partition in (0, 1) for offset in range(start, end)}
    )


def test_a_stream_reads_older_records_beside_new_ones(around: Surroundings) -> None:
    """New records are not delayed, and every record is read once, over restarts in the middle."""
    around.write(50)
    stream = around.stream(maxOffsetsPerTrigger="20")
    assert stream.trigger().rows == []
    around.request(10, 1_000)
    around.write(2)
    first = stream.trigger()
    assert offsets_of(first.rows)[around.topic, 0][:2] == [50, 51]
    assert 4 < len(first.rows) <= 20, "what new records leave of the limit"
    stream.restart()
    around.write(3)
    batches = [first, *stream.until_idle()]
    assert read(batches) == every(10, 55)
    assert max(len(batch.rows) for batch in batches) <= 20


def test_a_stream_at_its_limit_reads_new_records_first(around: Surroundings) -> None:
    around.write(10)
    stream = around.stream(maxOffsetsPerTrigger="4")
    stream.trigger()
    around.request(0, 10)
    around.write(6)
    first = stream.trigger()
    assert {offset for offsets in first.offsets.values() for offset in offsets} <= set(
        range(10, 16)
    )
    assert read([first, *stream.until_idle()]) == every(0, 16)


def test_a_batch_that_was_interrupted_is_repeated(around: Surroundings) -> None:
    """Also in another process, and after the request is gone: the checkpoint has all of it."""
    around.write(30)
    stream = around.stream()
    stream.trigger()
    around.request(0, 30, bytes_max=500)
    start, end = stream.plan()
    first = rows_of(stream.reader, stream.reader.partitions(start, end))
    assert 0 < len(first) < 60
    stream.restart()
    again = rows_of(stream.reader, stream.reader.partitions(start, end))
    assert offsets_of(again) == offsets_of(first)
    stream.position = end
    around._path.unlink()
    rest = [row for batch in stream.until_idle() for row in batch.rows]
    assert len(first) + len(rest) == 60


def test_the_limit_in_bytes_of_a_backfill_is_kept(around: Surroundings) -> None:
    around.write(400)
    stream = around.stream()
    stream.trigger()
    around.request(0, 400, bytes_max=2_000)
    batches = stream.until_idle()
    assert read(batches) == every(0, 400)
    assert len(batches) > 5


def test_what_was_read_is_read_again_only_on_request(around: Surroundings) -> None:
    around.write(10)
    stream = around.stream()
    stream.trigger()
    around.write(5)
    stream.until_idle()
    around.request(0, 100)
    assert read(stream.until_idle()) == every(0, 10)
    around.request(0, 100)
    assert read(stream.until_idle()) == Counter()
    around.request(5, 100, again=True)
    assert read(stream.until_idle()) == every(5, 15)


def test_a_stream_from_the_beginning_has_no_note_of_where_it_began(around: Surroundings) -> None:
    """It has read everything, so it needs no note of where it began. Nor has one without a flow."""
    around.write(3)
    whole = around.stream(startingOffsets="earliest")
    whole.until_idle()
    other = around.stream(flow="")
    assert other.trigger().rows == []
    for stream in (whole, other):
        assert stream.position is not None
        assert not position_from_spark(stream.position).began
    around.request(0, 3)
    assert read(whole.until_idle()) == Counter()
    around.request(0, 3, again=True)
    assert read(whole.until_idle()) == every(0, 3)


def test_a_cancelled_backfill_stops_where_it_is(around: Surroundings) -> None:
    around.write(200)
    stream = around.stream()
    stream.trigger()
    around.request(0, 200, bytes_max=1_000)
    first = stream.trigger()
    around.cancel()
    rest = stream.until_idle()
    assert read(rest) == Counter()
    assert stream.position is not None
    backfill = position_from_spark(stream.position).backfill
    assert backfill is not None
    assert (backfill.cancelled, backfill.count) == (True, len(first.rows))
    around.request(0, 200)
    assert read([first, *stream.until_idle()]) == every(0, 200)


def test_records_that_retention_deletes_do_not_stop_the_stream(
    around: Surroundings, admin: Admin
) -> None:
    """They are counted. New records that are deleted unread still stop it."""
    around.write(100)
    stream = around.stream()
    stream.trigger()
    around.request(0, 100, bytes_max=1_000)
    first = stream.trigger()
    admin.delete_records({TopicPartition(around.topic, 0): 90})
    batches = [first, *stream.until_idle()]
    found = read(batches)
    assert max(found.values()) == 1
    assert all((1, offset) in found for offset in range(100))
    assert all((0, offset) in found for offset in range(90, 100))
    assert stream.position is not None
    backfill = position_from_spark(stream.position).backfill
    assert backfill is not None
    assert found.total() + backfill.lost == backfill.asked == 200


def test_records_are_deleted_between_planning_and_reading(
    around: Surroundings, admin: Admin
) -> None:
    around.write(20)
    stream = around.stream()
    stream.trigger()
    around.request(0, 20)
    start, end = stream.plan()
    pieces = stream.reader.partitions(start, end)
    admin.delete_records({TopicPartition(around.topic, 0): 15})
    assert len(rows_of(stream.reader, pieces)) == 25
    assert len(rows_of(stream.reader, stream.reader.partitions(start, end))) == 25


def test_new_partitions_are_read_beside_a_backfill(around: Surroundings, admin: Admin) -> None:
    around.write(20)
    stream = around.stream(maxOffsetsPerTrigger="10")
    stream.trigger()
    around.request(0, 20)
    stream.trigger()
    admin.create_partitions(around.topic, 3)
    for _ in range(4):
        around._producer.send(around.topic, b"new", partition=2)
    around._producer.flush()
    found = read(stream.until_idle())
    assert [found[2, offset] for offset in range(4)] == [1] * 4
    assert max(found.values()) == 1


def test_the_first_batch_is_repeated_after_a_crash(around: Surroundings) -> None:
    """Spark asks again where a stream from the end begins, which is later by then."""
    around.write(5)
    stream = around.stream()
    initial = stream.reader.initialOffset()
    around.write(3)
    stream.position = initial
    _, end = stream.plan()
    stream.restart()
    around.write(4)
    later = stream.reader.initialOffset()
    assert later != initial
    rows = rows_of(stream.reader, stream.reader.partitions(later, end))
    assert Counter((row["partition"], row["offset"]) for row in rows) == every(5, 8)


def test_a_run_to_the_current_end_reads_a_backfill_for_some_seconds_only(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New records and other flows wait for the next run. No record is left out in the end."""
    around.write(100)
    stream = around.stream()
    stream.trigger()
    around.request(0, 100, bytes_max=1_000)
    monkeypatch.setattr("penstock.spark.backfill_planning._RUN_S", 0.0)
    stream.reader.prepareForTriggerAvailableNow()
    (first,) = stream.until_idle()
    assert 0 < len(first.rows) < 200, "at least one part"
    monkeypatch.setattr("penstock.spark.backfill_planning._RUN_S", 600.0)
    stream.restart()
    stream.reader.prepareForTriggerAvailableNow()
    assert read([first, *stream.until_idle()]) == every(0, 100)


def test_a_damaged_file_of_requests_does_not_stop_the_stream(around: Surroundings) -> None:
    around.write(2)
    stream = around.stream()
    stream.trigger()
    around._path.write_text("{")
    around.write(1)
    assert read([stream.trigger()]) == every(2, 3)
    around._path.write_text(json.dumps([{"id": "one"}]))
    around.write(1)
    assert read([stream.trigger()]) == every(3, 4)
    wrong = {"id": 1, "flow": "copied", "sources": ["copied"], "ranges": {"a": {"x": [[1]]}}}
    around._path.write_text(json.dumps([wrong]))
    around.write(1)
    assert read([stream.trigger()]) == every(4, 5)
