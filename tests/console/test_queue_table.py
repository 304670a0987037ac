"""Tests the console's snapshot of the queues: rows, search, and what is recorded for charts."""

from __future__ import annotations

from penstock.client.admin.share_groups import ShareGroupInfo, ShareGroupMember
from penstock.client.queues.dead_letters import DeadLetters
from penstock.client.queues.queue_stats import GroupQueues, QueuePartition, QueueStats
from penstock.console.history import History
from penstock.console.queue_table import (
    DETAILED_MAX,
    KnownGroup,
    QueueName,
    QueueTable,
    member_rows,
    partition_rows,
)
from penstock.topic_partition import TopicPartition

NAME = QueueName("jobs", "resizers")
NOW_MS = 1_000_000


def part(
    depth: int,
    end: int,
    *,
    number: int = 0,
    in_flight: int | None = 0,
    redelivered: int | None = 0,
    oldest_ms: int | None = None,
) -> QueuePartition:
    return QueuePartition(number, end - depth, end, depth, in_flight, redelivered, oldest_ms)


def group(
    *parts: QueuePartition, topics: tuple[str, ...] = ("jobs",), letters: DeadLetters | None = None
) -> KnownGroup:
    members = (
        ShareGroupMember("m1", "anna", "/h", (TopicPartition("jobs", 0),)),
        ShareGroupMember("m2", "ben", "/h", (TopicPartition("other", 1),)),
    )
    info = ShareGroupInfo("resizers", "Stable", members, 2)
    queues = tuple(QueueStats(topic, "resizers", "Stable", 2, parts) for topic in topics)
    return KnownGroup(GroupQueues(info, queues), letters.topic if letters else "", letters)


def lines(history: History, figure: str, name: QueueName = NAME) -> dict[str, float | None]:
    """Returns the last value of each line of a chart."""
    found = history.read(name.scope, NOW_MS, 300)["figures"].get(figure, {"lines": {}})["lines"]
    return {line: values[-1] for line, values in found.items()}


def test_a_row_sums_up_the_partitions() -> None:
    table = QueueTable()
    first = part(5, 10, in_flight=2, redelivered=1, oldest_ms=700)
    second = part(3, 4, number=1, in_flight=1, redelivered=None, oldest_ms=500)
    table.replace({"resizers": group(first, second, letters=DeadLetters("dlq", 4))}, 0)
    row = table.queues[NAME].as_row()
    assert (row["depth"], row["in_flight"], row["redelivered"], row["oldest_ms"]) == (8, 3, 1, 500)
    assert (row["members"], row["letters_topic"], row["letters"]) == (1, "dlq", 4)
    assert [each["partition"] for each in partition_rows(table.queues[NAME].stats)] == [0, 1]
    shown = member_rows(table.queues[NAME].group, "jobs")
    assert [(each["client_id"], each["partitions"]) for each in shown] == [
        ("anna", [0]),
        ("ben", []),
    ]


def test_what_a_broker_does_not_know_is_not_zero() -> None:
    """Apache Kafka does not say how many jobs are in flight."""
    table = QueueTable()
    known = part(5, 10, in_flight=1, redelivered=0)
    table.replace({"resizers": group(known, part(1, 1, in_flight=None, redelivered=None))}, 0)
    row = table.queues[NAME].as_row()
    assert (row["depth"], row["in_flight"], row["redelivered"]) == (6, None, 0)


def test_a_search_looks_at_topics_and_groups() -> None:
    table = QueueTable()
    table.replace({"resizers": group(part(0, 0), topics=("jobs", "pictures"))}, 3)
    assert table.named("") == [NAME, QueueName("pictures", "resizers")]
    assert table.named("PICT size") == [QueueName("pictures", "resizers")]
    assert table.named("pict jobs") == []
    assert table.unlisted == 3


def test_charts_get_ages_rates_and_letters() -> None:
    table, history = QueueTable(), History()
    before = table.replace({"resizers": group(part(5, 10))}, 0)
    table.record(history, NOW_MS - 4_000, 0.0, before)
    assert lines(history, "rates") == {}, "there is nothing to compare with"
    now = part(7, 20, in_flight=3, redelivered=2, oldest_ms=NOW_MS - 1_500)
    before = table.replace({"resizers": group(now, letters=DeadLetters("dlq", 4))}, 0)
    table.record(history, NOW_MS, 4.0, before)
    assert lines(history, "depth") == {"not done": 7, "in flight": 3}
    assert lines(history, "rates") == {"put": 2.5, "done": 2.0}
    assert lines(history, "oldest_s") == {"oldest job": 1.5}
    assert lines(history, "redelivered") == {"delivered before": 2}
    assert lines(history, "letters") == {"dead letters": 4}
    assert lines(history, "members") == {"members": 1}


def test_an_empty_queue_has_no_old_job_and_an_unknown_age_is_a_gap() -> None:
    table, history = QueueTable(), History()
    table.record(history, NOW_MS, 0.0, table.replace({"resizers": group(part(0, 10))}, 0))
    assert lines(history, "oldest_s") == {"oldest job": 0}
    other = History()
    table.record(other, NOW_MS, 0.0, table.replace({"resizers": group(part(1, 10))}, 0))
    assert lines(other, "oldest_s") == {}


def test_of_many_queues_only_the_depth_is_recorded_unless_a_page_shows_them() -> None:
    topics = tuple(f"t{number}" for number in range(DETAILED_MAX + 1))
    table, history = QueueTable(), History()
    first, second = (QueueName(topic, "resizers") for topic in topics[:2])
    history.follow(second.scope, NOW_MS)
    table.record(history, NOW_MS, 0.0, table.replace({"g": group(part(1, 1), topics=topics)}, 0))
    assert lines(history, "depth", first) == {"not done": 1}
    assert lines(history, "members", first) == {}
    assert lines(history, "depth", second) == {"not done": 1, "in flight": 0}
    assert lines(history, "members", second) == {"members": 0}
