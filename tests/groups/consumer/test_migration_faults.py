"""Members of both protocols in one group, with lost answers, crashes, log failures and restarts.

The group moves between the protocols as members come and go. After each step:

- no partition is owned by two members that the coordinator would still serve;
- the group in the log is of one protocol, and is the one that this coordinator has;
- the groups keep their invariants.

After each batch of the log, a new coordinator has a group that can go on: its members are told what
to do, and every partition gets an owner. When the faults end, every partition has one owner.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.config import ConsumerGroupConfig, ConsumerGroupSettings, GroupConfig
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.image import ShardImage
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

from .bench import ConsumerBench, Member, join_request, listed
from .classic import ClassicClient, ids_of

JOIN_AGAIN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
COUNTS = {"orders": 5, "payments": 2}

slots = st.integers(0, 3)
actions = st.one_of(
    st.tuples(st.just("step"), slots),
    st.tuples(st.just("step"), slots),
    st.tuples(st.just("step"), slots),
    st.tuples(st.just("lose"), slots),
    st.tuples(st.just("crash"), slots),
    st.tuples(st.just("leave"), slots),
    st.tuples(st.just("become"), slots, st.sampled_from(["new", "eager", "cooperative"])),
    st.tuples(st.just("switch"), slots),
    st.tuples(st.just("wait"), st.sampled_from([100, 3_000, 11_000, 46_000])),
    st.tuples(st.just("grow")),
    st.tuples(st.just("hold")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("fail")),
    st.tuples(st.just("restart")),
)


class NewClient(Member):
    """A member of the new protocol, and the request whose answer it waits for."""

    waits: int | None = None

    def step(self, bench: ConsumerBench) -> None:
        if self.waits is None:
            self.waits = self.send(bench)
        self.receive(bench)

    def send(self, bench: ConsumerBench) -> int:
        if self.epoch == 0:
            self.owned = set()
            return bench.send(join_request(self))
        return bench.send(
            ConsumerGroupHeartbeatRequest(
                "g", self.member_id, self.epoch, topic_partitions=listed(self.owned)
            )
        )

    def receive(self, bench: ConsumerBench) -> None:
        if self.waits is None or self.waits not in bench.replies:
            return
        response = bench.replies[self.waits]
        self.waits = None
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        assert response.error_code != ErrorCode.GROUP_ID_NOT_FOUND, "it would end the client"
        if response.error_code in JOIN_AGAIN:
            self.epoch, self.owned = 0, set()
        else:
            self.take(response)


AnyClient = NewClient | ClassicClient


class Run:
    def __init__(self, batch_bytes_max: int = 1 << 20) -> None:
        self.bench = ConsumerBench(
            COUNTS,
            ConsumerGroupConfig(ConsumerGroupSettings(assignment_interval_ms=0)),
            GroupConfig(initial_rebalance_delay_ms=500),
        )
        self.bench.batch_bytes_max = batch_bytes_max
        self.names = 0
        self.kinds = ["eager", "cooperative", "new", "cooperative"]
        self.clients: list[AnyClient] = [self.new_client(slot) for slot in range(4)]
        self.loaded = ShardImage()
        self.replayed = 0

    def new_client(self, slot: int) -> AnyClient:
        self.names += 1
        instance = "static" if slot == 3 else None
        topics = ("orders", "payments")
        if self.kinds[slot] == "new":
            return NewClient(f"n{self.names}", topics, instance=instance, rebalance_ms=20_000)
        return ClassicClient(
            f"c{self.names}",
            topics,
            self.kinds[slot] == "cooperative",
            instance,
            rebalance_ms=20_000,
        )

    def act(self, action: tuple[Any, ...]) -> None:
        bench = self.bench
        match action:
            case ("step", int(slot)):
                self.step(self.clients[slot])
            case ("lose", int(slot)):
                client = self.clients[slot]
                self.step(client)
                client.waits = None
            case ("crash", int(slot)):
                self.clients[slot] = self.new_client(slot)
            case ("leave", int(slot)):
                self.leave(slot)
            case ("become", int(slot), str(kind)):
                self.leave(slot)
                self.kinds[slot] = kind
                self.clients[slot] = self.new_client(slot)
            case ("switch", int(slot)):
                self.switch(slot)
            case ("wait", int(milliseconds)):
                bench.advance(milliseconds)
            case ("grow",):
                bench.topics.grow("orders", bench.topics.known["orders"].partitions + 1)
                bench.shard.on_topics_changed(bench.topics.touched(), created=False)
            case (str(kind),):
                self.disturb(kind)

    def step(self, client: AnyClient) -> None:
        if isinstance(client, ClassicClient):
            known = self.bench.topics.known
            client.counts = {name: known[name].partitions for name in client.topics}
        client.step(self.bench)

    def leave(self, slot: int) -> None:
        client = self.clients[slot]
        bench = self.bench
        if isinstance(client, NewClient):
            bench.send(ConsumerGroupHeartbeatRequest("g", client.member_id, -1, client.instance))
        elif client.member_id and not (bench.waiting or bench.holds_log):
            client.leave(bench)
        self.clients[slot] = self.new_client(slot)

    def switch(self, slot: int) -> None:
        """Lets a classic member go on with the new protocol under the id that it has."""
        client = self.clients[slot]
        if isinstance(client, ClassicClient) and client.member_id:
            self.kinds[slot] = "new"
            self.clients[slot] = NewClient(
                client.member_id, client.topics, instance=client.instance, rebalance_ms=20_000
            )
            self.step(self.clients[slot])

    def disturb(self, kind: str) -> None:
        bench = self.bench
        if kind == "hold":
            bench.holds_log = True
        elif kind == "commit":
            bench.holds_log = False
            bench.settle()
        elif kind == "fail":
            bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
            bench.settle()
            bench.fails_log = None
        elif kind == "restart":
            bench.restart()
            for client in self.clients:
                client.waits = None

    # What must hold

    def check(self) -> None:
        bench, image = self.bench, self.bench.shard.state.image
        bench.shard.verify()
        for record in bench.log[self.replayed :]:
            self.loaded.replay(*record)
        self.replayed = len(bench.log)
        assert self.loaded.consumer_groups == image.consumer_groups
        assert self.loaded.groups.keys() == image.groups.keys()
        assert not (image.groups.keys() & image.consumer_groups.keys()), "it is of one protocol"
        self.check_owners()

    def check_owners(self) -> None:
        """Members that the coordinator would still serve own different partitions."""
        group = self.bench.shard.state.groups.get("g")
        if not isinstance(group, ConsumerGroup) or group.is_writing:
            return
        owned: Counter[TopicIdPartition] = Counter()
        for client in self.clients:
            current = group.current(client.member_id)
            if client.member_id not in group.members:
                continue
            if isinstance(client, NewClient):
                if client.epoch in (current.epoch, current.previous_epoch):
                    owned.update(client.owned)
            elif client.generation == current.epoch and client.phase == "running":
                owned.update(ids_of(self.bench, client))
        assert not [each for each, count in owned.items() if count > 1]

    def end(self) -> None:
        """Ends all faults, and expects that every partition has one owner soon."""
        self.disturb("commit")
        every = self.bench.topics.partitions(["orders", "payments"])
        for _ in range(60):
            for client in self.clients:
                self.step(client)
                self.check()
            self.bench.advance(2_000)
            owned = [each for client in self.clients for each in self.owned_by(client)]
            if sorted(owned) == sorted(every) and all(map(is_settled, self.clients)):
                return
        raise AssertionError(f"partitions have no owner: {self.clients}")

    def owned_by(self, client: AnyClient) -> set[TopicIdPartition]:
        return client.owned if isinstance(client, NewClient) else ids_of(self.bench, client)


def is_settled(client: AnyClient) -> bool:
    return client.epoch > 0 if isinstance(client, NewClient) else client.phase == "running"


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([1_200, 1 << 20]), st.lists(actions, min_size=5, max_size=60))
def test_members_of_both_protocols_under_faults(
    batch_bytes_max: int, chosen: list[tuple[Any, ...]]
) -> None:
    """With small batches, the records of one decision need several."""
    run = Run(batch_bytes_max)
    for action in chosen:
        run.act(action)
        run.check()
    run.bench.batch_bytes_max = 1 << 20
    run.end()


def a_move_and_back(batch_bytes_max: int) -> Run:
    """Returns a run in which a group was upgraded and downgraded, with commits in between."""
    run = Run(batch_bytes_max)
    run.kinds = ["eager", "cooperative", "eager", "cooperative"]
    run.clients = [run.new_client(slot) for slot in range(4)]
    run.end()
    for slot, kind in ((0, "new"), (3, "new"), (3, "cooperative"), (0, "eager")):
        run.bench.commit(*committer(run), {0: len(run.bench.log)})
        run.act(("become", slot, kind))
        run.end()
    assert run.bench.shard.state.classic("g") is not None
    return run


def committer(run: Run) -> tuple[str, int]:
    client = run.clients[1]
    assert isinstance(client, ClassicClient)
    return client.member_id, client.generation


def test_a_coordinator_that_loads_the_log_after_any_batch_goes_on() -> None:
    for batch_bytes_max in (2_000, 1 << 20):
        run = a_move_and_back(batch_bytes_max)
        seen = set()
        for end in run.bench.batch_ends:
            loaded = Run()
            loaded.bench.log = run.bench.log[:end]
            loaded.bench.topics = run.bench.topics
            loaded.act(("restart",))
            loaded.check()
            image = loaded.bench.shard.state.image
            seen.add(("g" in image.groups, "g" in image.consumer_groups))
            offsets = dict(image.offsets_of("g"))
            # Clients that the coordinator does not know join it, and those in the log are gone.
            loaded.end()
            assert image.offsets_of("g") == offsets
        assert {(True, False), (False, True)} <= seen
        assert (True, True) not in seen


def test_a_downgraded_group_rebalances_under_the_next_coordinator() -> None:
    """The partitions of the member that left have no owner, and nobody joins or leaves."""
    run = Run()
    run.kinds = ["cooperative", "cooperative", "cooperative", "new"]
    run.clients = [run.new_client(slot) for slot in range(4)]
    run.end()
    left = run.clients.pop()
    run.bench.send(ConsumerGroupHeartbeatRequest("g", left.member_id, -1, "static"))
    assert run.bench.shard.state.classic("g") is not None
    run.act(("restart",))
    run.end()
