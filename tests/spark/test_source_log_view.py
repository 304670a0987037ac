"""Tests what the driver asks the brokers, and how often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from penstock.client.admin.inspection import LogDirInfo
from penstock.client.admin.offsets import FoundOffset
from penstock.client.admin.operations import PartitionInfo, TopicInfo
from penstock.client.errors import BrokerError
from penstock.client.model import OffsetAndMetadata
from penstock.spark.log_view import RECORD_BYTES_GUESS, DataLoss, LogView
from penstock.spark.offsets import advance, spans, split
from penstock.spark.options import Bound, parse_source
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

PARTITIONS = 1000


class CountingAdmin:
    """A fake admin with one topic of a thousand partitions with ten records each."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_refusing = False

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo | BrokerError]:
        self.asked.append("describe_topics")
        partitions = tuple(
            PartitionInfo(index, 0, 0, (0,), (0,), ()) for index in range(PARTITIONS)
        )
        return {name: TopicInfo(name, "id", False, partitions) for name in names}

    def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        raise AssertionError("topics that are named are asked for by name")

    def list_offsets(
        self, times: Mapping[TopicPartition, Any]
    ) -> dict[TopicPartition, FoundOffset | None]:
        self.asked.append(f"list_offsets of {len(times)}")
        return {
            topic_partition: FoundOffset(0 if when == "earliest" else 10, -1)
            for topic_partition, when in times.items()
        }

    def describe_log_dirs(self, brokers: Sequence[int] | None = None) -> list[LogDirInfo]:
        self.asked.append("describe_log_dirs")
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, BrokerError | None]:
        self.asked.append(f"commit of {len(offsets)}")
        refusal = BrokerError(ErrorCode.UNKNOWN_MEMBER_ID) if self.is_refusing else None
        return dict.fromkeys(offsets, refusal)

    def close(self) -> None:
        self.asked.append("close")


class CommittedEnds:
    """A fake consumer for which only the first seven records are committed."""

    def end_offsets(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(topic_partitions, 7)

    def close(self) -> None:
        pass


def view_of(admin: CountingAdmin, committed: CommittedEnds | None = None) -> LogView:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    return LogView(admin, parse_source(given, streaming=False), committed)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"flow": "clicks"}, "deploy --reset clicks"),
        ({"flow": "my clicks"}, "deploy --reset 'my clicks'"),
        ({}, "deploy --reset and the name of the flow"),
    ],
)
def test_lost_records_name_the_flow_to_reset(given: dict[str, str], told: str) -> None:
    options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", **given}
    with (
        LogView(CountingAdmin(), parse_source(options, streaming=True)) as view,
        pytest.raises(DataLoss) as lost,
    ):
        view.lose("records were deleted")
    assert str(lost.value).endswith(told)


def test_a_thousand_partitions_need_few_requests() -> None:
    """For any number of partitions: one request for the topic, one for each kind of offset."""
    admin = CountingAdmin()
    with view_of(admin) as view:
        topic_partitions = view.topic_partitions()
        ends = view.latest(topic_partitions)
        starts = view.check_not_before_start(
            view.earliest(topic_partitions), view.earliest(topic_partitions)
        )
        pieces = split(spans(starts, advance(starts, ends)), pieces_min=3 * PARTITIONS)
    assert len(pieces) >= 3 * PARTITIONS
    assert admin.asked == ["describe_topics", *[f"list_offsets of {PARTITIONS}"] * 3, "close"]


def test_only_committed_records_count_on_request() -> None:
    """The end is then the end of the committed records, also for -1 in given offsets."""
    admin = CountingAdmin()
    view = view_of(admin, CommittedEnds())
    topic_partitions = view.topic_partitions()
    assert set(view.latest(topic_partitions).values()) == {7}
    marks = Bound("offsets", dict.fromkeys(topic_partitions, -1))
    assert set(view.resolve(marks, topic_partitions, starting=False).values()) == {7}


def test_unknown_sizes_are_estimated() -> None:
    """A broker that does not report the sizes of its logs does not prevent a limit in bytes."""
    topic_partition = TopicPartition("t", 0)
    assert view_of(CountingAdmin()).record_bytes({topic_partition: (0, 10)}) == {
        topic_partition: RECORD_BYTES_GUESS
    }


def test_a_group_with_other_members_is_left_alone() -> None:
    """Its members own the offsets: the job neither fights them nor fails."""
    admin = CountingAdmin()
    view, topic_partition = view_of(admin), TopicPartition("t", 0)
    assert view.commit("g", {topic_partition: 1})
    admin.is_refusing = True
    assert not view.commit("g", {topic_partition: 2})
