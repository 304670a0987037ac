"""Plays the scripts in `tests/scripts/group_migration`: one group that moves between the classic
protocol and the new one.

A line at the margin is an event, what follows is indented below it. The text above the first empty
line says what the script shows. Times are seconds since the start.

Members with small letters (x, y, z) speak the classic protocol, those with capital letters (A, B)
the new one. All do what real clients do: they remember what they were told. A classic member that
leads a classic group assigns its partitions, one by one in turn.

    orders=4                            the partitions of the topic, before anything else
    policy upgrade, size 2              group.consumer.migration.policy, group.consumer.max.size
    assignments every 1 s               at least; at every change unless given
    x joins                             also: (protocols range+sticky), (owning orders-0), (type
                                        connect), (instance one), (as A), (session 10 s),
                                        (rebalance 20 s), (user data)
    x syncs, x heartbeats               also: (generation 7) to be wrong, (protocol sticky)
    x leaves, x restarts                a classic member that restarts loses its id
    x commits orders-0 at 5             also: (generation 7), (v8)
    A joins                             also: (instance one), (as x-1), (rebalance 20 s)
    A beats                             names what it owns; also: (epoch 7), (quietly)
    A leaves
    A commits orders-0 at 5             also: (epoch 7), (v8)
    log holds, log commits, log fails
    wait 10 s, restart broker, describe
"""

from __future__ import annotations

from dataclasses import replace

from groups.transcript import (
    UNITS,
    by_topic,
    code_name,
    duration_ms,
    show_assignment,
    split_partition,
)
from penstock.coordination.effects import LogRecord, Token
from penstock.groups.config import ConsumerGroupConfig, ConsumerGroupSettings, MigrationPolicy
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.effects import RequestInfo
from penstock.groups.formats import GroupEntry, OffsetEntry, read_record
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupResponse,
)
from penstock.wire.messages.base import Request, Response

from .bench import EAGER, ConsumerBench, Member, join_request, listed
from .classic import ClassicClient, send
from .transcript import Player as ConsumerPlayer

SESSION_MS = 45_000


class Player:
    def __init__(self) -> None:
        self.partitions = 4
        self.config = EAGER
        self.classics: dict[str, ClassicClient] = {}
        self.members: dict[str, Member] = {}
        self.sessions: dict[str, int] = {}
        self.who: dict[Token, str] = {}
        self.pretends = False
        """The request is made up: the client does not take the answer seriously."""
        self.output: list[str] = []
        self.state = "-"
        self._begin()

    def _begin(self) -> None:
        self.bench = ConsumerBench({"orders": self.partitions}, self.config)
        self.bench.on_log = self._on_log
        self.bench.on_reply = self._on_reply
        # It knows how to show the records of the new protocol.
        self.records = ConsumerPlayer()
        self.records.bench = self.bench
        self.records.output = self.output

    def play(self, line: str) -> list[str]:
        self.output = self.records.output = []
        text, _, rest = line.partition(" (")
        options: dict[str, str] = {}
        for part in rest.rstrip(")").split(","):
            name, _, value = part.strip().partition(" ")
            options[name] = value
        options.pop("", None)
        words = text.replace(",", "").split()
        command = getattr(self, f"_{words[0].split('=')[0]}", None)
        if command is not None:
            command(*words)
        else:
            kind = "member" if words[0].isupper() else "classic"
            command = getattr(self, f"_{kind}_{words[1]}", None)
            assert command is not None, f"no such event: {line}"
            command(words[0], words[2:], options)
        assert not options, f"no such options: {options}"
        self._show_state()
        return [each.removeprefix("    ") for each in self.output]

    def say(self, text: str) -> None:
        self.records.say(text)

    def _show_state(self) -> None:
        self.bench.shard.verify()
        (group,) = self.bench.shard.list_groups() or (None,)
        state = "-" if group is None else f"{group.group_type} {group.group_state}"
        if state != self.state:
            self.say(f"g: {self.state} -> {state}")
        self.state = state

    # The beginning, and the broker

    def _orders(self, count: str) -> None:
        self.partitions = int(count.partition("=")[2])
        self._begin()

    def _policy(self, _: str, policy: str) -> None:
        self.config = replace(self.config, migration_policy=MigrationPolicy(policy))
        self._begin()

    def _size(self, _: str, count: str) -> None:
        self.config = replace(self.config, group_size_max=int(count))
        self._begin()

    def _assignments(self, *words: str) -> None:
        settings = ConsumerGroupSettings(assignment_interval_ms=duration_ms(" ".join(words[2:])))
        self.config = ConsumerGroupConfig(settings)
        self._begin()

    def _log(self, _: str, word: str) -> None:
        assert word in ("holds", "commits", "fails"), word
        self.bench.holds_log = word == "holds"
        self.bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS if word == "fails" else None
        if word != "holds":
            self.bench.settle()

    def _wait(self, _: str, count: str, unit: str) -> None:
        self.bench.advance(int(count) * UNITS[unit], self._show_state)

    def _restart(self, *words: str) -> None:
        self.bench.restart()

    def _describe(self, _: str) -> None:
        group = self.bench.shard.describe_groups(["g"], 6)[0]
        if group.error_code:
            self.say(f"DescribeGroups: {code_name(group.error_code)}")
        else:
            leads = f", {group.protocol_data}" if group.protocol_data else ""
            self.say(f"DescribeGroups: {group.group_state}{leads}")
            for each in group.members:
                has = show_assignment(each.member_assignment)
                self.say(f"  {each.member_id} has {has}")
        new = self.bench.shard.describe_consumer_group("g")
        if new.error_code:
            self.say(f"ConsumerGroupDescribe: {code_name(new.error_code)}")
            return
        self.say(
            f"ConsumerGroupDescribe: {new.group_state}, epoch {new.group_epoch}, "
            f"assignment epoch {new.assignment_epoch}"
        )
        for member in new.members:
            named = [
                f"{topic.topic_name}-{index}"
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            ]
            kind = "new" if member.member_type == 1 else "classic"
            has = " ".join(sorted(named)) or "nothing"
            self.say(f"  {member.member_id} ({kind}) epoch {member.member_epoch} has {has}")

    # Classic members

    def _client(self, name: str) -> ClassicClient:
        return self.classics.setdefault(name, ClassicClient(name, version=9))

    def _ask(self, client: ClassicClient, request: Request, version: int) -> None:
        self.who[self.bench.tokens + 1] = client.name
        send(self.bench, request, version, client.name)

    def _classic_joins(self, name: str, words: list[str], options: dict[str, str]) -> None:
        client = self._client(name)
        client.protocols = tuple(options.pop("protocols", "+".join(client.protocols)).split("+"))
        client.protocol_type = options.pop("type", client.protocol_type)
        client.instance = options.pop("instance", client.instance)
        client.member_id = options.pop("as", client.member_id)
        if "rebalance" in options:
            client.rebalance_ms = duration_ms(options.pop("rebalance"))
        if "session" in options:
            self.sessions[name] = duration_ms(options.pop("session"))
        if options.pop("user", "") == "data":
            client.user_data = b"of its own assignor"
        if "owning" in options:
            owned = by_topic(options.pop("owning").replace("nothing", "").split())
            client.owned = {(topic, index) for topic, found in owned.items() for index in found}
        request = client.joins()
        request.session_timeout_ms = self.sessions.get(name, SESSION_MS)
        self._ask(client, request, client.version)

    def _classic_syncs(self, name: str, words: list[str], options: dict[str, str]) -> None:
        client = self._client(name)
        client.counts = {"orders": self.partitions}
        request = client.syncs()
        self.pretends = bool(options)
        request.generation_id = int(options.pop("generation", client.generation))
        request.protocol_name = options.pop("protocol", request.protocol_name)
        self._ask(client, request, 5)
        self.pretends = False

    def _classic_heartbeats(self, name: str, words: list[str], options: dict[str, str]) -> None:
        client = self._client(name)
        request = client.beats()
        self.pretends = bool(options)
        request.generation_id = int(options.pop("generation", client.generation))
        self._ask(client, request, 4)
        self.pretends = False

    def _classic_leaves(self, name: str, words: list[str], options: dict[str, str]) -> None:
        client = self._client(name)
        leaving = LeaveGroupRequest.Member(client.member_id, client.instance)
        self._ask(client, LeaveGroupRequest("g", members=[leaving]), 4)

    def _classic_restarts(self, name: str, words: list[str], options: dict[str, str]) -> None:
        client = self._client(name)
        client.member_id, client.generation, client.owned = "", -1, set()

    def _classic_commits(self, name: str, words: list[str], options: dict[str, str]) -> None:
        client = self._client(name)
        generation = int(options.pop("generation", client.generation))
        version = 8 if "v8" in options else 9
        options.pop("v8", None)
        member = client.member_id, client.instance
        self._commit(name, OffsetCommitRequest("g", generation, *member), words, version)

    def _commit(
        self, name: str, request: OffsetCommitRequest, words: list[str], version: int
    ) -> None:
        topic, index = split_partition(words[0])
        partition = OffsetCommitRequest.Partition(index, int(words[2]))
        request.topics = [OffsetCommitRequest.Topic(topic, partitions=[partition])]
        self.bench.tokens += 1
        token = self.bench.tokens
        self.who[token] = name
        info = RequestInfo(name, "/127.0.0.1", version)
        self.bench.carry_out(self.bench.shard.offset_commit(request, info, token, self.bench.now))

    # Members of the new protocol

    def _new(self, name: str) -> Member:
        return self.members.setdefault(name, Member(name))

    def _member_joins(self, name: str, words: list[str], options: dict[str, str]) -> None:
        member = self._new(name)
        member.instance = options.pop("instance", member.instance)
        member.member_id = options.pop("as", member.member_id)
        if "rebalance" in options:
            member.rebalance_ms = duration_ms(options.pop("rebalance"))
        member.owned = set()
        self._send(name, join_request(member))

    def _member_beats(self, name: str, words: list[str], options: dict[str, str]) -> None:
        member = self._new(name)
        epoch = int(options.pop("epoch", member.epoch))
        request = ConsumerGroupHeartbeatRequest("g", member.member_id, epoch, member.instance)
        if "quietly" not in options:
            request.topic_partitions = listed(member.owned)
        options.pop("quietly", None)
        self._send(name, request)

    def _member_leaves(self, name: str, words: list[str], options: dict[str, str]) -> None:
        member = self._new(name)
        request = ConsumerGroupHeartbeatRequest("g", member.member_id, -1, member.instance)
        self._send(name, request)

    def _send(self, name: str, request: ConsumerGroupHeartbeatRequest) -> None:
        self.who[self.bench.tokens + 1] = name
        self.bench.send(request)

    def _member_commits(self, name: str, words: list[str], options: dict[str, str]) -> None:
        member = self._new(name)
        epoch = int(options.pop("epoch", member.epoch))
        version = 8 if "v8" in options else 9
        options.pop("v8", None)
        request = OffsetCommitRequest("g", epoch, member.member_id, member.instance)
        self._commit(name, request, words, version)

    # Output

    def _on_reply(self, token: Token, response: Response) -> None:
        name = self.who[token]
        match response:
            case ConsumerGroupHeartbeatResponse():
                text = self._new_told(self.members[name], response)
            case JoinGroupResponse():
                text = self._joined(self.classics[name], response)
            case SyncGroupResponse():
                text = self._synced(self.classics[name], response)
            case HeartbeatResponse():
                if not self.pretends:
                    self.classics[name].on_beat(ErrorCode(response.error_code))
                text = f"heartbeat: {code_name(response.error_code)}"
            case LeaveGroupResponse():
                codes = [response.error_code, *(each.error_code for each in response.members)]
                text = f"leave: {code_name(max(codes))}"
            case OffsetCommitResponse():
                code = response.topics[0].partitions[0].error_code
                text = f"commit: {code_name(code)}"
            case _:
                raise AssertionError(response)
        self.say(f"{name} <- {text}")

    def _new_told(self, member: Member, response: ConsumerGroupHeartbeatResponse) -> str:
        member.take(response)
        if response.error_code:
            return code_name(response.error_code)
        text = f"epoch {response.member_epoch}"
        if response.assignment is not None:
            text += f", assigned {self._shown(member.owned)}"
        return text

    def _shown(self, partitions: set[TopicIdPartition]) -> str:
        return " ".join(f"orders-{each.partition}" for each in sorted(partitions)) or "nothing"

    def _joined(self, client: ClassicClient, response: JoinGroupResponse) -> str:
        client.on_joined(response)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return f"join: MEMBER_ID_REQUIRED, come back as {response.member_id}"
        if response.error_code:
            return f"join: {code_name(response.error_code)}"
        leads = {"": "nobody leads", client.member_id: "you lead"}
        role = leads.get(response.leader, f"{response.leader} leads")
        return f"join: generation {response.generation_id}, {response.protocol_name}, {role}"

    def _synced(self, client: ClassicClient, response: SyncGroupResponse) -> str:
        if not self.pretends:
            client.on_synced(response)
        if response.error_code:
            return f"sync: {code_name(response.error_code)}"
        return f"sync: {show_assignment(response.assignment)}"

    def _on_log(self, record: LogRecord) -> None:
        match entry := read_record(record.key, record.value):
            case GroupEntry(_, value):
                if value is None:
                    self.say("log: classic group gone")
                    return
                none = "" if value.members else ", no members"
                self.say(f"log: classic group, generation {value.generation}{none}")
                for each in value.members:
                    self.say(f"  {each.member_id} has {show_assignment(each.assignment)}")
            case OffsetEntry():
                what = "gone" if entry.value is None else f"at {entry.value.offset}"
                self.say(f"log: offset of {entry.key.topic}-{entry.key.partition} {what}")
            case _:
                self.records._on_log(record)
