"""Tests what a micro-batch of a share group holds, and what is acknowledged when."""

from __future__ import annotations

import json

import pytest

from penstock.client.errors import OptionError
from penstock.spark.options import SHARE_RECORDS, parse_source
from penstock.spark.share_batches import ShareBatches, SharePosition, Taken
from penstock.spark.share_session import has_any_below
from penstock.topic_partition import TopicPartition

FIRST, SECOND = TopicPartition("jobs", 0), TopicPartition("jobs", 1)
BEGIN = SharePosition("g")
GIVEN = {"kafka.bootstrap.servers": "h:1", "subscribe": "jobs", "shareGroup": "g"}


def taken(
    *offsets: int, where: TopicPartition = FIRST, attempt: int = 1, of: str = "a1"
) -> list[Taken]:
    return [Taken(of, where, offset, attempt) for offset in offsets]


def through_spark(position: SharePosition) -> SharePosition:
    """Returns the position as it comes back from a checkpoint."""
    return SharePosition.from_spark(json.loads(json.dumps(position.to_spark())), "g")


def under_way(batches: ShareBatches) -> SharePosition | None:
    return batches.planned


def test_a_batch_names_its_records_and_is_acknowledged_when_it_is_committed() -> None:
    batches = ShareBatches()
    records = [*taken(3, 4, 5, 9), *taken(1, where=SECOND)]
    assert batches.on_committed(BEGIN) == []
    end = batches.plan(BEGIN, records)
    assert end.ranges == {FIRST: ((3, 6), (9, 10)), SECOND: ((1, 2),)}
    assert (end.number, end.topics) == (1, {"jobs": "a1"})
    assert through_spark(end) == end
    assert under_way(batches) == end
    assert batches.on_committed(BEGIN) == [], "the batch runs"
    assert batches.on_committed(through_spark(end)) == records
    assert under_way(batches) is None
    assert batches.on_committed(end) == [], "once is enough"


def test_records_whose_locks_were_lost_are_acknowledged_when_they_come_again() -> None:
    batches = ShareBatches()
    end = batches.plan(BEGIN, taken(3, 4, 5))
    assert len(batches.on_committed(end)) == 3
    batches.on_lost(taken(4, 5))
    again = taken(3, 4, 5, attempt=2)
    assert batches.divide(again) == (again[:1], again[1:])


def test_a_new_driver_does_not_process_the_last_batch_of_the_old_one_again() -> None:
    """It does not know whether the old one has acknowledged it."""
    end = ShareBatches().plan(BEGIN, taken(3, 4))
    batches = ShareBatches()
    assert batches.on_committed(through_spark(end)) == []
    new, repeated = batches.divide([*taken(4, 5, attempt=2), *taken(4, where=SECOND, attempt=2)])
    assert [(each.topic_partition, each.offset) for each in new] == [(FIRST, 5), (SECOND, 4)]
    assert [each.offset for each in repeated] == [4]


def test_records_are_processed_again_after_a_reset_and_in_a_new_topic() -> None:
    """A reset begins with fresh counts. A topic that was created again has another id."""
    end = ShareBatches().plan(BEGIN, taken(3, 4))
    batches = ShareBatches()
    batches.on_committed(end)
    for records in (taken(3, attempt=1), taken(3, attempt=2, of="b2")):
        assert batches.divide(records) == (records, [])


def test_a_checkpoint_of_another_query_is_refused() -> None:
    with pytest.raises(OptionError, match="the checkpoint belongs to the share group g"):
        SharePosition.from_spark(BEGIN.to_spark(), "other")
    with pytest.raises(OptionError, match="belongs to a query without shareGroup"):
        SharePosition.from_spark({"jobs": {"0": 4}}, "g")


def test_a_run_ends_when_all_records_are_newer_than_its_target() -> None:
    assert has_any_below(taken(4, 7), {FIRST: 5})
    assert not has_any_below([*taken(5), *taken(0, where=SECOND)], {FIRST: 5})


def test_options_that_work_with_a_share_group() -> None:
    options = parse_source(GIVEN, streaming=True)
    assert (options.share_group, options.trigger_offsets_max) == ("g", SHARE_RECORDS)
    assert options.client["isolation_level"] == "read_uncommitted"
    limited = parse_source({**GIVEN, "maxOffsetsPerTrigger": "7"}, streaming=True)
    assert limited.trigger_offsets_max == 7


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("startingOffsets", "earliest", "startingOffsets does not work with shareGroup"),
        ("minPartitions", "4", "minPartitions does not work with shareGroup"),
        ("groupId", "other", "groupId does not work with shareGroup"),
        ("kafka.isolation.level", "read_committed", "set share.isolation.level of the group"),
        ("maxOffsetsPerTrigger", "100001", "at most 100000 records"),
    ],
)
def test_options_that_do_not_work_with_a_share_group(name: str, value: str, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        parse_source({**GIVEN, name: value}, streaming=True)
