"""Random members, topics, failures and restarts against a share group.

Members follow the protocol. Answers get lost, members crash, the log stalls and fails, calls of the
share coordinator fail or are lost with their coordinator. After each step:

- epochs only grow, and the invariants of the group hold;
- a member is told only partitions that are initialized at the share coordinator;
- a coordinator that loads the log, up to any record, has what this one had.

When the faults end, the group is stable after a bounded number of heartbeats. Then every partition
of the topics that members read has a member, and nothing else has a state.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.config import ShareGroupConfig, ShareGroupSettings
from penstock.groups.image import ShardImage
from penstock.groups.shard import GroupShard
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

from .bench import Member, ShareBench, heartbeat

TOPICS = ("jobs", "mail")
JOIN_AGAIN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
ROUNDS_MAX = 15

clients = st.integers(0, 4)
topics = st.sampled_from(TOPICS)
actions = st.one_of(
    st.tuples(st.just("beat"), clients),
    st.tuples(st.just("beat"), clients),
    st.tuples(st.just("lose"), clients),
    st.tuples(st.just("crash"), clients),
    st.tuples(st.just("leave"), clients),
    st.tuples(st.just("subscribe"), clients, st.sampled_from([("jobs",), ("mail",), TOPICS])),
    st.tuples(st.just("wait"), st.sampled_from([100, 1_000, 5_000, 46_000])),
    st.tuples(st.just("grow"), topics),
    st.tuples(st.just("recreate"), topics),
    st.tuples(st.just("hold")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("fail")),
    st.tuples(st.just("calls"), st.booleans()),
    st.tuples(st.just("restart")),
)


class Run:
    def __init__(self, interval_ms: int, batch_bytes_max: int) -> None:
        self.bench = ShareBench(
            {"jobs": 3, "mail": 2},
            ShareGroupConfig(ShareGroupSettings(assignment_interval_ms=interval_ms)),
        )
        self.bench.batch_bytes_max = batch_bytes_max
        self.members = [Member(f"m{index}.0", TOPICS[: 1 + index % 2]) for index in range(5)]
        self.number = 0
        self.waiting: dict[int, Member] = {}
        self.epochs = (0, 0)

    def beat(self, member: Member, *, lost: bool = False) -> None:
        if member in self.waiting.values():
            self.take()
            return
        request = heartbeat(member, subscribed_topic_names=list(member.names))
        token = self.bench.send(request)
        if not lost:
            self.waiting[token] = member
            self.take()

    def take(self) -> None:
        for token, member in list(self.waiting.items()):
            response = self.bench.replies.get(token)
            if response is None:
                continue
            del self.waiting[token]
            assert isinstance(response, ShareGroupHeartbeatResponse)
            if response.error_code in JOIN_AGAIN:
                member.epoch, member.assigned = 0, set()
            else:
                before = set(member.assigned)
                member.take(response)
                new = member.assigned - before
                known = {facts.topic_id for facts in self.bench.topics.known.values()}
                assert {each for each in new if each.topic_id in known} <= self.bench.states.keys()

    def crash(self, index: int) -> None:
        self.number += 1
        self.members[index] = Member(f"m{index}.{self.number}", self.members[index].names)

    def recreate(self, name: str) -> None:
        bench = self.bench
        gone = bench.topics.known[name].topic_id
        bench.topics.create(name, 2)
        bench.shard.on_topics_changed([name], created=True)
        bench.carry_out(bench.shard.on_topics_deleted([gone], bench.now))

    def act(self, action: tuple[Any, ...]) -> None:
        bench = self.bench
        match action:
            case ("beat" | "lose" as kind, int(index)):
                self.beat(self.members[index], lost=kind == "lose")
            case ("crash", int(index)):
                self.crash(index)
            case ("leave", int(index)):
                bench.send(ShareGroupHeartbeatRequest("g", self.members[index].member_id, -1))
                self.crash(index)
            case ("subscribe", int(index), tuple(names)):
                self.members[index].names = names
            case ("wait", int(milliseconds)):
                bench.advance(milliseconds)
            case ("grow", str(name)):
                bench.topics.grow(name, bench.topics.known[name].partitions + 1)
                bench.shard.on_topics_changed(bench.topics.touched(), created=False)
            case ("recreate", str(name)):
                self.recreate(name)
            case ("hold",):
                bench.holds_log = True
            case ("commit",):
                bench.holds_log = False
                bench.settle()
            case ("fail",):
                bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
                bench.settle()
                bench.fails_log = None
            case ("calls", bool(failing)):
                bench.make_calls(failing=failing)
            case ("restart",):
                bench.calls.clear()
                self.waiting.clear()
                bench.restart()

    def check(self) -> None:
        bench = self.bench
        self.take()
        bench.shard.verify()
        stored = bench.shard.state.image.share_groups.get("g")
        if stored is not None:
            epochs = (
                0 if stored.epoch is None else stored.epoch.epoch,
                0 if stored.target_epoch is None else stored.target_epoch.epoch,
            )
            assert epochs >= self.epochs
            self.epochs = epochs

    def finish(self) -> None:
        bench = self.bench
        bench.holds_log = False
        bench.settle()
        for _ in range(ROUNDS_MAX):
            bench.make_calls()
            bench.advance(4_000)
            for member in self.members:
                self.beat(member)
            self.check()
        assert bench.calls == []
        wanted = bench.topics.partitions({name for each in self.members for name in each.names})
        assert set().union(*(member.assigned for member in self.members)) == wanted
        assert {member.epoch for member in self.members} == {bench.group.epoch}
        assert wanted <= bench.states.keys()


@given(st.lists(actions, max_size=60), st.sampled_from([0, 1_000]), st.sampled_from([700, 1 << 20]))
@settings(max_examples=40, deadline=None)
def test_members_share_all_partitions_when_the_faults_end(
    steps: list[tuple[Any, ...]], interval_ms: int, batch_bytes_max: int
) -> None:
    run = Run(interval_ms, batch_bytes_max)
    for step in steps:
        run.act(step)
        run.check()
    run.finish()


@given(st.lists(actions, max_size=40))
@settings(max_examples=15, deadline=None)
def test_a_coordinator_can_load_every_prefix_of_the_log(steps: list[tuple[Any, ...]]) -> None:
    run = Run(0, 1 << 20)
    for step in steps:
        run.act(step)
    bench = run.bench
    image = ShardImage()
    for end, record in enumerate(bench.log):
        image.replay(record.key, record.value)
        shard: GroupShard = bench._new_shard()
        for each in bench.log[: end + 1]:
            shard.replay(each.key, each.value)
        shard.on_loaded(bench.now)
        shard.verify()
        groups = {group_id: group.stored for group_id, group in shard.state.share_groups.items()}
        assert groups == image.share_groups
    assert image.share_groups == bench.shard.state.image.share_groups
