"""Runs a partition's replicas, the store and the network between them in one seeded random walk.

The machines are the real ones: `Leadership`, `Follower`, `alter_isrs`, `elect_leaders`, and the
moves of replicas and leaders. Logs are lists of (epoch, value), of which a prefix is on disk.
Every message may be late, lost, or arrive after its sender has stopped waiting for it. Every node
learns of metadata changes with its own delay. Decisions may be committed long after they were
made. After every step the invariants of `replicas_checks` are checked. `Bugs` are the machines
with one rule left out; they prove that the walk finds the consequences.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.metadata.decisions import Change, Decision
from penstock.metadata.elections import elect_leaders
from penstock.metadata.keys import broker_key, topic_key
from penstock.metadata.preferred import elect, hand_over
from penstock.metadata.reassignment import Move, reassign
from penstock.metadata.topic_values import encode_topic
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

from .replicas_checks import check
from .replicas_model import Node, Violated
from .replicas_roles import LAG_MAX_MS, TOPIC, Roles

ROUNDS_MAX = 60
"""The most rounds of fetches, proposals and metadata updates after all faults are over."""


class World(Roles):
    # Ordinary actions

    def do_tick(self) -> None:
        self.now_ms += self.random.choice((10, 100, LAG_MAX_MS, 2 * LAG_MAX_MS))

    def do_learn(self) -> None:
        newest = len(self.history) - 1
        for node in self.nodes:
            if node.up and node.seen < newest and self.random.random() < 0.6:
                node.seen = self.random.choice((node.seen + 1, newest))
                self.look(node)

    def do_elect(self) -> None:
        state = (self.cluster.revision, frozenset(self.stopping))
        if self.elected_at != state:
            for decision in elect_leaders(self.cluster.image, stopping=self.stopping):
                self.commit(decision)
            self.elected_at = (self.cluster.revision, frozenset(self.stopping))
        self.review_due = False
        self.heal_wounds()

    def do_hold_election(self) -> None:
        self.held += elect_leaders(self.cluster.image, stopping=self.stopping)

    def do_commit_held(self) -> None:
        if self.held:
            self.commit(self.held.pop(self.random.randrange(len(self.held))))

    def do_prefer(self) -> None:
        self.commit(elect(self.cluster.image, [TopicPartition(TOPIC, 0)], stopping=self.stopping))

    def do_move(self) -> None:
        targets = self.random.sample(range(len(self.nodes)), self.random.choice((2, 3)))
        self.commit(reassign(self.cluster.image, [Move(TOPIC, 0, tuple(targets))]))

    def do_cancel_move(self) -> None:
        self.commit(reassign(self.cluster.image, [Move(TOPIC, 0, None)]))

    def do_set_min_insync(self) -> None:
        topic = self.cluster.image.topics[TOPIC]
        number = str(self.random.randint(1, 3))
        after = replace(topic, configs={**topic.configs, "min.insync.replicas": number})
        key = topic_key(TOPIC)
        revision = self.cluster.image.revision_of(key)
        self.commit(Decision((Change(key, encode_topic(after), revision),), None))
        self.review_due = True

    # Faults

    def do_kill(self) -> None:
        node = self.random.choice(self.nodes)
        if node.up:
            node.forget()

    def do_power_loss(self) -> None:
        node = self.random.choice(self.nodes)
        if not self.may_lose(node):
            return
        node.forget()
        lost_from = self.random.choice((node.durable, self.random.randint(node.durable, node.end)))
        if lost_from < node.end or not self.synced:
            node.lossless = False
            self.wounded.add(node.id)
        node.cut(lost_from)
        node.durable = node.end

    def may_lose(self, node: Node) -> bool:
        """With `replicated`, fewer than min.insync.replicas replicas may have lost what they
        wrote."""
        return self.synced or len(self.wounded | {node.id}) < self.min_insync

    def heal_wounds(self) -> None:
        partition = self.partition
        for each in [*self.wounded]:
            node = self.nodes[each]
            current = partition.member_epoch(each) == node.broker_epoch
            if node.up and each in partition.isr and current:
                self.wounded.discard(each)

    def do_expire(self) -> None:
        """A lease expires: that of a dead broker, or of a live one that has not noticed yet."""
        node = self.random.choice(self.nodes)
        if node.id in self.cluster.image.brokers and (not node.up or self.random.random() < 0.3):
            self.unregister(node)

    def unregister(self, node: Node) -> None:
        if broker_key(node.id) in self.cluster.entries:
            self.cluster.kill(node.id)
            self.publish()

    def do_restart(self) -> None:
        for node in self.nodes:
            running = node.up and node.id in self.cluster.image.brokers
            if not running and self.random.random() < 0.6:
                self.start(node)

    def do_bounce(self) -> None:
        """Stops and starts a broker so quickly that its lease does not expire."""
        if self.random.random() < 0.5:
            self.do_kill()
        else:
            self.do_power_loss()
        for node in self.nodes:
            if not node.up and self.random.random() < 0.7:
                self.start(node)

    def start(self, node: Node) -> None:
        node.forget()
        self.register(node)
        self.publish()
        node.seen = self.random.choice((len(self.history) - 1, max(node.seen, 0)))
        self.look(node)

    def do_stop(self) -> None:
        """A clean stop: hand over leadership, flush, exit. The `restart` action starts the broker
        again."""
        node = self.random.choice(self.nodes)
        if not node.up or node.id not in self.cluster.image.brokers:
            return
        self.stopping.add(node.id)
        self.publish()
        self.commit(hand_over(self.cluster.image, node.id, stopping=self.stopping))
        if self.random.random() < 0.5:
            node.durable = node.end
            node.forget()
            self.unregister(node)

    # Running

    def run(self, steps: int) -> None:
        weights = self.setting.weights
        names = list(weights)
        for name in self.random.choices(names, list(weights.values()), k=steps):
            self.act(name)
        self.heal()

    def act(self, name: str) -> None:
        getattr(self, f"do_{name}")()
        self.counts[name] = self.counts.get(name, 0) + 1
        self.heal_wounds()
        check(self)

    def heal(self) -> None:
        """Ends all faults. Within bounded time all replicas are in sync and have every
        acknowledged record."""
        self.stopping.clear()
        self.held.clear()
        for node in self.nodes:
            if not node.up or node.id not in self.cluster.image.brokers:
                self.start(node)
        for _ in range(ROUNDS_MAX):
            if self.is_converged():
                break
            self.now_ms += 200
            self.do_elect()
            self.publish()
            for node in self.nodes:
                node.seen = len(self.history) - 1
                self.look(node)
                self.mend(node)
            self.do_fetch()
            self.do_propose()
            while self.messages:
                self.receive(self.messages.pop(0))
            check(self)
        self.check_converged()

    def mend(self, node: Node) -> None:
        """Syncs the node's log, and counts requests as lost once no message is in flight."""
        node.durable = node.end
        if node.leadership is not None:
            node.leadership.on_own_end(self.counted(node))
            self.after_leading(node)
        if self.messages:
            return
        if node.follower is not None and node.sent is not None:
            node.follower.on_lost(node.sent, self.now_ms)
        if node.leadership is not None and node.proposed is not None:
            code = ErrorCode.REQUEST_TIMED_OUT
            node.leadership.on_isr_refused(node.proposed, code, self.now_ms)

    def is_converged(self) -> bool:
        partition = self.partition
        if {*partition.isr} != {*partition.replicas} or partition.is_moving:
            return False
        leader = self.nodes[partition.leader]
        return (
            leader.leadership is not None
            and leader.leadership.epoch == partition.leader_epoch
            and leader.high_watermark == leader.end
            and all(self.nodes[each].records == leader.records for each in partition.replicas)
        )

    def check_converged(self) -> None:
        if not self.is_converged():
            raise Violated(f"E14: not all in sync after all was mended: {self.partition}")
        leader = self.nodes[self.partition.leader]
        for value, offset in self.seen.acknowledged.items():
            if leader.end <= offset or leader.records[offset].value != value:
                raise Violated(f"E3: value {value} was acknowledged at {offset} and is gone")
