"""Groups with members move between the classic and the new protocol, and keep their offsets."""

from __future__ import annotations

import pytest

from penstock.groups.config import (
    ConsumerGroupConfig,
    ConsumerGroupSettings,
    GroupConfig,
    MigrationPolicy,
)
from penstock.groups.consumer.records import MemberState
from penstock.groups.group import State
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
)

from .bench import ConsumerBench, Member, code, join_request
from .classic import ClassicClient, ids_of, run, send

EAGER_AND_COOPERATIVE = pytest.mark.parametrize("is_cooperative", [False, True])


def bench_of(
    policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL, group_size_max: int = 1_000
) -> ConsumerBench:
    settings = ConsumerGroupSettings(assignment_interval_ms=0)
    return ConsumerBench(
        consumer=ConsumerGroupConfig(settings, group_size_max, migration_policy=policy)
    )


def settle(bench: ConsumerBench, members: list[Member], clients: list[ClassicClient]) -> None:
    """Lets all members work until the consumer group is stable."""
    for _ in range(12):
        for member in members:
            assert bench.beat(member).error_code == 0
        for client in clients:
            client.step(bench)
        bench.advance(1_000)
        bench.shard.verify()
        if bench.state == "Stable" and all(each.phase == "running" for each in clients):
            return
    raise AssertionError(f"the group is {bench.state}: {clients}")


def check_all_owned(
    bench: ConsumerBench, members: list[Member], clients: list[ClassicClient]
) -> None:
    owned = [*(each for one in members for each in one.owned)]
    owned += [each for one in clients for each in ids_of(bench, one)]
    assert len(owned) == len(set(owned)), "a partition has two owners"
    assert set(owned) == bench.topics.partitions(["orders"])


def offsets(bench: ConsumerBench) -> dict[int, int]:
    held = bench.shard.state.image.offsets_of("g")
    return {about[1]: value.offset for about, value in held.items()}


def classic_pair(bench: ConsumerBench, **options: object) -> list[ClassicClient]:
    clients = [ClassicClient(name, **options) for name in ("x", "y")]  # type: ignore[arg-type]
    run(bench, *clients)
    return clients


@EAGER_AND_COOPERATIVE
def test_a_live_group_moves_to_the_new_protocol_and_back(is_cooperative: bool) -> None:
    bench = bench_of()
    clients = classic_pair(bench, is_cooperative=is_cooperative)
    x, y = clients
    assert bench.commit(x.member_id, x.generation, {0: 10}, version=8) == [0]
    generation = x.generation

    a = Member("a")
    assert bench.join(a).error_code == 0
    assert [each.group_type for each in bench.shard.list_groups()] == ["consumer"]
    assert bench.group.epoch == generation + 1
    settle(bench, [a], clients)
    check_all_owned(bench, [a], clients)
    assert x.generation == y.generation == a.epoch == generation + 1
    assert len(a.owned) == len(x.owned) == len(y.owned) == 2
    assert offsets(bench) == {0: 10}
    assert bench.commit(x.member_id, x.generation, {1: 11}, version=8) == [0]

    errors = len(x.errors)
    assert bench.leave(a).error_code == 0
    assert bench.shard.state.require_classic("g").state is State.PREPARING
    run(bench, x, y)
    check_all_owned(bench, [], clients)
    assert x.errors[errors] is ErrorCode.REBALANCE_IN_PROGRESS, "its generation is still known"
    assert [each.group_type for each in bench.shard.list_groups()] == ["classic"]
    assert offsets(bench) == {0: 10, 1: 11}
    assert "g" not in bench.shard.state.image.consumer_groups


@EAGER_AND_COOPERATIVE
def test_members_move_one_by_one(is_cooperative: bool) -> None:
    """A rolling restart, to the new protocol and back to the classic one."""
    bench = bench_of()
    clients = classic_pair(bench, is_cooperative=is_cooperative)
    members = [Member("a"), Member("b")]
    for member in members:
        clients.pop().leave(bench)
        bench.join(member)
        settle(bench, members[: members.index(member) + 1], clients)
    check_all_owned(bench, members, [])
    for name in ("u", "v"):
        bench.leave(members.pop())
        clients.append(ClassicClient(name, is_cooperative=is_cooperative))
        if members:
            settle(bench, members, clients)
        else:
            run(bench, *clients)
        check_all_owned(bench, members, clients)
    assert bench.shard.state.require_classic("g").state is State.STABLE


def test_an_upgrade_in_the_middle_of_a_rebalance_knows_what_members_still_read() -> None:
    """When a rebalance is interrupted, the classic group forgets its assignments. Cooperative
    members go on reading meanwhile, and have told what."""
    bench = bench_of()
    clients = classic_pair(bench, is_cooperative=True)
    x, y = clients
    held = {client.member_id: ids_of(bench, client) for client in clients}
    z, w = ClassicClient("z"), ClassicClient("w")
    for client in (z, z, x, y, x, y):
        client.step(bench)
    assert bench.shard.state.require_classic("g").state is State.COMPLETING
    for _ in range(2):
        w.step(bench)
    classic = bench.shard.state.require_classic("g")
    assert classic.state is State.PREPARING
    assert not any(member.assignment for member in classic.members.values())

    a = Member("a")
    assert bench.join(a).error_code == 0
    assert not a.owned, "all partitions are still being read"
    for member_id, partitions in held.items():
        assert {each for each, owner in bench.group.owners.items() if owner == member_id} == (
            partitions
        )
    settle(bench, [a], [x, y, z, w])
    check_all_owned(bench, [a], [x, y, z, w])


def test_a_member_of_a_rebalance_is_told_to_join_again() -> None:
    """Its join or sync waits for others when the group is upgraded."""
    bench = bench_of()
    x, y = ClassicClient("x"), ClassicClient("y")
    for client in (x, y, x, y):
        client.step(bench)
    assert x.waits is not None
    a = Member("a")
    assert bench.join(a).error_code == 0
    for client in (x, y):
        client.take(bench)
        assert client.errors == [ErrorCode.REBALANCE_IN_PROGRESS]
    settle(bench, [a], [x, y])
    check_all_owned(bench, [a], [x, y])


def test_a_sync_that_waits_is_answered_by_the_upgrade() -> None:
    bench = bench_of()
    x, y = ClassicClient("x"), ClassicClient("y")
    for client in (x, y, x, y):
        client.step(bench)
    bench.advance(10_000)
    for client in (x, y):
        client.take(bench)
    follower = next(each for each in (x, y) if not each.leads)
    follower.step(bench)
    assert follower.waits is not None
    bench.join(Member("a"))
    follower.take(bench)
    assert follower.errors == [ErrorCode.REBALANCE_IN_PROGRESS]


def test_the_policy_decides() -> None:
    for policy in MigrationPolicy:
        bench = bench_of(policy)
        clients = classic_pair(bench)
        a = Member("a")
        expected = ErrorCode.NONE if policy.upgrades else ErrorCode.GROUP_ID_NOT_FOUND
        assert code(bench.join(a)) is expected
        if not policy.upgrades:
            assert "migration.policy" in (a.answers[-1].error_message or "")
            assert bench.shard.state.require_classic("g").state is State.STABLE
            continue
        settle(bench, [a], clients)
        bench.leave(a)
        is_classic = bench.shard.state.classic("g") is not None
        assert is_classic is policy.downgrades
        if not is_classic:
            settle(bench, [], clients)
            check_all_owned(bench, [], clients)


def test_classic_members_may_join_unless_migration_is_disabled() -> None:
    for policy in MigrationPolicy:
        bench = bench_of(policy)
        a, x = Member("a"), ClassicClient("x")
        bench.join(a)
        x.step(bench)
        if policy is MigrationPolicy.DISABLED:
            assert x.errors == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
            continue
        settle(bench, [a], [x])
        check_all_owned(bench, [a], [x])
        bench.leave(a)
        assert (bench.shard.state.classic("g") is not None) is policy.downgrades


def test_groups_that_cannot_be_upgraded() -> None:
    bench = bench_of()
    classic_pair(bench, protocol_type="connect")
    assert code(bench.join(Member("a"))) is ErrorCode.GROUP_ID_NOT_FOUND
    bench = bench_of()
    classic_pair(bench, user_data=b"more")
    response = bench.join(Member("a"))
    assert code(response) is ErrorCode.GROUP_ID_NOT_FOUND
    assert "custom assignor" in (response.error_message or "")
    bench = bench_of(group_size_max=1)
    classic_pair(bench)
    assert code(bench.join(Member("a"))) is ErrorCode.GROUP_ID_NOT_FOUND
    bench = bench_of()
    classic_pair(bench)
    bench.batch_bytes_max = 300
    response = bench.join(Member("a"))
    assert code(response) is ErrorCode.GROUP_ID_NOT_FOUND
    assert "max.message.bytes" in (response.error_message or "")


def test_a_member_that_is_not_joining_gets_no_fatal_error_from_a_classic_group() -> None:
    """It was removed, and the group downgraded, before it could know."""
    bench = bench_of()
    clients = classic_pair(bench)
    a = Member("a")
    bench.join(a)
    settle(bench, [a], clients)
    bench.leave(a)
    assert code(bench.beat(a)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_downgrade_that_does_not_fit_into_a_batch_is_left_out() -> None:
    bench = bench_of()
    clients = classic_pair(bench)
    a = Member("a")
    bench.join(a)
    settle(bench, [a], clients)
    bench.batch_bytes_max = 400
    bench.leave(a)
    settle(bench, [], clients)
    check_all_owned(bench, [], clients)
    assert bench.group.is_classic_only


def test_the_session_of_the_last_new_member_ends() -> None:
    bench = bench_of()
    clients = classic_pair(bench)
    a = Member("a")
    bench.join(a)
    settle(bench, [a], clients)
    for _ in range(20):
        for client in clients:
            client.step(bench)
        bench.advance(3_000)
        for client in clients:
            client.take(bench)
    assert bench.shard.state.classic("g") is not None
    run(bench, *clients)
    check_all_owned(bench, [], clients)


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    bench = bench_of()
    x, y = ClassicClient("x", instance="one"), ClassicClient("y", instance="two")
    run(bench, x, y)
    had = ids_of(bench, x)
    a = Member("a", instance="one")
    bench.join(a)
    assert a.owned == had, "it takes over what its instance had"
    assert set(bench.group.members) == {"a", y.member_id}
    settle(bench, [a], [y])
    x.step(bench)
    assert x.errors[-1] is ErrorCode.FENCED_INSTANCE_ID
    back = ClassicClient("z", instance="one")
    back.step(bench)
    assert back.errors == [ErrorCode.REBALANCE_IN_PROGRESS], "the last new member was replaced"
    assert bench.shard.state.classic("g") is not None
    run(bench, y, back)
    check_all_owned(bench, [], [y, back])


def test_a_classic_member_is_removed_if_it_does_not_come_back_in_time() -> None:
    bench = bench_of()
    x = ClassicClient("x", rebalance_ms=20_000)
    a, b = Member("a"), Member("b")
    bench.join(a)
    settle(bench, [a], [x])
    bench.join(b)
    for _ in range(4):
        # It sends heartbeats, and ignores that it is told to join again.
        assert beat(bench, x) is ErrorCode.REBALANCE_IN_PROGRESS
        bench.advance(4_000)
        bench.beat(a)
        bench.beat(b)
    bench.advance(5_000)
    assert beat(bench, x) is ErrorCode.UNKNOWN_MEMBER_ID
    assert set(bench.group.members) == {"a", "b"}


def test_a_classic_member_that_never_syncs_is_removed() -> None:
    bench = bench_of()
    x = ClassicClient("x", rebalance_ms=20_000)
    a = Member("a")
    bench.join(a)
    while x.phase != "joined":
        x.step(bench)
    for _ in range(3):
        bench.advance(8_000)
        bench.beat(a)
        beat(bench, x)
    assert set(bench.group.members) == {"a"}


def test_a_classic_member_whose_session_ends_is_removed() -> None:
    """Its own session timeout counts, not that of the group."""
    bench = bench_of()
    a, x = Member("a"), ClassicClient("x")
    bench.join(a)
    settle(bench, [a], [x])
    bench.advance(10_000)
    assert set(bench.group.members) == {"a"}


def beat(bench: ConsumerBench, client: ClassicClient) -> ErrorCode:
    request = HeartbeatRequest("g", client.generation, client.member_id)
    response = bench.replies[send(bench, request, 4)]
    assert isinstance(response, HeartbeatResponse)
    return ErrorCode(response.error_code)


def test_refusals_of_classic_requests() -> None:
    bench = bench_of()
    a, x = Member("a"), ClassicClient("x")
    bench.join(a)
    settle(bench, [a], [x])
    assert beat(bench, ClassicClient("a", member_id="a", generation=a.epoch)) is (
        ErrorCode.UNKNOWN_MEMBER_ID
    ), "it speaks the new protocol"
    x.generation += 1
    assert beat(bench, x) is ErrorCode.ILLEGAL_GENERATION
    assert bench.commit(x.member_id, x.generation, {0: 1}) == [ErrorCode.ILLEGAL_GENERATION]
    x.generation -= 1
    assert bench.commit(x.member_id, x.generation, {0: 1}) == [0]
    x.protocols, x.phase = ("other",), "joined"
    x.step(bench)
    assert x.errors[-1] is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = ClassicClient("y", protocols=("other",))
    other.step(bench)
    assert other.errors == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
    fenced = ClassicClient("z", instance="one", member_id="z")
    fenced.step(bench)
    assert fenced.errors == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_new_classic_member_gets_its_id_first() -> None:
    bench = bench_of()
    bench.join(Member("a"))
    x = ClassicClient("x")
    x.step(bench)
    assert (x.phase, x.member_id) == ("out", "x-1")
    old = ClassicClient("y", version=3)
    old.step(bench)
    assert (old.phase, old.member_id) == ("joined", "y-1")


def test_a_cooperative_member_gives_up_before_others_get() -> None:
    bench = bench_of()
    x = ClassicClient("x")
    run(bench, x)
    a = Member("a")
    bench.join(a)
    assert a.owned == set()
    assert beat(bench, x) is ErrorCode.REBALANCE_IN_PROGRESS
    x.phase = "out"
    generation = x.generation
    x.step(bench)
    assert bench.group.current(x.member_id).state is MemberState.UNREVOKED
    assert x.generation == generation, "it commits under this generation until it has given up"
    x.step(bench)
    bench.beat(a)
    assert (len(x.owned), x.phase, a.owned) == (3, "out", set())
    x.step(bench)
    bench.beat(a)
    assert len(a.owned) == 3
    assert x.generation == generation + 1


def test_a_conversion_that_cannot_be_stored_is_undone() -> None:
    bench = bench_of()
    clients = classic_pair(bench)
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    a = Member("a")
    assert code(bench.join(a)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.fails_log = None
    group = bench.shard.state.require_classic("g")
    assert (group.state, len(group.members)) == (State.STABLE, 2)
    run(bench, *clients)
    assert clients[0].errors == [], "nothing has happened to the members"
    bench.join(a)
    settle(bench, [a], clients)
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    assert code(bench.leave(a)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.fails_log = None
    assert bench.state == "Stable"
    assert bench.beat(a).error_code == 0
    settle(bench, [a], clients)


def test_requests_that_wait_for_a_downgrade_are_answered() -> None:
    bench = bench_of()
    clients = classic_pair(bench)
    a, b = Member("a"), Member("b")
    bench.join(a)
    settle(bench, [a], clients)
    bench.holds_log = True
    leaving = bench.send(ConsumerGroupHeartbeatRequest("g", "a", -1))
    joining = bench.send(join_request(b))
    clients[0].step(bench)
    waits = clients[0].waits
    assert waits not in bench.replies
    bench.holds_log = False
    bench.settle()
    assert bench.answer(leaving).error_code == 0
    assert code(bench.answer(joining)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert waits in bench.replies
    clients[0].take(bench)
    assert bench.join(b).error_code == 0
    settle(bench, [b], clients)


def test_describe_tells_which_members_are_classic() -> None:
    bench = bench_of()
    clients = classic_pair(bench)
    bench.join(Member("a"))
    found = bench.shard.describe_consumer_group("g")
    types = {each.member_id: each.member_type for each in found.members}
    assert types == {clients[0].member_id: 0, clients[1].member_id: 0, "a": 1}


def test_the_classic_group_may_be_smaller_than_the_consumer_group() -> None:
    settings = ConsumerGroupConfig(ConsumerGroupSettings(assignment_interval_ms=0))
    bench = ConsumerBench(consumer=settings, config=GroupConfig(group_size_max=2))
    clients = classic_pair(bench)
    a, z = Member("a"), ClassicClient("z")
    bench.join(a)
    settle(bench, [a], [*clients, z])
    bench.leave(a)
    assert bench.group.is_classic_only, "three members are too many for a classic group"
    z.leave(bench)
    assert bench.shard.state.classic("g") is not None


def test_join_answers_have_no_leader() -> None:
    bench = bench_of()
    bench.join(Member("a"))
    x = ClassicClient("x", version=3)
    response = bench.replies[send(bench, x.joins(), 3)]
    assert isinstance(response, JoinGroupResponse)
    assert (response.leader, response.members) == ("", [])
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
