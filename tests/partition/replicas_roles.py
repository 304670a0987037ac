"""The leaders, followers and controller of the walk: how each reacts to messages and metadata."""

from __future__ import annotations

from random import Random
from typing import Any

from metadata.cluster import Cluster, Conflict
from penstock.metadata.decisions import Decision
from penstock.metadata.isr import IsrAnswer, IsrChange
from penstock.metadata.membership import register_broker
from penstock.metadata.model import NO_LEADER, BrokerInfo, Partition
from penstock.partition.epochs import diverging_epoch
from penstock.partition.follower import (
    AdvanceHighWatermark,
    Append,
    AskBounds,
    BatchSpan,
    Effect,
    Fetch,
    FetchAnswer,
    FollowerRules,
    Halt,
    LogView,
    StartAt,
    Truncate,
)
from penstock.partition.leadership import AlterIsr, InSyncRules
from penstock.wire.errors import ErrorCode, KafkaError

from .replicas_model import (
    Ask,
    Bugs,
    Decided,
    Message,
    Node,
    Propose,
    Record,
    Reply,
    Scenario,
    Seen,
    Snapshot,
    Violated,
)

TOPIC = "t"
LAG_MAX_MS = 1_000
BACKOFF_MS = 50
MESSAGES_MAX = 60


class Roles:
    def __init__(self, setting: Scenario, bugs: Bugs | None = None) -> None:
        self.setting = setting
        self.bugs = bugs or Bugs()
        self.random = Random(setting.seed * 2 + 1)
        self.cluster = Cluster()
        self.nodes = [Node(broker_id) for broker_id in range(setting.brokers)]
        self.now_ms = 0
        self.messages: list[Message] = []
        self.held: list[Decision[Any]] = []
        self.history: list[Snapshot] = []
        self.stopping: set[int] = set()
        self.wounded: set[int] = set()
        self.review_due = False
        self.elected_at: tuple[int, frozenset[int]] | None = None
        self.seen = Seen()
        self.values = 0
        self.counts: dict[str, int] = {}
        for node in self.nodes:
            self.register(node)
        self.cluster.create(
            TOPIC,
            1,
            3,
            min_insync_replicas=str(setting.min_insync),
            durability=setting.durability,
        )
        self.publish()
        for node in self.nodes:
            node.seen = 0
            self.look(node)

    # The metadata

    @property
    def partition(self) -> Partition:
        return self.cluster.image.topics[TOPIC].partitions[0]

    @property
    def min_insync(self) -> int:
        return int(self.cluster.image.topics[TOPIC].configs["min.insync.replicas"])

    @property
    def synced(self) -> bool:
        return self.setting.durability == "fsync"

    def register(self, node: Node) -> None:
        if not node.lossless and not self.bugs.always_claims_proof:
            node.lossless_since = -1
        host, incarnation = f"host{node.id}", self.cluster.new_id()
        info = BrokerInfo(node.id, host, 9092, None, incarnation, -1, node.lossless_since)
        self.cluster.commit(register_broker(self.cluster.image, info, take_over=True))
        node.broker_epoch = self.cluster.image.brokers[node.id].broker_epoch
        if node.lossless_since < 0:
            node.lossless_since = node.broker_epoch
        node.lossless = True
        node.up = True
        self.stopping.discard(node.id)

    def publish(self) -> None:
        """Adds the store's present state to the history. Each node sees it with its own delay."""
        image = self.cluster.image
        epochs = {each.broker_id: each.broker_epoch for each in image.brokers.values()}
        now = Snapshot(self.partition, epochs, self.min_insync, frozenset(self.stopping))
        if not self.history or self.history[-1] != now:
            self.history.append(now)

    def commit(self, decision: Decision[Any]) -> bool:
        try:
            self.cluster.commit(decision)
        except Conflict:
            return False
        self.publish()
        return True

    def look(self, node: Node) -> None:
        """Makes the node act on the snapshot that it has seen."""
        sight = self.history[node.seen]
        partition = sight.partition
        if node.id not in partition.replicas:
            node.leadership = node.follower = None
            node.cut(0)
            node.high_watermark = 0
            return
        rules = InSyncRules(sight.min_insync, LAG_MAX_MS)
        brokers = {k: v for k, v in sight.brokers.items() if k not in sight.stopping}
        if partition.leader == node.id and (
            partition.leader_broker_epoch == node.broker_epoch or self.bugs.leads_across_restarts
        ):
            self.lead(node, partition, rules, brokers)
        else:
            self.follow(node, partition)

    def lead(
        self, node: Node, partition: Partition, rules: InSyncRules, brokers: dict[int, int]
    ) -> None:
        held = node.leadership
        if held is None or held.epoch != partition.leader_epoch:
            node.follower = None
            node.waiting = []
            node.proposed = None
            node.epochs.assign(partition.leader_epoch, node.end)
            held = node.leadership = self.bugs.leadership(
                node.id,
                node.broker_epoch,
                partition,
                high_watermark=node.high_watermark,
                start_offset=node.end,
                own_end=self.counted(node),
                rules=rules,
                brokers=brokers,
                now_ms=self.now_ms,
            )
        held.on_partition(partition, self.now_ms)
        held.on_brokers(brokers)
        held.configure(rules)
        held.on_own_end(self.counted(node))
        self.after_leading(node)

    def follow(self, node: Node, partition: Partition) -> None:
        node.leadership = None
        node.waiting = []
        node.proposed = None
        leader = partition.leader
        if leader in (NO_LEADER, node.id):
            node.follower = None
        elif node.follower is None or node.follower.epoch != partition.leader_epoch:
            if self.bugs.truncates_to_high_watermark:
                node.cut(node.high_watermark)
            rules = FollowerRules(may_lose_committed=False, backoff_ms=BACKOFF_MS)
            node.follower = self.bugs.follower(
                leader, partition.leader_epoch, high_watermark=node.high_watermark, rules=rules
            )
            node.sent = None

    # Leading

    def counted(self, node: Node) -> int:
        return node.durable if self.synced and not self.bugs.counts_unsynced else node.end

    def after_leading(self, node: Node) -> None:
        """Notes that everything below the high watermark is committed, whatever happens next."""
        held = node.leadership
        assert held is not None
        if held.high_watermark > node.end:
            raise Violated(f"the high watermark of {node.id} is beyond its log")
        if held.high_watermark < node.high_watermark:
            raise Violated(f"I8: the high watermark of {node.id} went back")
        node.high_watermark = held.high_watermark
        committed = self.seen.committed
        committed += node.records[len(committed) : node.high_watermark]
        for end, value in node.waiting:
            if held.outcome(end) == ErrorCode.NONE:
                self.seen.acknowledged[value] = end - 1
        node.waiting = [each for each in node.waiting if held.outcome(each[0]) is None]

    def do_produce(self) -> None:
        leaders = [node for node in self.nodes if node.leadership is not None]
        if not leaders:
            return
        node = self.random.choice(leaders)
        held = node.leadership
        assert held is not None
        waits = self.random.random() < 0.7
        if waits:
            try:
                held.require_insync()
            except KafkaError:
                return
        self.values += 1
        node.note(Record(held.epoch, self.values))
        if waits:
            node.waiting.append((node.end, self.values))
        if not self.synced or self.bugs.counts_unsynced:
            held.on_own_end(node.end)
        self.after_leading(node)

    def do_flush(self) -> None:
        for node in self.nodes:
            if not node.up or node.durable == node.end or self.random.random() < 0.3:
                continue
            some = self.random.randint(node.durable, node.end)
            node.durable = self.random.choice((node.end, some))
            if node.leadership is not None and self.synced:
                node.leadership.on_own_end(self.counted(node))
                self.after_leading(node)

    def do_propose(self) -> None:
        for node in self.nodes:
            if node.leadership is None:
                continue
            proposal = node.leadership.propose(self.now_ms)
            if proposal is not None:
                node.proposed = proposal
                self.send(node, -1, Propose(proposal))

    def do_latest(self) -> None:
        for node in self.nodes:
            held = node.leadership
            if held is None:
                continue
            try:
                latest = (
                    held.high_watermark if self.bugs.serves_latest_at_once else held.latest_offset()
                )
            except KafkaError:
                continue
            told = [value for epoch, value in self.seen.latest.items() if epoch <= held.epoch]
            if told and latest < max(told):
                raise Violated(
                    f"I8: leader {node.id} of epoch {held.epoch} says the latest offset is "
                    f"{latest}, clients were told {max(told)}"
                )
            self.seen.latest[held.epoch] = max(latest, self.seen.latest.get(held.epoch, 0))

    # The network

    def send(self, node: Node, receiver: int, body: Any) -> None:
        self.messages.append(Message(node.id, receiver, body, node.broker_epoch))
        if len(self.messages) > MESSAGES_MAX:
            self.do_lose()

    def do_lose(self) -> None:
        if self.messages:
            self.messages.pop(self.random.randrange(len(self.messages)))

    def do_deliver(self) -> None:
        if self.messages:
            late = self.random.random() < 0.3
            index = self.random.randrange(len(self.messages)) if late else 0
            self.receive(self.messages.pop(index))
            for _ in range(self.random.choice((0, 2, 8))):
                if self.messages:
                    self.receive(self.messages.pop(0))

    def receive(self, message: Message) -> None:
        body = message.body
        if isinstance(body, Ask):
            self.serve(message, body.fetch)
        elif isinstance(body, Propose):
            self.decide(message, body.proposal)
        else:
            node = self.nodes[message.receiver]
            if not node.up or node.broker_epoch != message.incarnation:
                return
            if isinstance(body, Reply):
                self.take(node, body)
            else:
                self.take_decision(node, body)

    def do_fetch(self) -> None:
        for node in self.random.sample(self.nodes, len(self.nodes)):
            if node.follower is None:
                continue
            fetch = node.follower.next_fetch(self.view(node), self.now_ms)
            if fetch is not None:
                node.sent = fetch
                self.send(node, fetch.leader, Ask(fetch))

    def view(self, node: Node) -> LogView:
        return LogView(0, node.end, self.counted(node), node.epochs)

    def serve(self, message: Message, fetch: Fetch) -> None:
        node = self.nodes[message.receiver]
        answer, records = self.answered(node, message, fetch)
        reply = Message(node.id, message.sender, Reply(fetch, answer, records), message.incarnation)
        self.messages.append(reply)

    def answered(
        self, node: Node, message: Message, fetch: Fetch
    ) -> tuple[FetchAnswer, tuple[Record, ...]]:
        held = node.leadership
        if not node.up or held is None:
            return FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER), ()
        if fetch.leader_epoch < held.epoch:
            return FetchAnswer(ErrorCode.FENCED_LEADER_EPOCH), ()
        if fetch.leader_epoch > held.epoch:
            return FetchAnswer(ErrorCode.UNKNOWN_LEADER_EPOCH), ()

        def note() -> None:
            held.on_follower_fetch(
                message.sender, message.incarnation, fetch.offset, node.end, self.now_ms
            )
            self.after_leading(node)

        try:
            if self.bugs.counts_before_divergence and fetch.offset <= node.end:
                note()
            parted = diverging_epoch(node.epochs, fetch.offset, fetch.last_fetched_epoch, node.end)
            if parted is not None:
                return FetchAnswer(ErrorCode.NONE, held.high_watermark, 0, parted), ()
            if fetch.offset > node.end:
                return FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE), ()
            note()
        except KafkaError as error:
            return FetchAnswer(error.code), ()
        count = self.random.choice((1, 2, 100))
        records = tuple(node.records[fetch.offset : fetch.offset + count])
        spans = tuple(
            BatchSpan(fetch.offset + index, fetch.offset + index + 1, record.epoch, 1)
            for index, record in enumerate(records)
        )
        return FetchAnswer(ErrorCode.NONE, held.high_watermark, 0, None, spans), records

    def take(self, node: Node, reply: Reply) -> None:
        if node.follower is None:
            return
        view = self.view(node)
        effects = node.follower.on_answer(reply.fetch, reply.answer, view, self.now_ms)
        self.carry_out(node, effects, reply.records)

    def carry_out(
        self, node: Node, effects: tuple[Effect, ...], records: tuple[Record, ...]
    ) -> None:
        follower = node.follower
        assert follower is not None
        for effect in effects:
            if isinstance(effect, Truncate):
                node.cut(effect.offset)
            elif isinstance(effect, StartAt):
                raise Violated(f"{node.id} throws its log away, though nothing was deleted")
            elif isinstance(effect, Append):
                for record in records[: effect.size]:
                    node.note(record)
            elif isinstance(effect, AdvanceHighWatermark):
                if effect.offset > node.end:
                    raise Violated(f"the high watermark of {node.id} is beyond its log")
            elif isinstance(effect, AskBounds):
                leader = self.nodes[effect.leader]
                held = leader.leadership
                if held is None or held.epoch != effect.leader_epoch:
                    more = follower.on_bounds_lost(self.now_ms)
                else:
                    more = follower.on_bounds(0, leader.end, self.view(node), self.now_ms)
                self.carry_out(node, more, ())
            elif isinstance(effect, Halt):
                raise Violated(f"I2: {node.id} halts: {effect.reason}")
        node.high_watermark = follower.high_watermark

    def decide(self, message: Message, proposal: AlterIsr) -> None:
        topic_id = self.cluster.image.topics[TOPIC].topic_id
        change = IsrChange(
            topic_id, 0, proposal.isr, proposal.leader_epoch, proposal.partition_epoch
        )
        try:
            decision = self.bugs.alter(
                self.cluster.image,
                message.sender,
                message.incarnation,
                [change],
                stopping=self.stopping,
            )
        except KafkaError as error:
            answer = IsrAnswer(topic_id, 0, error.code)
        else:
            answer = decision.result[0]
            assert self.commit(decision)
        body = Decided(proposal, answer)
        self.messages.append(Message(-1, message.sender, body, message.incarnation))

    def take_decision(self, node: Node, decided: Decided) -> None:
        held, proposal, answer = node.leadership, decided.proposal, decided.answer
        if held is None or held.epoch != proposal.leader_epoch:
            return
        after = answer.partition
        if answer.error == ErrorCode.NONE and after is not None:
            held.on_isr_answer(after, self.now_ms)
        else:
            held.on_isr_refused(proposal, answer.error, self.now_ms)
        self.after_leading(node)

    def do_time_out(self) -> None:
        """A node stops waiting for a request. The request may still arrive."""
        node = self.random.choice(self.nodes)
        if node.follower is not None and node.sent is not None:
            node.follower.on_lost(node.sent, self.now_ms)
        if node.leadership is not None and node.proposed is not None:
            node.leadership.on_isr_refused(node.proposed, ErrorCode.REQUEST_TIMED_OUT, self.now_ms)
            self.after_leading(node)
