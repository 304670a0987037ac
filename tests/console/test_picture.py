"""Tests the console's snapshot of the cluster: problems with advice, events, rates."""

from __future__ import annotations

from penstock.client.address import Address
from penstock.client.admin.groups import GroupListing
from penstock.client.admin.inspection import LogDirInfo, ReplicaInfo
from penstock.client.admin.operations import BrokerInfo, ClusterInfo, PartitionInfo, TopicInfo
from penstock.console.history import BROKERS, CLUSTER, Scope
from penstock.console.picture import DETAILED_MAX, GroupLag, Picture
from penstock.topic_partition import TopicPartition

P0 = TopicPartition("t", 0)


def cluster(*ids: int, controller: int = 0) -> ClusterInfo:
    brokers = tuple(BrokerInfo(each, Address("h", 9092 + each), None) for each in ids)
    return ClusterInfo("c", controller, brokers)


def topic(leader: int, in_sync: tuple[int, ...], replicas: tuple[int, ...] = (0, 1)) -> TopicInfo:
    part = PartitionInfo(0, leader, 1, replicas, in_sync, ())
    return TopicInfo("t", "id", False, (part,))


def picture(*ids: int, **topics: TopicInfo) -> Picture:
    seen = Picture("h:9092")
    seen.on_brokers(1_000, cluster(*ids), frozenset())
    seen.on_topics(list(topics.values()))
    return seen


def drawn(seen: Picture, scope: Scope, figure: str, now_ms: int) -> dict[str, list[float | None]]:
    """Returns the lines of a chart, from the first value of any of them."""
    found = seen.history.read(scope, now_ms, 300)["figures"].get(figure, {"lines": {}})["lines"]
    empty = min(
        (next(at for at, each in enumerate(line) if each is not None) for line in found.values()),
        default=0,
    )
    return {name: line[empty:] for name, line in found.items()}


def titles(seen: Picture) -> list[str]:
    return [f"{each.severity}: {each.title}" for each in seen.problems()]


def test_a_healthy_cluster_has_no_problems() -> None:
    """And no events."""
    seen = picture(0, 1, t=topic(0, (0, 1)))
    assert titles(seen) == []
    assert list(seen.events) == []


def test_an_unreachable_cluster_is_the_only_problem() -> None:
    """Problems known from before are not shown."""
    seen = picture(0, 1, t=topic(-1, ()))
    seen.on_unreachable(2_000, "refused")
    assert titles(seen) == ["critical: no broker can be reached: refused"]
    seen.on_brokers(3_000, cluster(0, 1), frozenset())
    assert [event["text"] for event in seen.events] == [
        "no broker can be reached: refused",
        "the cluster can be reached again",
    ]


def test_a_broker_stops_answering_leaves_and_returns() -> None:
    """Each step is an event. The problem is shown as long as it lasts."""
    seen = picture(0, 1, t=topic(0, (0, 1)))
    seen.on_brokers(2_000, cluster(0, 1), frozenset({1}))
    assert titles(seen) == ["critical: broker 1 is not responding"]
    seen.on_brokers(3_000, cluster(0), frozenset())
    seen.on_topics([topic(0, (0,))])
    assert titles(seen) == [
        "critical: broker 1 is not running",
        "warning: 1 partition under-replicated: t-0",
    ]
    assert "start the missing brokers" in seen.problems()[1].advice
    seen.on_brokers(4_000, cluster(0, 1, controller=1), frozenset())
    seen.on_topics([topic(0, (0, 1))])
    assert titles(seen) == []
    assert [event["text"] for event in seen.events] == [
        "broker 1 is not responding",
        "broker 1 has left the cluster",
        "broker 1 has joined the cluster",
        "broker 1 is the controller now",
    ]


def test_a_missing_broker_without_replicas_is_forgotten() -> None:
    """After a while. A broker that has replicas is not forgotten."""
    seen = picture(0, 1, 2, t=topic(0, (0, 1)))
    seen.on_brokers(2_000, cluster(0), frozenset())
    assert seen.missing == {1, 2}
    seen.on_brokers(120_000, cluster(0), frozenset())
    assert seen.missing == {1}


def test_partition_problems_by_severity() -> None:
    """Fewer replicas than configured, fewer than acks=all needs, and no leader."""
    seen = picture(0, 1, t=topic(0, (0,)))
    assert titles(seen) == ["warning: 1 partition under-replicated: t-0"]
    seen.least_in_sync = {"t": 2}
    assert titles(seen) == ["critical: 1 partition below min.insync.replicas: t-0"]
    seen.on_topics([topic(-1, ())])
    assert titles(seen) == ["critical: 1 partition without a leader: t-0"]


def test_full_disks_are_a_problem() -> None:
    """By broker, with the space that is left."""
    seen = picture(0, 1, t=topic(0, (0, 1)))
    seen.on_log_dirs(0, [LogDirInfo(0, "/data", {P0: ReplicaInfo(70, 0)}, 1000, 50)], 0.0)
    assert titles(seen) == ["warning: the disk of broker 0 is nearly full: 5 % left"]
    assert seen.topic_bytes["t"] == 70
    assert seen.brokers()[0]["size_bytes"] == 70


def test_rates_are_computed_from_log_growth() -> None:
    """Over the time between two surveys. A log that was truncated counts as zero."""
    seen = picture(0, 1, t=topic(0, (0, 1)))
    seen.on_ends(1_000, {P0: 100}, 0.0)
    assert drawn(seen, CLUSTER, "records", 3_000) == {}
    seen.on_ends(3_000, {P0: 150}, 2.0)
    assert drawn(seen, CLUSTER, "records", 3_000) == {"written": [25.0]}
    assert seen.brokers()[0]["records_per_s"] == 25.0
    seen.on_ends(5_000, {P0: 10}, 2.0)
    assert drawn(seen, CLUSTER, "records", 5_000) == {"written": [25.0, 0.0]}
    assert drawn(seen, ("topic", "t"), "records", 5_000) == {"written": [25.0, 0.0]}
    lines = drawn(seen, BROKERS, "records", 5_000)
    assert lines == {"broker 0": [25.0, 0.0], "broker 1": [0.0, 0.0]}


def test_a_growing_lag_is_a_problem() -> None:
    """A group that is far behind but catching up is not."""
    seen = picture(0, 1, t=topic(0, (0, 1)))
    group = GroupLag(GroupListing("g", "Stable", "consumer", "classic"), members=2)
    seen.groups["g"] = group
    for number in range(6):
        group.add({P0: 1_000 + number}, {P0: 0})
    assert titles(seen) == ["warning: group g is falling behind: lag 1,005"]
    group.add({P0: 1_004}, {P0: 0})
    assert titles(seen) == []


def test_byte_rates_are_computed_from_log_growth() -> None:
    """A partition counts once in the total, and on each broker that has a replica. Retention
    never makes a rate negative."""
    seen = picture(0, 1, t=topic(0, (0, 1)))

    def look(now_ms: int, one: int, other: int) -> None:
        directories = [
            LogDirInfo(0, "/a", {P0: ReplicaInfo(one, 0)}, 1000, 500),
            LogDirInfo(1, "/b", {P0: ReplicaInfo(other, 0)}, 1000, 500),
        ]
        seen.on_log_dirs(now_ms, directories, 2.0)

    look(1_000, 100, 100)
    assert drawn(seen, CLUSTER, "bytes", 1_000) == {}
    look(3_000, 500, 400)
    assert drawn(seen, CLUSTER, "bytes", 3_000) == {"written": [200.0]}
    assert [row["bytes_per_s"] for row in seen.brokers()] == [200.0, 150.0]
    look(5_000, 50, 400)
    assert seen.byte_rate == 0.0
    lines = drawn(seen, BROKERS, "bytes", 5_000)
    assert lines == {"broker 0": [200.0, 0.0], "broker 1": [150.0, 0.0]}
    assert drawn(seen, ("topic", "t"), "size", 5_000) == {"one replica": [100, 500, 400]}
    assert drawn(seen, BROKERS, "disk", 5_000)["broker 0"] == [500, 500, 500]


def test_a_broker_that_is_away_has_a_gap() -> None:
    """Not zeros. The size of a topic does not drop meanwhile."""
    seen = picture(0, 1, t=topic(0, (0, 1)))

    def look(now_ms: int, *sizes: int) -> None:
        directories = [
            LogDirInfo(broker, "/a", {P0: ReplicaInfo(size, 0)}, 1000, 500)
            for broker, size in enumerate(sizes)
        ]
        seen.on_log_dirs(now_ms, directories, 2.0)

    for now_ms, *sizes in ((1_000, 10, 10), (3_000, 20, 20), (5_000, 30), (7_000, 40, 40)):
        look(now_ms, *sizes)
    look(9_000, 50, 50)
    lines = drawn(seen, BROKERS, "bytes", 9_000)
    assert lines == {"broker 0": [5, 5, 5, 5], "broker 1": [5, None, None, 5]}
    assert drawn(seen, BROKERS, "logs", 9_000)["broker 1"] == [10, 20, None, 40, 50]
    assert drawn(seen, ("topic", "t"), "size", 9_000) == {"one replica": [10, 20, 30, 40, 50]}


def test_a_topic_without_leaders_has_no_rate() -> None:
    """Its rate is unknown, not zero, until its end offsets are known twice."""
    seen = picture(0, 1, t=topic(0, (0, 1)))
    for now_ms, ends in ((1_000, {P0: 0}), (3_000, {P0: 10}), (5_000, {}), (7_000, {P0: 99})):
        seen.on_ends(now_ms, ends, 2.0)
    seen.on_ends(9_000, {P0: 109}, 2.0)
    lines = drawn(seen, ("topic", "t"), "records", 9_000)
    assert lines == {"written": [5.0, None, None, 5.0]}
    assert drawn(seen, CLUSTER, "records", 9_000) == lines


def test_problems_and_answer_times_are_recorded() -> None:
    """Problems also while the cluster cannot be reached. Nobody answers then."""
    seen = Picture("h:9092")
    seen.on_brokers(2_000, cluster(0, 1), frozenset(), {0: 2.0, 1: 4.0})
    seen.on_brokers(4_000, cluster(0, 1), frozenset({1}), {0: 3.0})
    seen.on_unreachable(6_000, "refused")
    assert drawn(seen, CLUSTER, "problems", 6_000)["critical"] == [0, 1, 1]
    assert drawn(seen, CLUSTER, "answer_ms", 6_000) == {"slowest broker": [4.0, 3.0, None]}
    lines = drawn(seen, BROKERS, "answer_ms", 6_000)
    assert lines == {"broker 0": [2.0, 3.0, None], "broker 1": [4.0, None, None]}


def test_lags_are_recorded() -> None:
    """By partition only for a group that a page shows. A lag that is not known is a gap."""
    seen = picture(0, 1, t=topic(0, (0, 1)))
    seen.groups["g"] = GroupLag(GroupListing("g", "Stable", "consumer", "classic"))
    seen.on_lags(2_000, 0.0, {"g": ({P0: 30}, {P0: 10})})
    seen.history.follow(("group", "g"), 3_000)
    seen.on_lags(4_000, 2.0, {"g": ({P0: 20}, {P0: 20}), "deleted": ({}, {})})
    seen.on_lags(6_000, 2.0, {"g": ({}, {P0: 26})})
    scope = "group", "g"
    assert drawn(seen, scope, "lag", 6_000) == {"all partitions": [30, 20, None]}
    assert drawn(seen, scope, "partitions", 6_000) == {"t-0": [20, None]}
    assert drawn(seen, scope, "records", 6_000) == {"read": [5.0, 3.0]}
    assert drawn(seen, CLUSTER, "records", 6_000) == {"read by groups": [5.0, 3.0]}


def test_the_lag_is_also_recorded_in_seconds() -> None:
    """As soon as the console knows when the unread records were written."""
    seen = picture(0, 1, t=topic(0, (0, 1)))
    seen.groups["g"] = GroupLag(GroupListing("g", "Stable", "consumer", "classic"))
    for now_ms, end in ((2_000, 10), (4_000, 20), (6_000, 30)):
        seen.on_ends(now_ms, {P0: end}, 2.0)
        seen.on_lags(now_ms, 2.0, {"g": ({P0: end - 9}, {P0: 9 if end < 30 else 20})})
    lines = drawn(seen, ("group", "g"), "lag_s", 6_000)
    assert lines == {"oldest unread record": [2.0]}


def test_with_many_topics_only_those_that_are_looked_at_have_a_history() -> None:
    """In a small cluster all have one."""
    names = [f"t{number}" for number in range(DETAILED_MAX + 1)]
    part = PartitionInfo(0, 0, 1, (0,), (0,), ())
    seen = picture(0, **{name: TopicInfo(name, name, False, (part,)) for name in names})
    seen.history.follow(("topic", "t7"), 1_000)
    for now_ms, end in ((1_000, 0), (3_000, 10)):
        seen.on_ends(now_ms, {TopicPartition(name, 0): end for name in names}, 2.0)
    assert drawn(seen, ("topic", "t7"), "records", 3_000) == {"written": [5.0]}
    assert drawn(seen, ("topic", "t8"), "records", 3_000) == {}
