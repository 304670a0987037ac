"""Plays the scripts in `tests/scripts/share_groups`: the coordinator of one share group.

A line at the margin is an event, what follows is indented below it. The text above the first empty
line says what the script shows. Times are seconds since the start.

Members remember their epoch and assignment, as real ones do. The share coordinator is not part of
this: its calls wait until the script says how they end.

    topics jobs=4 mail=2                what exists at the start
    assignments every 1 s               at least; at every change unless given
    size 2                              the largest size of a group
    retry at most 3 s                   the longest pause between two tries of a call
    anna joins                          also: (topics jobs+mail)
    anna beats                          also: (epoch 7) with a wrong epoch, (topics mail),
                                        (in vain): the answer is lost
    anna leaves
    anna sends (id -, epoch 0)          a join with another field: - is empty, and `topics none` an
                                        empty list
    consumer joins                      a member of a consumer group with the same id
    calls succeed, calls fail           the calls of the share coordinator that are under way
    calls are late                      their results come later: late calls succeed
    alter jobs-0 to 10, delete offsets of jobs, delete the group
    create mail=2, grow jobs=6, delete topic jobs
    log holds, log commits, log fails   the log of the group coordinator
    wait 10 s, restart broker, unload broker, describe
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from groups.consumer import bench as consumers
from groups.transcript import code_name, duration_ms, split_partition
from penstock.coordination.effects import LogRecord, Token
from penstock.groups.config import ShareGroupSettings
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.effects import Effect, RequestInfo, ShareStateCall
from penstock.groups.share.records import (
    CurrentEntry,
    EpochEntry,
    MemberEntry,
    ShareStates,
    StatesEntry,
    TargetEntry,
    TargetEpochEntry,
    TopicShares,
    read_entry,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from penstock.wire.messages.base import Response

from .bench import EAGER, Member, ShareBench, heartbeat

INFO = RequestInfo("c", "/127.0.0.1", 1)


class Player:
    def __init__(self) -> None:
        self.counts = {"jobs": 4}
        self.config = EAGER
        self.names: dict[bytes, str] = {}
        self.members: dict[str, Member] = {}
        self.who: dict[Token, str] = {}
        self.lost = False
        self.late: list[ShareStateCall] = []
        self.output: list[str] = []
        self.state = "-"
        self._begin()

    def _begin(self) -> None:
        self.bench = bench = ShareBench(self.counts, self.config)
        bench.on_log = self._on_log
        bench.on_reply = self._on_reply
        carry_out = bench.carry_out

        def listening(effects: list[Effect]) -> None:
            for effect in effects:
                if isinstance(effect, ShareStateCall):
                    self._on_call(effect)
            carry_out(effects)

        bench.carry_out = listening  # type: ignore[method-assign]

    def play(self, line: str) -> list[str]:
        self.output = []
        text, _, rest = line.partition(" (")
        given = [part.strip().partition(" ") for part in rest.rstrip(")").split(",") if part]
        options = {name: value for name, _, value in given}
        words = text.split()
        command = getattr(self, f"_{words[0]}", None)
        if command is None:
            command = getattr(self, f"_member_{words[1]}", None)
            assert command is not None, f"no such event: {line}"
            command(words[0], options)
        else:
            assert not options, f"no such event: {line}"
            command(*words[1:])
        self._show_state()
        return self.output

    def say(self, text: str) -> None:
        self.output.append(f"{self.bench.ticks_ms / 1000:.3f}  {text}")

    def _show_state(self) -> None:
        self.bench.shard.verify()
        group = self.bench.shard.state.share_groups.get("g")
        state = "-" if group is None else group.state.value
        if state != self.state:
            self.say(f"g: {self.state} -> {state}")
        self.state = state

    # Members

    def _member(self, name: str) -> Member:
        return self.members.setdefault(name, Member(name))

    def _member_joins(self, name: str, options: dict[str, str]) -> None:
        member = self._member(name)
        member.epoch = 0
        if "topics" in options:
            member.names = tuple(options.pop("topics").split("+"))
        self._send(name, heartbeat(member), options)

    def _member_beats(self, name: str, options: dict[str, str]) -> None:
        request = heartbeat(self._member(name), member_epoch=self._member(name).epoch)
        self.lost = options.pop("in", "") == "vain"
        if "epoch" in options:
            request.member_epoch = int(options.pop("epoch"))
        if "topics" in options:
            request.subscribed_topic_names = options.pop("topics").split("+")
        self._send(name, request, options)
        self.lost = False

    def _member_leaves(self, name: str, options: dict[str, str]) -> None:
        self._send(name, ShareGroupHeartbeatRequest("g", name, -1), options)

    def _member_sends(self, name: str, options: dict[str, str]) -> None:
        request = ShareGroupHeartbeatRequest(
            {"-": ""}.get(options.pop("group", "g"), "g"),
            {"-": "", "long": "m" * 37}.get(options.pop("id", name), name),
            int(options.pop("epoch", "0")),
            {"-": ""}.get(options.pop("rack", "r1")),
            None if "topics" in options else ["jobs"],
        )
        if options.pop("topics", "-") == "none":
            request.subscribed_topic_names = []
        self._send(name, request, options)

    def _send(
        self, name: str, request: ShareGroupHeartbeatRequest, options: dict[str, str]
    ) -> None:
        assert not options, f"no such options: {options}"
        self.who[self.bench.tokens + 1] = name
        self.bench.send(request)

    def _consumer(self, *words: str) -> None:
        """A member of a consumer group of the same id."""
        assert words == ("joins",)
        token = self._token("consumer")
        effects = self.bench.shard.consumer_heartbeat(
            consumers.join_request(consumers.Member("c", ("jobs",))),
            INFO,
            lambda topic: True,
            token,
            self.bench.now,
        )
        self.bench.carry_out(effects)

    # The share coordinator

    def _calls(self, *words: str) -> None:
        if words == ("are", "late"):
            self.late, self.bench.calls = self.bench.calls, []
            return
        assert words in (("succeed",), ("fail",)), words
        self.bench.make_calls(failing=words == ("fail",))

    def _late(self, *words: str) -> None:
        assert words == ("calls", "succeed")
        for call in self.late:
            self.bench.make_call(call)

    # Operators and topics

    def _token(self, who: str) -> int:
        self.bench.tokens += 1
        self.who[self.bench.tokens] = who
        return self.bench.tokens

    def _alter(self, *words: str) -> None:
        topic, index = split_partition(words[0])
        partition = AlterShareGroupOffsetsRequest.Partition(index, int(words[2]))
        request = AlterShareGroupOffsetsRequest(
            "g", [AlterShareGroupOffsetsRequest.Topic(topic, [partition])]
        )
        token = self._token("operator")
        self._do(self.bench.shard.alter_share_offsets(request, INFO, token, self.bench.now))

    def _delete(self, *words: str) -> None:
        shard, now = self.bench.shard, self.bench.now
        match words:
            case "topic", name:
                topic_id = self.bench.topics.known[name].topic_id
                self.bench.topics.delete(name)
                shard.on_topics_changed(self.bench.topics.touched(), created=False)
                self._do(shard.on_topics_deleted([topic_id], now))
            case "offsets", "of", name:
                topic = DeleteShareGroupOffsetsRequest.Topic(name)
                request = DeleteShareGroupOffsetsRequest("g", [topic])
                self._do(shard.delete_share_offsets(request, INFO, self._token("operator"), now))
            case "the", "group":
                token = self._token("operator")
                self._do(shard.delete_groups(DeleteGroupsRequest(["g"]), INFO, token, now))
            case _:
                raise AssertionError(words)

    def _do(self, effects: list[Effect]) -> None:
        self.bench.carry_out(effects)

    def _topics(self, *words: str) -> None:
        self.counts = {name: int(count) for name, count in (word.split("=") for word in words)}
        self._begin()

    def _assignments(self, every: str, *time: str) -> None:
        settings = ShareGroupSettings(assignment_interval_ms=duration_ms(" ".join(time)))
        self.config = replace(self.config, settings=settings)
        self._begin()

    def _size(self, count: str) -> None:
        self.config = replace(self.config, group_size_max=int(count))
        self._begin()

    def _retry(self, at: str, most: str, *time: str) -> None:
        self.config = replace(self.config, retry_max_ms=duration_ms(" ".join(time)))
        self._begin()

    def _create(self, *words: str) -> None:
        for name, count in (word.split("=") for word in words):
            self.bench.topics.create(name, int(count))
        self.bench.shard.on_topics_changed(self.bench.topics.touched(), created=True)

    def _grow(self, *words: str) -> None:
        for name, count in (word.split("=") for word in words):
            self.bench.topics.grow(name, int(count))
        self.bench.shard.on_topics_changed(self.bench.topics.touched(), created=False)

    # The broker

    def _log(self, word: str) -> None:
        assert word in ("holds", "commits", "fails"), word
        self.bench.holds_log = word == "holds"
        self.bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS if word == "fails" else None
        if word != "holds":
            self.bench.settle()

    def _wait(self, *words: str) -> None:
        self.bench.advance(duration_ms(" ".join(words)), self._show_state)

    def _restart(self, word: str) -> None:
        self.bench.calls.clear()
        self.bench.restart()

    def _unload(self, word: str) -> None:
        self.bench.carry_out(self.bench.shard.unload())

    def _describe(self) -> None:
        group = self.bench.shard.describe_share_group("g")
        if group.error_code:
            self.say(f"g: {code_name(group.error_code)}")
            return
        self.say(
            f"g is {group.group_state}, epoch {group.group_epoch}, "
            f"assignment epoch {group.assignment_epoch}"
        )
        for member in group.members:
            has = [
                f"{topic.topic_name}-{index}"
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            ]
            shown = " ".join(sorted(has)) or "nothing"
            self.say(f"  {member.member_id} epoch {member.member_epoch} has {shown}")

    # Output

    def _on_reply(self, token: Token, response: Response) -> None:
        name = self.who[token]
        match response:
            case ShareGroupHeartbeatResponse():
                self._tell(name, response)
            case ConsumerGroupHeartbeatResponse():
                self.say(f"{name} <- {code_name(response.error_code)}")
            case AlterShareGroupOffsetsResponse() | DeleteShareGroupOffsetsResponse():
                self.say(f"{name} <- {code_name(_code_of(response))}")
            case DeleteGroupsResponse():
                self.say(f"{name} <- {code_name(response.results[0].error_code)}")
            case _:
                raise AssertionError(response)

    def _tell(self, name: str, response: ShareGroupHeartbeatResponse) -> None:
        if self.lost:
            self.say(f"{name} <- nothing")
            return
        if response.error_code:
            self.say(f"{name} <- {code_name(response.error_code)}")
            return
        if name in self.members:
            self.members[name].take(response)
        if response.member_epoch < 0:
            self.say(f"{name} <- epoch {response.member_epoch}")
            return
        text = f"{name} <- epoch {response.member_epoch}"
        if response.assignment is not None:
            given = [
                TopicIdPartition(topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            ]
            text += f", assigned {self._shown(given)}"
        if response.heartbeat_interval_ms != self.config.settings.heartbeat_interval_ms:
            text += f", next heartbeat in {response.heartbeat_interval_ms} ms"
        self.say(text)

    def _on_call(self, call: ShareStateCall) -> None:
        for start in sorted({each.start_offset for each in call.initialize}):
            wanted = [each for each in call.initialize if each.start_offset == start]
            epochs = sorted({each.state_epoch for each in wanted})
            assert len(epochs) == 1, "the partitions of a call have one epoch"
            shown = self._shown(each.partition for each in wanted)
            self.say(f"call: initialize {shown} with state epoch {epochs[0]} at {start}")
        if call.delete:
            self.say(f"call: delete {self._shown(call.delete)}")

    def _on_log(self, record: LogRecord) -> None:
        entry = read_entry(record.key, record.value)
        match entry:
            case EpochEntry(_, value):
                self.say(f"log: group epoch {value.epoch if value else 'gone'}")
            case TargetEpochEntry(_, value):
                self.say(f"log: target epoch {value.epoch if value else 'gone'}")
            case MemberEntry(_, member_id, value):
                wants = "gone" if value is None else f"wants {'+'.join(sorted(value.names))}"
                self.say(f"log: member {member_id} {wants}")
            case TargetEntry(_, member_id, value):
                shown = "gone" if value is None else self._shown(value)
                self.say(f"log: target of {member_id} {shown}")
            case CurrentEntry(_, member_id, value):
                text = "gone"
                if value is not None:
                    text = f"epoch {value.epoch} {self._shown(value.assigned)}"
                self.say(f"log: current of {member_id} {text}")
            case StatesEntry(_, value):
                self._on_states(value)
            case _:
                self.say("log: a record of a consumer group")

    def _on_states(self, states: ShareStates | None) -> None:
        if states is None:
            self.say("log: states gone")
            return
        deleting = [states.deleting[topic_id] for topic_id in sorted(states.deleting)]
        lists = {
            "initializing": self._listed(states.initializing.values()),
            "initialized": self._listed(states.initialized.values()),
            "deleting": " ".join(deleting),
        }
        shown = "; ".join(f"{name} {text}" for name, text in lists.items() if text)
        self.say(f"log: states {shown or 'none'}")

    @staticmethod
    def _listed(topics: Iterable[TopicShares]) -> str:
        each = [f"{topic.name}-{index}" for topic in topics for index in topic.partitions]
        return " ".join(sorted(each))

    def _shown(self, partitions: Iterable[TopicIdPartition]) -> str:
        # A topic that was deleted has its name still.
        self.names.update((each.topic_id, name) for name, each in self.bench.topics.known.items())
        named = ((self.names[each.topic_id], each.partition) for each in partitions)
        return " ".join(f"{topic}-{index}" for topic, index in sorted(named)) or "nothing"


def _code_of(response: AlterShareGroupOffsetsResponse | DeleteShareGroupOffsetsResponse) -> int:
    codes = [response.error_code]
    if isinstance(response, AlterShareGroupOffsetsResponse):
        codes += [each.error_code for topic in response.responses for each in topic.partitions]
    else:
        codes += [topic.error_code for topic in response.responses]
    return max(codes, key=abs)
