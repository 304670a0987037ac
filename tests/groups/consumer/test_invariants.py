"""Random members, topics, log failures and restarts against a consumer group.

Members follow the protocol: they own what they are told, and join again when they are refused.
Answers get lost, members crash, the log stalls and fails, the coordinator restarts. The heartbeat
of a member that has left arrives late. After each step:

- no partition is owned by two members, neither by what members were told nor by the coordinator;
- epochs only grow;
- a static member that has left for a while stays away: it comes back under another id;
- a coordinator that loads the log has the state that this one has.

When the faults end, the group is stable after a bounded number of heartbeats, and every partition
of the topics that members read has an owner.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.config import ConsumerGroupConfig, ConsumerGroupSettings
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.consumer.stored_group import StoredGroup
from penstock.groups.image import ShardImage
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

from .bench import ConsumerBench, Member, join_request, listed

SUBSCRIPTIONS: list[tuple[tuple[str, ...], str | None]] = [
    (("orders",), None),
    (("orders", "payments"), None),
    ((), "pay.*"),
    (("orders",), ".*s"),
]
JOIN_AGAIN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
ROUNDS_MAX = 8

clients = st.integers(0, 4)
actions = st.one_of(
    st.tuples(st.just("beat"), clients),
    st.tuples(st.just("beat"), clients),
    st.tuples(st.just("lose"), clients),
    st.tuples(st.just("crash"), clients),
    st.tuples(st.just("leave"), clients),
    st.tuples(st.just("late")),
    st.tuples(st.just("subscribe"), clients, st.sampled_from(range(4))),
    st.tuples(st.just("wait"), st.sampled_from([100, 1_000, 5_000, 20_000, 46_000])),
    st.tuples(st.just("grow"), st.sampled_from(["orders", "payments"])),
    st.tuples(st.just("recreate"), st.sampled_from(["orders", "payments"])),
    st.tuples(st.just("hold")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("commit_one")),
    st.tuples(st.just("fail")),
    st.tuples(st.just("resolve")),
    st.tuples(st.just("restart")),
)


class Client(Member):
    """A member, its subscription, and the request whose answer it waits for."""

    number = 0
    waits: int | None = None


class Run:
    def __init__(self, interval_ms: int, batch_bytes_max: int) -> None:
        self.bench = ConsumerBench(
            {"orders": 5, "payments": 3},
            ConsumerGroupConfig(ConsumerGroupSettings(assignment_interval_ms=interval_ms)),
        )
        self.bench.batch_bytes_max = batch_bytes_max
        self.clients = [self.new_client(index) for index in range(5)]
        self.late: ConsumerGroupHeartbeatRequest | None = None
        """The last heartbeat of a member that has left."""
        self.away: set[str] = set()
        """Static members that have left for a while."""
        self.epochs = (0, 0)
        self.loaded = ShardImage()
        """What a coordinator has that loads the log now."""
        self.replayed = 0

    def new_client(self, index: int, incarnation: int = 0) -> Client:
        names, regex = SUBSCRIPTIONS[index % 2]
        client = Client(f"m{index}.{incarnation}", names, regex, rebalance_ms=30_000)
        client.instance = "static" if index == 4 else None
        client.number = incarnation
        return client

    # What members do

    def beat(self, client: Client, *, lost: bool = False) -> None:
        if client.waits is not None:
            self.take(client)
            return
        if client.epoch == 0:
            client.owned = set()
            request = join_request(client)
        else:
            request = ConsumerGroupHeartbeatRequest(
                "g", client.member_id, client.epoch, topic_partitions=listed(client.owned)
            )
            request.rebalance_timeout_ms = client.rebalance_ms
            request.subscribed_topic_names = list(client.names)
            request.subscribed_topic_regex = client.regex or ""
        token = self.bench.send(request)
        if not lost:
            client.waits = token
            self.take(client)

    def take(self, client: Client) -> None:
        """Takes the answer if it is there. If the coordinator restarted, it never comes."""
        if client.waits is None or client.waits not in self.bench.replies:
            return
        response = self.bench.replies[client.waits]
        client.waits = None
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        if response.error_code in JOIN_AGAIN:
            client.epoch, client.owned = 0, set()
        else:
            client.take(response)

    def leave(self, index: int) -> None:
        client = self.clients[index]
        epoch = -2 if client.instance else -1
        if client.epoch:
            owned = listed(client.owned)
            self.late = ConsumerGroupHeartbeatRequest(
                "g", client.member_id, client.epoch, topic_partitions=owned
            )
        self.bench.send(
            ConsumerGroupHeartbeatRequest("g", client.member_id, epoch, client.instance)
        )
        self.crash(index)

    def crash(self, index: int) -> None:
        self.clients[index] = self.new_client(index, self.clients[index].number + 1)

    def act(self, action: tuple[Any, ...]) -> None:
        bench = self.bench
        match action:
            case ("beat" | "lose" as kind, int(index)):
                self.beat(self.clients[index], lost=kind == "lose")
            case ("crash", int(index)):
                self.crash(index)
            case ("leave", int(index)):
                self.leave(index)
            case ("late",):
                if self.late is not None:
                    bench.send(self.late)
            case ("subscribe", int(index), int(choice)):
                self.clients[index].names, self.clients[index].regex = SUBSCRIPTIONS[choice]
            case ("wait", int(milliseconds)):
                bench.advance(milliseconds)
            case ("grow", str(name)):
                bench.topics.grow(name, bench.topics.known[name].partitions + 1)
                bench.shard.on_topics_changed(bench.topics.touched(), created=False)
            case ("recreate", str(name)):
                bench.topics.create(name, 2)
                bench.shard.on_topics_changed(bench.topics.touched(), created=True)
            case ("resolve",):
                bench.resolve()
            case _:
                self.disturb(action[0])

    def disturb(self, kind: str) -> None:
        bench = self.bench
        if kind == "hold":
            bench.holds_log = True
        elif kind == "commit":
            bench.holds_log = False
            bench.settle()
        elif kind == "commit_one":
            # If its decision has more records, they are lost when the next append fails.
            if bench.waiting:
                bench.settle_one()
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
        self.check_owners()
        for record in self.bench.log[self.replayed :]:
            self.loaded.replay(*record)
        self.replayed = len(self.bench.log)
        stored = self.loaded.consumer_groups.get("g", StoredGroup())
        assert stored == self.bench.shard.state.image.consumer_groups.get("g", StoredGroup())
        epochs = (
            stored.epoch.epoch if stored.epoch else 0,
            stored.target_epoch.epoch if stored.target_epoch else 0,
        )
        assert epochs >= self.epochs
        assert epochs[1] >= self.epochs[1]
        self.epochs = epochs
        assert all(stored.currents[each].epoch == -2 for each in self.away & stored.members.keys())
        self.away |= {each for each, current in stored.currents.items() if current.epoch == -2}
        group = self.bench.shard.state.consumer("g")
        if group is not None:
            group.verify()
            if not group.is_writing:
                assert group.stored == stored

    def check_owners(self) -> None:
        """Members that the coordinator would still serve own different partitions."""
        image = self.bench.shard.state.image.consumer_groups.get("g", StoredGroup())
        owned: Counter[TopicIdPartition] = Counter()
        for client in self.clients:
            current = image.currents.get(client.member_id)
            if current is not None and client.epoch in (current.epoch, current.previous_epoch):
                owned.update(client.owned)
        assert not [each for each, count in owned.items() if count > 1]

    def end(self) -> None:
        """Ends all faults, and expects a stable group soon."""
        bench = self.bench
        self.disturb("commit")
        # Members that crashed are removed when their sessions end.
        for _ in range(10):
            bench.advance(5_000)
            for client in self.clients:
                self.beat(client)
            bench.resolve()
        for _ in range(ROUNDS_MAX):
            bench.advance(5_000)
            for client in self.clients:
                self.beat(client)
                self.check()
            bench.resolve()
            if bench.state == "Stable":
                break
        assert bench.state == "Stable"
        assert set(bench.group.members) == {client.member_id for client in self.clients}
        owned = [each for client in self.clients for each in client.owned]
        read = bench.group.subscribed_topics
        assert len(owned) == len(set(owned))
        assert set(owned) == bench.topics.partitions(read)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([0, 1_000]),
    st.sampled_from([700, 1 << 20]),
    st.lists(actions, min_size=5, max_size=50),
)
def test_the_invariants_hold_under_faults(
    interval_ms: int, batch_bytes_max: int, chosen: list[tuple[Any, ...]]
) -> None:
    """With small batches, the records of one decision need several."""
    run = Run(interval_ms, batch_bytes_max)
    for action in chosen:
        run.act(action)
        run.check()
    run.end()
