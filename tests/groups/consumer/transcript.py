"""Plays the scripts in `tests/scripts/consumer_groups`.

A line at the margin is an event. The indented lines below it are its consequences. The text above
the first empty line says what the script shows.

Members do what they are told, as real ones do: they remember their epoch and assignment, and name
what they own in their next heartbeat. Times are seconds since the start.

    topics orders=6 payments=2      what exists at the start
    assignments every 1 s           the pause between two target assignments; 0 s unless given
    A joins (instance one)          also: topics orders+payments, regex ord.*, assignor range,
                                    rebalance 60 s
    A beats                         names what it owns
    A beats quietly                 names nothing: nothing has changed
    A beats in vain                 its answer is lost
    A beats (epoch 7)               with a wrong epoch
    A beats (topics payments)       changes its subscription; also: regex ord.*
    A leaves, A leaves for a while  for good, or as a static member that returns
    A restarts                      with another member id; it owns nothing
    A commits orders-0 at 42        also: (epoch 7)
    describe, wait 10 s, restart broker, resolve, create later=2, grow orders=8
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from groups.transcript import code_name, duration_ms, split_partition
from penstock.coordination.effects import LogRecord
from penstock.groups.config import ConsumerGroupConfig, ConsumerGroupSettings
from penstock.groups.consumer.records import (
    CurrentEntry,
    EpochEntry,
    MemberEntry,
    RegexEntry,
    TargetEntry,
    TargetEpochEntry,
    TopicIdPartition,
    read_entry,
)
from penstock.groups.formats import OffsetEntry, read_record
from penstock.wire.messages import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

from .bench import ConsumerBench, Member, join_request, listed


@dataclass
class Actor:
    member: Member
    lives: int = 1


class Player:
    def __init__(self) -> None:
        self.bench = ConsumerBench()
        self.actors: dict[str, Actor] = {}
        self.output: list[str] = []
        self.state = "-"
        self._listen()

    def _listen(self) -> None:
        self.bench.on_log = self._on_log

    def play(self, line: str) -> list[str]:
        self.output = []
        text, _, rest = line.partition(" (")
        given = [part.strip().partition(" ") for part in rest.rstrip(")").split(",") if part]
        options = {name: value for name, _, value in given}
        words = text.split()
        command = getattr(self, f"_{words[0]}", None)
        if command is not None:
            command(words[1:])
        else:
            actor = self.actors.setdefault(words[0], Actor(Member(f"{words[0]}-1")))
            getattr(self, f"_member_{words[1]}")(words[0], actor, words[2:], options)
        self._show_state()
        return self.output

    def say(self, text: str) -> None:
        self.output.append(f"    {self.bench.ticks_ms / 1000:.3f}  {text}")

    def _show_state(self) -> None:
        group = self.bench.shard.state.consumer("g")
        state = "-" if group is None else group.state.value
        if group is not None:
            group.verify()
        if state != self.state:
            self.say(f"g: {self.state} -> {state}")
        self.state = state

    # Members

    def _member_joins(
        self, name: str, actor: Actor, words: list[str], options: dict[str, str]
    ) -> None:
        member = actor.member
        if "topics" in options:
            member.names = tuple(options["topics"].split("+"))
        if "regex" in options:
            member.names, member.regex = (), options["regex"]
        member.instance = options.get("instance", member.instance)
        member.assignor = options.get("assignor", member.assignor)
        if "rebalance" in options:
            member.rebalance_ms = duration_ms(options["rebalance"])
        member.owned = set()
        self._ask(name, member, join_request(member))

    def _member_beats(
        self, name: str, actor: Actor, words: list[str], options: dict[str, str]
    ) -> None:
        member = actor.member
        request = ConsumerGroupHeartbeatRequest(
            "g", member.member_id, int(options.get("epoch", member.epoch)), member.instance
        )
        if words != ["quietly"]:
            request.topic_partitions = listed(member.owned)
        if "topics" in options:
            member.names = tuple(options["topics"].split("+"))
            request.subscribed_topic_names = list(member.names)
        if "regex" in options:
            request.subscribed_topic_regex = options["regex"]
        self._ask(name, member, request, lost=words == ["in", "vain"])

    def _member_leaves(
        self, name: str, actor: Actor, words: list[str], options: dict[str, str]
    ) -> None:
        response = self.bench.leave(actor.member, -2 if words else -1)
        self._tell(name, response)
        actor.member.owned = set()

    def _member_restarts(
        self, name: str, actor: Actor, words: list[str], options: dict[str, str]
    ) -> None:
        actor.lives += 1
        actor.member.member_id = f"{name}-{actor.lives}"
        actor.member.owned = set()
        actor.member.epoch = 0

    def _member_commits(
        self, name: str, actor: Actor, words: list[str], options: dict[str, str]
    ) -> None:
        topic, index = split_partition(words[0])
        assert topic == "orders", "scripts commit offsets of orders only"
        epoch = int(options.get("epoch", actor.member.epoch))
        codes = self.bench.commit(actor.member.member_id, epoch, {index: int(words[2])})
        self.say(f"{name} <- commit: {' '.join(map(code_name, codes))}")

    def _ask(
        self,
        name: str,
        member: Member,
        request: ConsumerGroupHeartbeatRequest,
        *,
        lost: bool = False,
    ) -> None:
        response = self.bench.ask(request)
        if lost:
            self.say(f"{name} <- nothing")
            return
        member.take(response)
        self._tell(name, response)

    def _tell(self, name: str, response: ConsumerGroupHeartbeatResponse) -> None:
        if response.error_code:
            self.say(f"{name} <- {code_name(response.error_code)}")
            return
        text = f"{name} <- epoch {response.member_epoch}"
        if response.assignment is not None:
            given = [
                TopicIdPartition(topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            ]
            text += f", assigned {self._shown(given)}"
        self.say(text)

    # The cluster

    def _topics(self, words: list[str]) -> None:
        counts = dict(word.split("=") for word in words)
        consumer = self.bench.consumer
        self.bench = ConsumerBench({name: int(count) for name, count in counts.items()}, consumer)
        self._listen()

    def _assignments(self, words: list[str]) -> None:
        settings = ConsumerGroupSettings(assignment_interval_ms=duration_ms(" ".join(words[1:])))
        counts = {name: found.partitions for name, found in self.bench.topics.known.items()}
        self.bench = ConsumerBench(counts, ConsumerGroupConfig(settings))
        self._listen()

    def _create(self, words: list[str]) -> None:
        for name, count in (word.split("=") for word in words):
            self.bench.topics.create(name, int(count))
        self.bench.shard.on_topics_changed(self.bench.topics.touched(), created=True)

    def _grow(self, words: list[str]) -> None:
        for name, count in (word.split("=") for word in words):
            self.bench.topics.grow(name, int(count))
        self.bench.shard.on_topics_changed(self.bench.topics.touched(), created=False)

    def _resolve(self, words: list[str]) -> None:
        self.bench.resolve()

    def _wait(self, words: list[str]) -> None:
        self.bench.advance(duration_ms(" ".join(words)), self._show_state)

    def _restart(self, words: list[str]) -> None:
        self.bench.restart()

    def _describe(self, words: list[str]) -> None:
        group = self.bench.shard.describe_consumer_group("g")
        self.say(
            f"g is {group.group_state}, epoch {group.group_epoch}, "
            f"assignment epoch {group.assignment_epoch}, {group.assignor_name}"
        )
        for member in group.members:
            has = self._named(member.assignment.topic_partitions)
            target = self._named(member.target_assignment.topic_partitions)
            self.say(
                f"  {member.member_id} epoch {member.member_epoch} has {has}"
                + ("" if has == target else f", shall have {target}")
            )

    # Output

    def _on_log(self, record: LogRecord) -> None:
        entry = read_entry(record.key, record.value)
        match entry:
            case EpochEntry(_, value):
                self.say(f"log: group epoch {value.epoch if value else 'gone'}")
            case TargetEpochEntry(_, value):
                self.say(f"log: target epoch {value.epoch if value else 'gone'}")
            case MemberEntry(_, member_id, value):
                wants = "gone" if value is None else self._wants(value.names, value.regex)
                self.say(f"log: member {member_id} {wants}")
            case TargetEntry(_, member_id, value):
                target = "gone" if value is None else self._shown(value)
                self.say(f"log: target of {member_id} {target}")
            case CurrentEntry(_, member_id, value):
                if value is None:
                    self.say(f"log: current of {member_id} gone")
                    return
                text = f"epoch {value.epoch} {value.state.name} {self._shown(value.assigned)}"
                gives = f", gives up {self._shown(value.pending)}" if value.pending else ""
                self.say(f"log: current of {member_id} {text}{gives}")
            case RegexEntry(_, regex, resolved):
                found = "gone" if resolved is None else "+".join(sorted(resolved.topics))
                self.say(f"log: expression {regex} {found}")
            case None:
                self._on_other(record)

    def _on_other(self, record: LogRecord) -> None:
        entry = read_record(record.key, record.value)
        assert isinstance(entry, OffsetEntry), entry
        what = "gone" if entry.value is None else f"at {entry.value.offset}"
        self.say(f"log: offset of {entry.key.topic}-{entry.key.partition} {what}")

    def _wants(self, names: Iterable[str], regex: str | None) -> str:
        return "wants " + "+".join([*sorted(names), *([f"/{regex}/"] if regex else [])])

    def _shown(self, partitions: Iterable[TopicIdPartition]) -> str:
        named = (
            (self.bench.topics.name_of(each.topic_id) or "?", each.partition) for each in partitions
        )
        return " ".join(f"{topic}-{index}" for topic, index in sorted(named)) or "nothing"

    @staticmethod
    def _named(topics: Iterable[ConsumerGroupDescribeResponse.TopicPartitions]) -> str:
        shown = [f"{topic.topic_name}-{index}" for topic in topics for index in topic.partitions]
        return " ".join(sorted(shown)) or "nothing"


def perform(script: str) -> str:
    """Returns the script with the actual results below each line."""
    head, _, body = script.partition("\n\n")
    player = Player()
    lines = [head, ""]
    for line in body.split("\n"):
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += player.play(line)
    return "\n".join(lines)
