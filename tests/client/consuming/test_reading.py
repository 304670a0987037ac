"""Tests how records are handed out: order of partitions, positions, failing deserializers."""

from __future__ import annotations

import gc

import pytest

from client.consuming.logs import MadeLog, piece_of
from penstock.client.consuming.reading import Reading
from penstock.client.consuming.record_decoder import DeserializationFailed, RecordMaker
from penstock.client.consuming.subscription import Subscription
from penstock.client.errors import BrokerError
from penstock.records import kernels
from penstock.records.record import Record, build_batch
from penstock.topic_partition import TopicPartition

TOPIC_PARTITIONS = [TopicPartition("t", index) for index in range(3)]


def log_of(count: int, batches: int = 1) -> MadeLog:
    log = MadeLog()
    for _ in range(batches):
        log.add(range(count), count)
    return log


def reading_of(*logs: MadeLog, maker: RecordMaker | None = None) -> tuple[Subscription, Reading]:
    subscription = Subscription()
    subscription.assign(TOPIC_PARTITIONS[: len(logs)])
    for topic_partition, log in zip(TOPIC_PARTITIONS, logs, strict=False):
        state = subscription.state(topic_partition)
        subscription.set_position(state, 0, -1)
        for batch in log.batches:
            state.push(piece_of([batch]))
    return subscription, Reading(subscription, maker or RecordMaker(None, None))


def test_partitions_alternate_piece_by_piece() -> None:
    """A partition with many buffered records does not delay the others."""
    _, reading = reading_of(log_of(4, batches=3), log_of(4, batches=1), log_of(4, batches=2))
    order = []
    while records := reading.collect(2):
        order += [record.partition for record in records]
    assert order == [0] * 4 + [1] * 4 + [2] * 4 + [0] * 4 + [2] * 4 + [0] * 4


def test_positions_advance_only_with_returned_records() -> None:
    subscription, reading = reading_of(log_of(10))
    state = subscription.state(TOPIC_PARTITIONS[0])
    assert [record.offset for record in reading.collect(3)] == [0, 1, 2]
    assert (state.position, state.fetch_offset) == (3, 10)
    assert len(reading.collect(100)) == 7
    assert (state.position, state.position_epoch) == (10, 0)


def test_the_position_during_iteration_is_after_the_last_record_handed_out() -> None:
    subscription, reading = reading_of(log_of(10))
    state = subscription.state(TOPIC_PARTITIONS[0])
    assert reading.begin_run(6)
    reading.settle()
    assert state.position == 0
    reading.at = 4
    reading.settle()
    assert state.position == 4
    reading.at = 6
    assert [record.offset for record in reading.collect(100)] == [6, 7, 8, 9]


def test_the_rest_of_a_run_is_not_lost() -> None:
    """A poll continues where iteration stopped."""
    _, reading = reading_of(log_of(5))
    assert reading.begin_run(5)
    reading.at = 2
    assert [record.offset for record in reading.collect(10)] == [2, 3, 4]


def test_a_run_does_not_move_the_position_after_a_seek() -> None:
    subscription, reading = reading_of(log_of(5))
    state = subscription.state(TOPIC_PARTITIONS[0])
    assert reading.begin_run(5)
    reading.at = 5
    subscription.look_up(state, -2)
    reading.settle()
    assert state.position is None


def test_paused_partitions_keep_their_buffered_records() -> None:
    subscription, reading = reading_of(log_of(2), log_of(2))
    subscription.state(TOPIC_PARTITIONS[0]).paused = True
    assert [record.partition for record in reading.collect(10)] == [1, 1]
    subscription.state(TOPIC_PARTITIONS[0]).paused = False
    assert [record.offset for record in reading.collect(10)] == [0, 1]


def test_gaps_and_markers_at_the_end_advance_the_position() -> None:
    """Otherwise a consumer of a compacted topic would never reach its end."""
    log = MadeLog()
    log.add([0, 2], 9)
    log.add([], 4)
    subscription, reading = reading_of(log)
    assert [record.offset for record in reading.collect(10)] == [0, 2]
    assert subscription.state(TOPIC_PARTITIONS[0]).position == 13


def numbers(*values: bytes) -> MadeLog:
    log = MadeLog()
    records = [Record(offset, 5, b"k", value) for offset, value in enumerate(values)]
    log.batches.append(bytes(build_batch(records)))
    log.end = len(values)
    return log


def test_values_are_deserialized_and_null_stays_null() -> None:
    log = MadeLog()
    log.batches.append(
        bytes(build_batch([Record(0, 5, None, b"1"), Record(1, 5, b"2", None)])),
    )
    _, reading = reading_of(log, maker=RecordMaker(int, int))
    assert [(record.key, record.value) for record in reading.collect(5)] == [(None, 1), (2, None)]


@pytest.mark.parametrize("maker", [RecordMaker(None, int), RecordMaker(len, int)])
def test_a_failing_record_is_reported_after_the_good_ones_and_can_be_skipped(
    maker: RecordMaker,
) -> None:
    """The error names the record and is raised again until the caller seeks past it.
    The seek needs no new fetch."""
    subscription, reading = reading_of(numbers(b"1", b"2", b"x", b"4"), maker=maker)
    state = subscription.state(TOPIC_PARTITIONS[0])
    assert [record.value for record in reading.collect(10)] == [1, 2]
    for _ in range(2):
        with pytest.raises(DeserializationFailed, match="value of the record at offset 2") as why:
            reading.collect(10)
        assert (why.value.topic_partition, why.value.offset) == (TOPIC_PARTITIONS[0], 2)
        assert why.value.record.value == b"x"
        assert state.position == 2
    token = state.token
    subscription.seek(state, why.value.offset + 1)
    assert [record.value for record in reading.collect(10)] == [4]
    assert state.token == token


def test_iteration_stops_at_a_record_that_fails_to_deserialize() -> None:
    subscription, reading = reading_of(numbers(b"1", b"x"), maker=RecordMaker(None, int))
    assert reading.begin_run(10)
    assert [record.value for record in reading.run] == [1]
    reading.at = 1
    with pytest.raises(DeserializationFailed):
        reading.begin_run(10)
    assert subscription.state(TOPIC_PARTITIONS[0]).position == 1


def test_a_corrupt_batch_affects_only_its_partition() -> None:
    """The batch is fetched again; records of other partitions are returned meanwhile."""
    damaged, sound = log_of(2), log_of(2)
    damaged.batches[0] = damaged.batches[0][:-1] + b"?"
    subscription, reading = reading_of(damaged, sound)
    assert [record.partition for record in reading.collect(10)] == [1, 1]
    state = subscription.state(TOPIC_PARTITIONS[0])
    assert (state.position, state.fetch_offset, bool(state.buffer)) == (0, 0, False)
    assert isinstance(subscription.take_error(0.0, again=False), BrokerError)


@pytest.mark.skipif(not kernels.COMPILED, reason="only compiled code can tell the collector")
def test_records_of_bytes_are_not_tracked_by_the_garbage_collector() -> None:
    """So thousands of them do not trigger full collections. Records with deserialized values stay
    tracked, because these may refer to anything."""
    _, reading = reading_of(log_of(600))
    records = reading.collect(600)
    assert [record.offset for record in records] == list(range(600))
    assert not any(map(gc.is_tracked, records))
    _, reading = reading_of(log_of(3), maker=RecordMaker(None, lambda data: [data]))
    assert all(map(gc.is_tracked, reading.collect(3)))
