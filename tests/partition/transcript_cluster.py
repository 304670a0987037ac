"""The replicas of one partition in a transcript: metadata, roles, fetches, proposals.

It does what a broker's shell does and nothing else. The leaders and followers are the real
machines, and so are the controller's decisions (`alter_isrs`, `elect_leaders`, `reassign`,
`hand_over`). Everything that happens is passed to `say`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from metadata.cluster import Cluster
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.elections import elect_leaders
from penstock.metadata.isr import IsrAnswer, IsrChange, alter_isrs
from penstock.metadata.keys import broker_key, topic_key
from penstock.metadata.membership import register_broker
from penstock.metadata.model import NO_LEADER, BrokerInfo, Partition, Topic
from penstock.metadata.preferred import hand_over
from penstock.metadata.reassignment import Move, reassign
from penstock.metadata.topic_values import encode_topic
from penstock.partition.epochs import diverging_epoch
from penstock.partition.follower import (
    AdvanceLogStart,
    Append,
    AskBounds,
    Effect,
    Fetch,
    FetchAnswer,
    Follower,
    FollowerRules,
    RetryAt,
    StartAt,
    Truncate,
)
from penstock.partition.leadership import AlterIsr, InSyncRules, Leadership
from penstock.wire.errors import ErrorCode, KafkaError

from . import transcript_words as words
from .transcript_log import Broker, Flight, Shown

TOPIC = "t"
LAG_MAX_MS = 30_000
FIRST_REVISION = 10
"""Broker epochs are revisions of the store: broker 1 registers with epoch 11, broker 2 with 12."""


@dataclass(frozen=True)
class Snapshot:
    """The metadata at one moment."""

    partition: Partition
    brokers: dict[int, int]
    min_insync: int
    loses_committed: bool


class Replicas:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.revision = FIRST_REVISION
        self.brokers: dict[int, Broker] = {}
        self.stopping: set[int] = set()
        self.now_ms = 0
        self.output: list[str] = []
        self.published: Partition | None = None
        self.corrupt_from: int | None = None

    def say(self, text: str) -> None:
        self.output.append(f"    {text}")

    # Metadata

    @property
    def topic(self) -> Topic:
        return self.cluster.image.topics[TOPIC]

    @property
    def partition(self) -> Partition:
        return self.topic.partitions[0]

    @property
    def by_disk(self) -> bool:
        return self.topic.configs["durability"] == "fsync"

    def register(self, broker: Broker) -> None:
        since = broker.lossless_since if broker.keeps_all else -1
        name, incarnation = f"host{broker.id}", self.cluster.new_id()
        info = BrokerInfo(broker.id, name, 9092, None, incarnation, -1, since)
        self.cluster.commit(register_broker(self.cluster.image, info, take_over=True))
        broker.broker_epoch = self.cluster.image.brokers[broker.id].broker_epoch
        broker.lossless_since = since if since >= 0 else broker.broker_epoch
        broker.up = broker.keeps_all = True

    def unregister(self, broker: int) -> None:
        if broker_key(broker) in self.cluster.entries:
            self.cluster.kill(broker)

    def store(self, topic: Topic) -> None:
        """Writes the topic to the store without asking the controller's rules."""
        key = topic_key(TOPIC)
        change = Change(key, encode_topic(topic), self.cluster.image.revision_of(key))
        self.cluster.commit(Decision((change,), None))

    def decide(self, decision: Decision[Any]) -> Any:
        result = self.cluster.commit(decision)
        self.publish()
        return result

    def publish(self) -> None:
        """Sends the metadata to all brokers that it reaches."""
        if self.partition != self.published:
            self.published = self.partition
            self.say(words.metadata(self.partition))
        for broker in self.brokers.values():
            if broker.up and broker.hears:
                self.learn(broker)

    def snapshot(self) -> Snapshot:
        image = self.cluster.image
        registered = {
            each.broker_id: each.broker_epoch
            for each in image.brokers.values()
            if each.broker_id not in self.stopping
        }
        configs = self.topic.configs
        unclean = configs.get("unclean.leader.election.enable") == "true"
        return Snapshot(
            self.partition,
            registered,
            int(configs["min.insync.replicas"]),
            unclean or not self.by_disk,
        )

    def learn(self, broker: Broker) -> None:
        """Takes the role that the metadata gives to the broker."""
        seen = self.snapshot()
        partition = seen.partition
        if broker.id not in partition.replicas:
            if broker.leadership or broker.follower:
                self.say(f"{broker.id}: no longer a replica, deletes its log")
            self.resign(broker)
            broker.log.start_at(0)
            broker.high_watermark = 0
        elif partition.leader == NO_LEADER:
            if broker.leadership or broker.follower:
                self.say(f"{broker.id}: has no leader")
            self.resign(broker)
        elif partition.leader != broker.id:
            self.follow(broker, seen)
        elif partition.leader_broker_epoch == broker.broker_epoch:
            self.lead(broker, seen)
        else:
            self.resign(broker)

    def resign(self, broker: Broker) -> None:
        broker.leave_role()
        for end in broker.waiting:
            self.say(f"producer <- NOT_LEADER_OR_FOLLOWER for the records up to {end}")
        broker.waiting = []

    def lead(self, broker: Broker, seen: Snapshot) -> None:
        held, partition = broker.leadership, seen.partition
        rules = InSyncRules(seen.min_insync, LAG_MAX_MS)
        if held is None or held.epoch != partition.leader_epoch:
            broker.leave_role()
            # The leadership begins once its epoch is synced, and with it the whole log.
            broker.log.epochs.assign(partition.leader_epoch, broker.log.end)
            broker.log.sync()
            held = broker.leadership = Leadership(
                broker.id,
                broker.broker_epoch,
                partition,
                high_watermark=max(broker.high_watermark, broker.log.start),
                start_offset=broker.log.end,
                own_end=broker.log.end,
                rules=rules,
                brokers=seen.brokers,
                now_ms=self.now_ms,
            )
            self.say(
                f"{broker.id}: leads epoch {held.epoch}, start offset {held.start_offset}, "
                f"high watermark {held.high_watermark}"
            )
            broker.shown = Shown(held.isr, held.maximal_isr, held.high_watermark)
        else:
            held.on_partition(partition, self.now_ms)
            held.on_brokers(seen.brokers)
            held.configure(rules)

    def follow(self, broker: Broker, seen: Snapshot) -> None:
        held, partition = broker.follower, seen.partition
        rules = FollowerRules(may_lose_committed=seen.loses_committed)
        if held is not None and held.epoch == partition.leader_epoch:
            held.configure(rules)
            if not held.is_released:
                return
        self.resign(broker)
        broker.follower = Follower(
            partition.leader,
            partition.leader_epoch,
            high_watermark=broker.high_watermark,
            rules=rules,
        )
        self.say(
            f"{broker.id}: follows {partition.leader} in epoch {partition.leader_epoch}, log end "
            f"{broker.log.end}, high watermark {broker.high_watermark}"
        )

    # The log of a leader

    def note_own_end(self, broker: Broker) -> None:
        if broker.leadership is not None:
            broker.leadership.on_own_end(broker.view(by_disk=self.by_disk).counted_end)

    def append(self, broker: Broker, count: int, *, waits: bool) -> None:
        held = broker.leadership
        if held is None:
            self.say("producer <- NOT_LEADER_OR_FOLLOWER")
            return
        if waits:
            try:
                held.require_insync()
            except KafkaError as error:
                self.say(f"producer <- {error.code.name}: {error.message}")
                return
        broker.log.write(count, held.epoch)
        if waits:
            broker.waiting.append(broker.log.end)
        if not self.by_disk:
            self.note_own_end(broker)

    def show_leader(self, broker: Broker) -> None:
        """Says what changed at a leader, and answers the producers."""
        held, shown = broker.leadership, broker.shown
        if held is None or shown is None:
            return
        if held.isr != shown.isr:
            self.say(f"{broker.id}: ISR {words.words_of(sorted(held.isr))}")
            shown.maximal_isr = held.isr
        if held.maximal_isr != shown.maximal_isr:
            self.say(f"{broker.id}: maximal ISR {words.words_of(sorted(held.maximal_isr))}")
        if held.high_watermark != shown.high_watermark:
            self.say(f"{broker.id}: high watermark {held.high_watermark}")
        broker.shown = Shown(held.isr, held.maximal_isr, held.high_watermark)
        for end in list(broker.waiting):
            outcome = held.outcome(end)
            if outcome is not None:
                broker.waiting.remove(end)
                said = "committed" if outcome == ErrorCode.NONE else outcome.name
                self.say(f"producer <- {said}, the records up to {end}")

    # Fetches

    def send_fetch(self, broker: Broker) -> bool:
        follower, view = broker.follower, broker.view(by_disk=self.by_disk)
        if follower is None:
            self.say(f"{broker.id}: does not follow")
            return False
        fetch = follower.next_fetch(view, self.now_ms)
        if fetch is None:
            reason = words.why_no_fetch(broker, follower, view, self.now_ms)
            self.say(f"{broker.id}: does not fetch: {reason}")
            return False
        self.say(f"{broker.id} -> {fetch.leader}: {words.fetch(fetch)}")
        broker.sent = fetch
        broker.flights.append(Flight(fetch, broker.broker_epoch))
        return True

    def serve(self, leader: Broker, flight: Flight, sender: int) -> None:
        """Answers a fetch, with the checks in the order of a broker."""
        try:
            flight.answer = self._answered(leader, flight, sender)
        except KafkaError as error:
            flight.answer = FetchAnswer(error.code)
        self.show_leader(leader)
        self.say(f"{leader.id} -> {sender}: {words.answer(flight.answer)}")
        held, answer = leader.leadership, flight.answer
        if held is None or answer.error != ErrorCode.NONE or answer.diverging is not None:
            return
        if sender not in held.isr and flight.fetch.offset >= held.high_watermark:
            self.propose(leader)

    def _answered(self, leader: Broker, flight: Flight, sender: int) -> FetchAnswer:
        fetch, log = flight.fetch, leader.log
        held = self._require_leader(leader, fetch.leader_epoch)
        parted = diverging_epoch(log.epochs, fetch.offset, fetch.last_fetched_epoch, log.end)
        if parted is not None:
            return FetchAnswer(ErrorCode.NONE, held.high_watermark, log.start, parted)
        if not log.start <= fetch.offset <= log.end:
            return FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE)
        held.on_follower_fetch(
            sender, flight.broker_epoch, fetch.offset, log.end, self.now_ms, fetch.log_start_offset
        )
        spans, flaw = log.read(fetch.offset), None
        if self.corrupt_from is not None:
            spans = tuple(span for span in spans if span.next_offset <= self.corrupt_from)
            flaw, self.corrupt_from = "its checksum is wrong", None
        return FetchAnswer(ErrorCode.NONE, held.high_watermark, log.start, None, spans, flaw)

    def _require_leader(self, leader: Broker, epoch: int) -> Leadership:
        held = leader.leadership
        if held is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if epoch != held.epoch:
            is_old = epoch < held.epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise KafkaError(code)
        return held

    def receive(self, broker: Broker, flight: Flight) -> None:
        follower, answer = broker.follower, flight.answer
        assert answer is not None
        is_late = broker.sent is not flight.fetch
        if not is_late:
            broker.sent = None
        if follower is None:
            self.say(f"{broker.id}: ignores the answer, it does not follow")
            return
        view = broker.view(by_disk=self.by_disk)
        effects = follower.on_answer(flight.fetch, answer, view, self.now_ms)
        if is_late and not effects:
            self.say(f"{broker.id}: ignores the late answer")
        self.carry_out(broker, effects)

    def lose_fetch(self, broker: Broker, fetch: Fetch) -> None:
        assert broker.follower is not None
        broker.sent = None
        self.carry_out(broker, broker.follower.on_lost(fetch, self.now_ms))

    def carry_out(self, broker: Broker, effects: tuple[Effect, ...]) -> None:
        log, follower = broker.log, broker.follower
        assert follower is not None
        for effect in effects:
            if isinstance(effect, Append) and broker.full_disk:
                broker.full_disk = False
                view = broker.view(by_disk=self.by_disk)
                self.carry_out(broker, follower.on_failed("the disk is full", view, self.now_ms))
                return
            self.say(f"{broker.id}: {words.effect(effect, self.now_ms)}")
            match effect:
                case Truncate(offset):
                    log.cut(offset)
                case StartAt(offset):
                    log.start_at(offset)
                    follower.on_restarted(offset)
                case Append(spans):
                    for span in spans:
                        log.append(span)
                case AdvanceLogStart(offset):
                    log.delete_before(offset)
                case RetryAt(at_ms):
                    broker.retry_ms = at_ms
                case AskBounds():
                    self._ask_bounds(broker, follower, effect)

    def _ask_bounds(self, broker: Broker, follower: Follower, asked: AskBounds) -> None:
        leader = self.brokers[asked.leader]
        try:
            self._require_leader(leader, asked.leader_epoch)
        except KafkaError as error:
            self.say(f"{leader.id} -> {broker.id}: {error.code.name}")
            effects = follower.on_bounds_lost(self.now_ms)
        else:
            start, end = leader.log.start, leader.log.end
            self.say(f"{leader.id} -> {broker.id}: log start {start}, log end {end}")
            view = broker.view(by_disk=self.by_disk)
            effects = follower.on_bounds(start, end, view, self.now_ms)
        self.carry_out(broker, effects)

    # The controller

    def propose(self, broker: Broker) -> None:
        if broker.leadership is None:
            return
        proposed = broker.leadership.propose(self.now_ms)
        if proposed is not None:
            self.say(f"{broker.id} -> controller: {words.proposal(proposed)}")
            broker.proposal = proposed
            self.show_leader(broker)

    def decide_on(self, broker: Broker, proposed: AlterIsr) -> IsrAnswer:
        """The controller decides on a proposal and commits the change, if it accepts it."""
        topic_id = self.topic.topic_id
        change = IsrChange(
            topic_id, 0, proposed.isr, proposed.leader_epoch, proposed.partition_epoch
        )
        image, epoch = self.cluster.image, broker.broker_epoch
        try:
            decision = alter_isrs(image, broker.id, epoch, [change], stopping=self.stopping)
        except KafkaError as error:
            return IsrAnswer(topic_id, 0, error.code)
        self.cluster.commit(decision)
        return decision.result[0]

    def take_answer(self, broker: Broker, proposed: AlterIsr, answer: IsrAnswer) -> None:
        if answer.error != ErrorCode.NONE:
            self.refuse_proposal(broker, proposed, answer.error)
        elif broker.leadership is not None and answer.partition is not None:
            broker.leadership.on_isr_answer(answer.partition, self.now_ms)

    def refuse_proposal(self, broker: Broker, proposed: AlterIsr, code: ErrorCode) -> None:
        held = broker.leadership
        if held is not None and held.epoch == proposed.leader_epoch:
            held.on_isr_refused(proposed, code, self.now_ms)

    def elect(self) -> None:
        for decision in elect_leaders(self.cluster.image, stopping=self.stopping):
            self.cluster.commit(decision)
        self.publish()

    def move(self, replicas: tuple[int, ...] | None) -> None:
        self.decide(reassign(self.cluster.image, [Move(TOPIC, 0, replicas)]))

    def stop_cleanly(self, broker: int) -> None:
        self.stopping.add(broker)
        self.decide(hand_over(self.cluster.image, broker, stopping=self.stopping))

    def set_leader(self, leader: int, epoch: int) -> None:
        """Makes a broker the leader without asking the controller's rules."""
        before = self.partition
        after = replace(
            before,
            leader=leader,
            leader_epoch=epoch,
            leader_broker_epoch=self.brokers[leader].broker_epoch,
            partition_epoch=before.partition_epoch + 1,
        )
        self.store(replace(self.topic, partitions=(after,)))
        self.publish()
