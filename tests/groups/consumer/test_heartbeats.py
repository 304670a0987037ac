"""ConsumerGroupHeartbeat: joining, reconciling, changing, leaving, and every refusal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.groups.config import ConsumerGroupConfig, ConsumerGroupSettings
from penstock.groups.consumer.records import MemberState
from penstock.groups.effects import TimerKey, TimerKind
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ConsumerGroupHeartbeatRequest

from .bench import EAGER, ConsumerBench, Member, code, join_request, listed


def test_the_first_member_gets_everything_at_once() -> None:
    bench = ConsumerBench()
    a = Member("a")
    response = bench.join(a)
    assert (response.error_code, response.member_id, response.member_epoch) == (0, "a", 1)
    assert response.heartbeat_interval_ms == 5_000
    assert a.owned == bench.topics.partitions(["orders"])
    assert bench.state == "Stable"


def test_a_second_member_waits_until_the_first_gave_up_its_share() -> None:
    bench = ConsumerBench()
    a, b = Member("a"), Member("b")
    bench.join(a)
    response = bench.join(b)
    assert (b.epoch, b.owned, bench.state) == (2, set(), "Reconciling")
    assert response.assignment is not None, "a member that joins is told that it owns nothing"
    kept = bench.beat(a)
    assert (kept.member_epoch, len(a.owned)) == (1, 3), "the epoch stays until it has given up"
    assert bench.beat(b).assignment is None, "the partitions are still revoked from the first"
    assert bench.beat(a).member_epoch == 2
    assert bench.beat(b).member_epoch == 2
    assert (len(a.owned), len(b.owned), a.owned & b.owned) == (3, 3, set())
    assert bench.state == "Stable"


def test_an_unchanged_heartbeat_writes_nothing_and_says_nothing() -> None:
    bench = ConsumerBench()
    a = Member("a")
    bench.join(a)
    before = len(bench.log)
    response = bench.ask(ConsumerGroupHeartbeatRequest("g", "a", 1))
    assert (response.member_epoch, response.assignment) == (1, None)
    assert len(bench.log) == before


def test_a_full_request_is_answered_with_the_assignment() -> None:
    bench = ConsumerBench()
    a = Member("a")
    bench.join(a)
    response = bench.beat(a, rebalance_timeout_ms=60_000, subscribed_topic_names=["orders"])
    assert response.assignment is not None
    assert a.owned == bench.topics.partitions(["orders"])


def test_an_empty_assignment_differs_from_none() -> None:
    bench = ConsumerBench({"orders": 1})
    a, b = Member("a"), Member("b")
    bench.join(a)
    response = bench.join(b)
    assert response.assignment is not None
    assert response.assignment.topic_partitions == []


def test_a_changed_subscription_moves_the_member_on() -> None:
    bench = ConsumerBench({"orders": 2, "payments": 2})
    a = Member("a")
    bench.join(a)
    response = bench.beat(a, subscribed_topic_names=["payments"])
    assert (response.member_epoch, a.owned) == (1, set())
    bench.beat(a)
    assert (a.epoch, a.owned) == (2, bench.topics.partitions(["payments"]))


def test_topics_that_change_raise_the_epoch_at_the_next_heartbeat() -> None:
    bench = ConsumerBench({"orders": 2})
    a = Member("a", names=("orders", "later"))
    bench.join(a)
    changes: list[Callable[[], None]] = [
        lambda: bench.topics.grow("orders", 4),
        lambda: bench.topics.create("later", 1),
        lambda: bench.topics.delete("orders"),
    ]
    for change in changes:
        change()
        epoch = a.epoch
        assert bench.beat(a).member_epoch == epoch, "nobody has told the shard"
        bench.shard.on_topics_changed(bench.topics.touched(), created=True)
        bench.settle_members(a)
        assert a.epoch == epoch + 1
        assert a.owned == bench.topics.partitions(["orders", "later"])
    bench.shard.on_topics_changed(bench.topics.touched(), created=True)
    assert bench.beat(a).member_epoch == a.epoch, "topics that nobody reads change nothing"


def test_a_topic_that_is_deleted_during_its_revocation() -> None:
    bench = ConsumerBench({"orders": 4})
    a, b = Member("a"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.beat(a)
    assert bench.group.current("a").state is MemberState.UNREVOKED
    bench.topics.delete("orders")
    bench.shard.on_topics_changed(bench.topics.touched(), created=False)
    bench.settle_members(a, b)
    assert (a.owned, b.owned) == (set(), set())


def test_the_target_is_computed_at_most_once_in_an_interval() -> None:
    settings = ConsumerGroupSettings(assignment_interval_ms=1_000)
    bench = ConsumerBench(consumer=ConsumerGroupConfig(settings))
    members = [Member(name) for name in "abc"]
    for member in members:
        bench.join(member)
    assert (bench.group.epoch, bench.group.target_epoch, bench.state) == (3, 1, "Assigning")
    assert [member.epoch for member in members] == [1, 1, 1]
    bench.advance(1_000)
    bench.settle_members(*members)
    assert (bench.group.epoch, bench.group.target_epoch) == (3, 3)
    assert sorted(len(member.owned) for member in members) == [2, 2, 2]


def test_most_members_choose_the_assignor() -> None:
    bench = ConsumerBench({"orders": 3, "payments": 3})
    names = ("orders", "payments")
    members = [Member(each, names, assignor="range") for each in "ab"]
    for member in (*members, Member("c", names)):
        bench.join(member)
    assert bench.shard.describe_consumer_group("g").assignor_name == "range"
    targets = {each.partition for each in bench.group.target("a")}
    assert targets == {0}, "range gives the first member the first partition of each topic"


# Epochs


def test_a_lost_answer_is_given_again() -> None:
    bench = ConsumerBench()
    a, b = Member("a"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.beat(a)
    owned = set(a.owned)
    bench.beat(a)
    assert a.epoch == 2
    again = ConsumerGroupHeartbeatRequest("g", "a", 1, topic_partitions=listed(owned))
    response = bench.ask(again)
    assert (response.error_code, response.member_epoch) == (0, 2)
    assert response.assignment is not None


def test_wrong_epochs_are_fenced() -> None:
    bench = ConsumerBench()
    a, b = Member("a"), Member("b")
    bench.join(a)
    all_partitions = set(a.owned)
    bench.join(b)
    bench.settle_members(a, b)
    for epoch, owned in ((3, a.owned), (1, None), (1, all_partitions)):
        request = ConsumerGroupHeartbeatRequest("g", "a", epoch)
        request.topic_partitions = None if owned is None else listed(owned)
        assert code(bench.ask(request)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert bench.beat(a).error_code == 0


def test_a_member_that_joins_again_continues() -> None:
    """A client that was fenced joins with epoch 0 under the same id."""
    bench = ConsumerBench()
    a, b = Member("a"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.beat(a)
    epoch = bench.group.epoch
    bench.join(a)
    assert (bench.group.epoch, a.epoch, len(a.owned)) == (epoch, 2, 3)
    bench.settle_members(a, b)


def test_unknown_groups_and_members_must_join_again() -> None:
    """GROUP_ID_NOT_FOUND would end the clients."""
    bench = ConsumerBench()
    for epoch in (5, -1):
        request = ConsumerGroupHeartbeatRequest("g", "a", epoch)
        assert code(bench.ask(request)) is ErrorCode.UNKNOWN_MEMBER_ID
    bench.join(Member("a"))
    request = ConsumerGroupHeartbeatRequest("g", "b", 1)
    assert code(bench.ask(request)) is ErrorCode.UNKNOWN_MEMBER_ID


# Leaving and timeouts


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    bench = ConsumerBench()
    a, b = Member("a"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.settle_members(a, b)
    response = bench.leave(a)
    assert (response.error_code, response.member_epoch) == (0, -1)
    bench.beat(b)
    assert b.owned == bench.topics.partitions(["orders"])
    assert bench.leave(b).error_code == 0
    assert bench.state == "Empty"
    assert not {TimerKey(TimerKind.SESSION, "g", name) for name in "ab"} & bench.timers.keys()
    assert code(bench.beat(b)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed() -> None:
    bench = ConsumerBench()
    a, b = Member("a"), Member("b")
    bench.join(a)
    bench.advance(30_000)
    bench.join(b)
    bench.settle_members(a, b)
    bench.advance(30_000)
    bench.beat(b)
    bench.advance(30_000)
    assert list(bench.group.members) == ["b"]
    bench.beat(b)
    assert b.owned == bench.topics.partitions(["orders"])
    bench.advance(45_000)
    assert bench.state == "Empty"


def test_a_member_that_does_not_give_up_its_partitions_is_removed() -> None:
    bench = ConsumerBench()
    a, b = Member("a", rebalance_ms=20_000), Member("b")
    bench.join(a)
    bench.join(b)
    bench.beat(a)
    for _ in range(2):
        bench.advance(10_000)
        bench.ask(ConsumerGroupHeartbeatRequest("g", "a", 1))
        bench.beat(b)
    assert list(bench.group.members) == ["b"]
    bench.settle_members(b)


def test_a_member_that_gives_up_its_partitions_in_time_stays() -> None:
    bench = ConsumerBench()
    a, b = Member("a", rebalance_ms=20_000), Member("b")
    bench.join(a)
    bench.join(b)
    bench.beat(a)
    bench.advance(19_000)
    bench.settle_members(a, b)
    bench.advance(20_000)
    assert list(bench.group.members) == ["a", "b"]


def test_each_revocation_has_its_own_time() -> None:
    """Its epoch does not tell them apart: it stays until the member has given up everything."""
    bench = ConsumerBench()
    a, b, c = Member("a", rebalance_ms=20_000), Member("b"), Member("c")
    bench.join(a)
    bench.join(b)
    bench.beat(a)
    first = set(bench.group.current("a").pending)
    bench.advance(15_000)
    bench.beat(b)
    bench.join(c)
    bench.beat(a)
    second = set(bench.group.current("a").pending)
    assert (len(first), len(second), bench.group.current("a").epoch) == (3, 1, 1)
    assert not first & second
    bench.advance(15_000)
    assert "a" in bench.group.members
    bench.advance(5_000)
    assert "a" not in bench.group.members


# Static members


def test_a_static_member_returns_to_its_partitions() -> None:
    bench = ConsumerBench()
    a, b = Member("a", instance="one"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.settle_members(a, b)
    epoch, owned = bench.group.epoch, set(a.owned)
    assert bench.leave(a, -2).member_epoch == -2
    bench.beat(b)
    assert len(b.owned) == 3, "nobody else gets its partitions"
    again = Member("a2", instance="one")
    assert bench.join(again).error_code == 0
    assert (again.owned, again.epoch, bench.group.epoch) == (owned, epoch, epoch)
    assert code(bench.beat(a, instance_id="one")) is ErrorCode.FENCED_INSTANCE_ID
    assert code(bench.beat(a)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_stays_away_is_removed() -> None:
    bench = ConsumerBench()
    a, b = Member("a", instance="one"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.settle_members(a, b)
    bench.leave(a, -2)
    bench.advance(30_000)
    bench.beat(b)
    bench.advance(30_000)
    assert list(bench.group.members) == ["b"]


def test_a_static_member_that_leaves_during_a_revocation() -> None:
    bench = ConsumerBench()
    a, b = Member("a", instance="one"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.beat(a)
    bench.leave(a, -2)
    bench.beat(b)
    assert len(b.owned) == 3, "what the member had to give up is free"
    again = Member("a2", instance="one")
    bench.join(again)
    bench.settle_members(again, b)
    assert not again.owned & b.owned


def test_a_late_heartbeat_of_a_static_member_that_left_is_fenced() -> None:
    bench = ConsumerBench()
    a = Member("a", instance="one")
    bench.join(a)
    late = ConsumerGroupHeartbeatRequest("g", "a", a.epoch, topic_partitions=listed(a.owned))
    bench.leave(a, -2)
    assert code(bench.ask(late)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert bench.group.current("a").epoch == -2
    again = Member("a2", instance="one")
    assert code(bench.join(again)) is ErrorCode.NONE, "its instance id is free"
    assert again.owned == a.owned


def test_an_instance_id_in_use_is_refused() -> None:
    bench = ConsumerBench()
    bench.join(Member("a", instance="one"))
    response = bench.join(Member("b", instance="one"))
    assert code(response) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert "stop that one first" in (response.error_message or "")
    request = ConsumerGroupHeartbeatRequest("g", "a", 1, "two")
    assert code(bench.ask(request)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_may_omit_its_instance_id() -> None:
    """franz-go sends it only when it joins."""
    bench = ConsumerBench()
    bench.join(Member("a", instance="one"))
    assert bench.ask(ConsumerGroupHeartbeatRequest("g", "a", 1)).error_code == 0
    assert bench.group.members["a"].instance_id == "one"


# Refusals


def joining(**changes: object) -> ConsumerGroupHeartbeatRequest:
    request = join_request(Member("a"))
    for name, value in changes.items():
        setattr(request, name, value)
    return request


@pytest.mark.parametrize(
    "request_",
    [
        joining(group_id=""),
        joining(group_id="g" * 40_000),
        joining(member_id=""),
        joining(instance_id=""),
        joining(rack_id=""),
        joining(rebalance_timeout_ms=-1),
        joining(topic_partitions=None),
        joining(topic_partitions=[ConsumerGroupHeartbeatRequest.TopicPartitions(b"t" * 16, [0])]),
        joining(subscribed_topic_names=None),
        joining(member_epoch=-3),
        joining(subscribed_topic_names=["n" * 100] * 2 + [f"{n:0249}" for n in range(5_000)]),
    ],
)
def test_invalid_requests_are_refused(request_: ConsumerGroupHeartbeatRequest) -> None:
    bench = ConsumerBench()
    response = bench.ask(request_)
    assert code(response) is ErrorCode.INVALID_REQUEST
    assert response.error_message
    assert not bench.shard.state.groups
    assert not bench.log


@pytest.mark.parametrize("instance", ["one", None])
def test_only_static_members_leave_for_a_while(instance: str | None) -> None:
    """The request may lack the instance id: franz-go does not send it."""
    bench = ConsumerBench()
    a = Member("a", instance=instance)
    bench.join(a)
    response = bench.ask(ConsumerGroupHeartbeatRequest("g", "a", -2))
    if instance is None:
        assert code(response) is ErrorCode.INVALID_REQUEST
        assert response.error_message
        assert bench.group.current("a").epoch == 1
    else:
        assert response.member_epoch == bench.group.current("a").epoch == -2


def test_version_0_gets_an_id_from_the_broker() -> None:
    bench = ConsumerBench()
    response = bench.ask(joining(member_id=""), version=0)
    assert response.member_id
    assert list(bench.group.members) == [response.member_id]
    request = ConsumerGroupHeartbeatRequest("g", "", 1)
    assert code(bench.ask(request, version=0)) is ErrorCode.INVALID_REQUEST


def test_unknown_assignors_and_full_groups_are_refused() -> None:
    bench = ConsumerBench(consumer=ConsumerGroupConfig(EAGER.settings, group_size_max=1))
    response = bench.ask(joining(server_assignor="sticky"))
    assert code(response) is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in (response.error_message or "")
    bench.join(Member("a"))
    assert code(bench.join(Member("b"))) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.join(Member("a")).error_code == 0


def test_settings_of_a_group_take_effect() -> None:
    bench = ConsumerBench()
    bench.settings["g"] = ConsumerGroupSettings(60_000, 7_000, 0)
    assert bench.join(Member("a")).heartbeat_interval_ms == 7_000
    bench.advance(50_000)
    assert list(bench.group.members) == ["a"]
    bench.advance(10_000)
    assert bench.state == "Empty"


def test_a_change_of_topics_concerns_only_groups_that_read_them() -> None:
    bench = ConsumerBench({"orders": 2, "payments": 2})
    bench.join(Member("a", names=("orders",)))
    bench.join(Member("b", names=("payments", "later")), group="h")
    bench.join(Member("c", names=(), regex="pay.*"), group="i")
    bench.resolve()
    groups = {name: bench.shard.state.consumer(name) for name in "ghi"}

    def stale(names: list[str], *, created: bool) -> tuple[str, str]:
        for group in groups.values():
            assert group is not None
            group.metadata_is_stale = group.topics_were_created = False
        bench.shard.on_topics_changed(names, created=created)
        kept = {name: group for name, group in groups.items() if group is not None}
        return (
            "".join(name for name, group in kept.items() if group.metadata_is_stale),
            "".join(name for name, group in kept.items() if group.topics_were_created),
        )

    assert stale(["orders"], created=False) == ("g", "")
    assert stale(["later", "orders"], created=True) == ("gh", "i")
    assert stale(["payments"], created=False) == ("hi", "")
    bench.ask(ConsumerGroupHeartbeatRequest("h", "b", -1))
    assert stale(["payments"], created=False) == ("i", "")
    bench.restart()
    groups.update({name: bench.shard.state.consumer(name) for name in "ghi"})
    assert stale(["payments", "orders"], created=True) == ("gi", "i")


def test_the_first_member_after_a_pause_does_not_wait_for_the_interval() -> None:
    settings = ConsumerGroupSettings(assignment_interval_ms=1_000)
    bench = ConsumerBench(consumer=ConsumerGroupConfig(settings))
    a = Member("a")
    bench.join(a)
    bench.leave(a)
    b = Member("b")
    bench.join(b)
    assert b.owned == bench.topics.partitions(["orders"])
