"""Tests the console's snapshot of the cluster: problems with advice, events, rates."""

from __future__ import annotations

from penstock.client.address import Address
from penstock.client.admin.groups import GroupListing
from penstock.client.admin.inspection import LogDirInfo, ReplicaInfo
from penstock.client.admin.operations import BrokerInfo, ClusterInfo, PartitionInfo, TopicInfo
from penstock.console.picture import GroupLag, Picture
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
    assert titles(seen) == ["critical: broker 1 does not answer"]
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
        "broker 1 does not answer",
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
    assert list(seen.rates) == []
    seen.on_ends(3_000, {P0: 150}, 2.0)
    assert list(seen.rates) == [(3_000, 25.0)]
    assert seen.brokers()[0]["records_per_s"] == 25.0
    seen.on_ends(5_000, {P0: 10}, 2.0)
    assert seen.rates[-1] == (5_000, 0)


def test_a_growing_lag_is_a_problem() -> None:
    """A group that is far behind but catching up is not."""
    seen = picture(0, 1, t=topic(0, (0, 1)))
    group = GroupLag(GroupListing("g", "Stable", "consumer", "classic"), members=2)
    seen.groups["g"] = group
    for number in range(6):
        group.add(number, {P0: 1_000 + number})
    assert titles(seen) == ["warning: group g falls behind: lag 1,005"]
    group.add(7, {P0: 1_004})
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
    assert list(seen.byte_rates) == []
    look(3_000, 500, 400)
    assert seen.byte_rates[-1] == (3_000, 200.0)
    assert [row["bytes_per_s"] for row in seen.brokers()] == [200.0, 150.0]
    look(5_000, 50, 400)
    assert seen.byte_rates[-1] == (5_000, 0.0)
