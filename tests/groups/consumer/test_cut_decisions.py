"""Decisions whose records need several batches, cut after each of them.

The next batch fails, or the coordinator dies. Then the log has the first part of the decision only.
Whether the client that asked for it comes back or not: the members that are left soon own all
partitions, and no client gets an error that ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from penstock.groups.consumer.group import ConsumerState
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.image import ShardImage
from penstock.groups.shard import GroupShard
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ConsumerGroupHeartbeatRequest, LeaveGroupRequest

from .bench import ConsumerBench, Member, code, join_request, listed
from .classic import ClassicClient, ids_of, run, send

JOIN_AGAIN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
BATCH_BYTES = 300
ONE_LARGE_RECORD_BYTES = 700
FAILS, DIES = "the next batch fails", "the coordinator dies"


@dataclass
class Scene:
    """A group, and the request whose records are cut."""

    bench: ConsumerBench
    members: list[Member]
    """Those that send heartbeats all the time."""
    ask: Callable[[], object]
    asker: Member | None = None
    """The client that asks, if it may come back and is not one of `members`."""
    classic: list[ClassicClient] = field(default_factory=list)
    batch_bytes: int = BATCH_BYTES


def joined(bench: ConsumerBench, members: list[Member]) -> list[Member]:
    for member in members:
        assert bench.join(member).error_code == 0
    for _ in range(2):
        bench.resolve()
        bench.settle_members(*members)
    return members


def ten(**options: object) -> list[Member]:
    return [Member(f"m{number}", instance=f"i{number}", **options) for number in range(10)]  # type: ignore[arg-type]


def leave_all(bench: ConsumerBench, members: list[Member]) -> None:
    leaving = [LeaveGroupRequest.Member("", each.instance) for each in members]
    send(bench, LeaveGroupRequest("g", members=leaving), 4)


def many_leave() -> Scene:
    bench = ConsumerBench({"orders": 40})
    members = joined(bench, ten())
    return Scene(bench, members[7:], lambda: leave_all(bench, members[:7]))


def one_joins() -> Scene:
    bench = ConsumerBench({"orders": 40})
    new = Member("new")
    members = joined(bench, ten())
    return Scene(bench, members, lambda: bench.send(join_request(new)), new)


def one_subscribes_to_what_others_read() -> Scene:
    """The topics that the group reads stay the same."""
    names = ("orders", "payments", *(f"topic-{number:03}-with-a-long-name" for number in range(9)))
    bench = ConsumerBench(dict.fromkeys(names, 4))
    members = joined(bench, [Member("a", names), Member("b", names), Member("c", ("orders",))])
    changed = members[2]
    changed.names = names[1:]
    request = ConsumerGroupHeartbeatRequest(
        "g",
        "c",
        changed.epoch,
        subscribed_topic_names=list(changed.names),
        topic_partitions=listed(changed.owned),
    )
    return Scene(bench, members, lambda: bench.send(request), batch_bytes=ONE_LARGE_RECORD_BYTES)


def static_member_returns() -> Scene:
    bench = ConsumerBench({"orders": 40})
    members = joined(bench, [Member(f"m{number}") for number in range(3)])
    away = Member("away", instance="i")
    joined(bench, [*members, away])
    bench.leave(away, -2)
    new = Member("away-again", instance="i")
    request = join_request(new)
    return Scene(bench, members, lambda: bench.send(request), new)


def member_takes_the_place_of_another() -> Scene:
    """It has partitions of its own, which nobody is to own then."""
    bench = ConsumerBench({"orders": 40})
    members = joined(bench, [Member(f"m{number}") for number in range(3)])
    away, other = Member("away", instance="i"), Member("other")
    joined(bench, [*members, away, other])
    bench.leave(away, -2)
    other.instance = "i"
    request = join_request(other)
    return Scene(bench, members, lambda: bench.send(request), other)


def regexes_match_more() -> Scene:
    names = [f"orders-{number:03}-with-a-long-name" for number in range(8)]
    bench = ConsumerBench(dict.fromkeys(names, 2))
    readers = [Member("a", tuple(names)), Member("b", (), "orders-.*"), Member("c", (), "ord.*")]
    joined(bench, readers)
    extra = [f"orders-9{number}-with-a-long-name" for number in range(3)]
    for name in extra:
        bench.topics.create(name, 2)
    readers[0].names = (*names, *extra)
    bench.beat(readers[0], subscribed_topic_names=list(readers[0].names))
    bench.settle_members(*readers)
    bench.shard.on_topics_changed(bench.topics.touched(), created=True)
    bench.advance(10_000)
    for member in readers:
        bench.beat(member)
    return Scene(bench, readers, bench.resolve, batch_bytes=800)


def mixed(new: int) -> tuple[ConsumerBench, list[ClassicClient], list[Member]]:
    """A group of three members of the classic protocol, and some of the new one."""
    bench = ConsumerBench({"orders": 12})
    clients = [ClassicClient(name) for name in "xyz"]
    run(bench, *clients)
    members = [Member(f"m{number}", instance=f"i{number}") for number in range(new)]
    for member in members:
        bench.join(member)
    for _ in range(8):
        for member in members:
            bench.beat(member)
        for client in clients:
            client.step(bench)
        bench.advance(1_000)
    assert bench.state == "Stable"
    return bench, clients, members


def classic_members_are_left() -> Scene:
    """The records that make it a classic group are too many for a batch."""
    bench, clients, members = mixed(7)
    return Scene(bench, [], lambda: leave_all(bench, members), classic=clients)


def group_is_downgraded_after_other_decisions() -> Scene:
    bench, clients, members = mixed(4)

    def ask() -> None:
        for member in members:
            rack = ConsumerGroupHeartbeatRequest("g", member.member_id, member.epoch)
            rack.rack_id = "r" * 90
            bench.send(rack)
        leave_all(bench, members)

    return Scene(bench, [], ask, classic=clients, batch_bytes=1_500)


def classic_group_is_upgraded() -> Scene:
    bench = ConsumerBench({"orders": 12})
    clients = [ClassicClient(name) for name in "xyz"]
    run(bench, *clients)
    new = Member("new")
    return Scene(bench, [], lambda: bench.send(join_request(new)), new, clients, 1_100)


SCENES = [
    many_leave,
    one_joins,
    one_subscribes_to_what_others_read,
    static_member_returns,
    member_takes_the_place_of_another,
    regexes_match_more,
    classic_members_are_left,
    group_is_downgraded_after_other_decisions,
    classic_group_is_upgraded,
]


def cut(make: Callable[[], Scene], batches: int, how: str) -> Scene | None:
    """Lets the first batches be committed only. Returns None if there are no more of them."""
    scene = make()
    bench = scene.bench
    bench.holds_log = True
    bench.batch_bytes_max = scene.batch_bytes
    scene.ask()
    for _ in range(batches):
        assert bench.waiting
        bench.settle_one()
    if not bench.waiting:
        return None
    bench.holds_log = False
    if how == FAILS:
        bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
        bench.settle_one()
        bench.fails_log = None
    else:
        bench.restart()
    bench.batch_bytes_max = 1 << 20
    return scene


def cuts(make: Callable[[], Scene], how: str) -> Iterator[Scene]:
    for batches in range(1, 1_000):
        scene = cut(make, batches, how)
        if scene is None:
            assert batches > 1, "the records of the decision are in one batch"
            return
        yield scene


def work(scene: Scene, members: list[Member]) -> None:
    """Lets all members work until those that are gone are removed."""
    bench = scene.bench
    for client in scene.classic:
        client.counts = {name: each.partitions for name, each in bench.topics.known.items()}
    for _ in range(40):
        bench.advance(3_000)
        for member in members:
            if member.epoch == 0:
                bench.join(member)
            else:
                bench.beat(member)
            answer = code(member.answers[-1])
            assert answer in (ErrorCode.NONE, *JOIN_AGAIN)
            if answer is not ErrorCode.NONE:
                member.epoch, member.owned = 0, set()
        for client in scene.classic:
            client.step(bench)
        bench.resolve()
        bench.shard.verify()


def check_owners(scene: Scene, members: list[Member]) -> None:
    bench = scene.bench
    owned: list[TopicIdPartition] = [each for one in members for each in one.owned]
    owned += [each for one in scene.classic for each in ids_of(bench, one)]
    assert len(owned) == len(set(owned)), "a partition has two owners"
    read = {name for one in members for name in one.names}
    read |= {name for one in scene.classic for name in one.topics}
    assert set(owned) == bench.topics.partitions(read)
    group = bench.shard.state.consumer("g")
    if group is not None:
        assert group.state is ConsumerState.STABLE


@pytest.mark.parametrize("how", [FAILS, DIES])
@pytest.mark.parametrize("make", SCENES)
def test_all_partitions_are_owned_if_the_client_comes_back(
    make: Callable[[], Scene], how: str
) -> None:
    for scene in cuts(make, how):
        members = scene.members if scene.asker is None else [*scene.members, scene.asker]
        if scene.asker is not None:
            scene.asker.epoch, scene.asker.owned = 0, set()
        work(scene, members)
        check_owners(scene, members)


@pytest.mark.parametrize("how", [FAILS, DIES])
@pytest.mark.parametrize("make", SCENES)
def test_all_partitions_are_owned_if_the_client_stays_away(
    make: Callable[[], Scene], how: str
) -> None:
    for scene in cuts(make, how):
        work(scene, scene.members)
        check_owners(scene, scene.members)


@pytest.mark.parametrize("make", SCENES)
def test_the_invariants_hold_after_each_batch(make: Callable[[], Scene]) -> None:
    scene = make()
    bench = scene.bench
    bench.batch_bytes_max = scene.batch_bytes
    scene.ask()
    for end in bench.batch_ends:
        shard: GroupShard = bench._new_shard()
        for record in bench.log[:end]:
            shard.replay(record.key, record.value)
        shard.on_loaded(bench.now)
        shard.verify()


def test_offsets_of_a_group_expire_from_the_time_that_it_is_empty() -> None:
    """They would be lost at once if the time of the last assignment counted."""

    def everyone_leaves() -> Scene:
        bench = ConsumerBench()
        members = joined(bench, ten())
        bench.advance(40_000)
        return Scene(bench, [], lambda: leave_all(bench, members))

    for batches in range(1, 100):
        scene = cut(everyone_leaves, batches, DIES)
        if scene is None:
            return
        image: ShardImage = scene.bench.shard.state.image
        stored = image.consumer_groups["g"]
        assert stored.target_epoch is not None
        assert stored.members or stored.target_epoch.computed_ms == scene.bench.now.wall_ms
