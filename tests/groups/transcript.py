"""Plays the scripts in `tests/scripts/groups`.

A line at the margin is an event. The indented lines below it are its consequences. The text above
the first empty line says what the script shows.

Clients remember what they receive, as real ones do: member id, generation and protocol. The log
commits at once unless the script holds it. Times are seconds since the start.

    config group_size_max=2            settings of the coordinator, before anything else
    A joins (v5, range, session 10 s)  also: rebalance 60 s, instance one, type connect,
                                       group other, topics orders+payments, owning orders-0,
                                       several protocols
    A syncs (A=orders-0; B=orders-1)   the leader's assignment; (generation 7) to be wrong
    A heartbeats, A leaves, A restarts (loses its member id), remove instance one
    A commits orders-0 at 42 "note"    a client that never joined commits without a member id;
                                       also: (group other), (generation 7) to be wrong
    A fetches orders-0 orders-1        or: A fetches everything
    describe g, list, list (Stable), delete group g, delete offset orders-0
    wait 10 s, restart broker, unload broker, log holds, log commits, log fails CODE
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.coordination.effects import LogRecord, Token
from penstock.groups.config import GroupConfig
from penstock.groups.effects import RequestInfo
from penstock.groups.formats import GroupEntry, OffsetEntry, read_record
from penstock.groups.offset_fetch import response_of
from penstock.wire.codec import decode_embedded, encode, encode_embedded
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from penstock.wire.messages.base import Response

from .world import World

UNITS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass
class Client:
    name: str
    member_id: str = ""
    generation: int = -1
    protocol: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    protocols: list[str] = field(default_factory=lambda: ["range"])

    def forget(self) -> None:
        self.member_id, self.generation, self.protocol = "", -1, None

    def option(self, name: str, default: str = "") -> str:
        return self.options.get(name, default)

    @property
    def instance(self) -> str | None:
        return self.options.get("instance")


def duration_ms(text: str) -> int:
    number, unit = text.split()
    return int(number) * UNITS[unit]


def split_partition(text: str) -> tuple[str, int]:
    topic, _, index = text.rpartition("-")
    return topic, int(index)


def by_topic(partitions: Iterable[str]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in map(split_partition, partitions):
        topics.setdefault(topic, []).append(index)
    return topics


def code_name(code: int) -> str:
    return ErrorCode(code).name


def show_assignment(assignment: bytes) -> str:
    if not assignment:
        return "nothing"
    try:
        _, decoded = decode_embedded(ConsumerProtocolAssignment, assignment)
    except ProtocolError:
        return repr(assignment)
    shown = [f"{t.topic}-{index}" for t in decoded.assigned_partitions for index in t.partitions]
    return " ".join(shown) or "nothing"


def show_subscription(metadata: bytes) -> str:
    try:
        _, decoded = decode_embedded(ConsumerProtocolSubscription, metadata)
    except ProtocolError:
        return repr(metadata)
    owned = [f"{t.topic}-{index}" for t in decoded.owned_partitions for index in t.partitions]
    return "+".join(decoded.topics) + (" owning " + " ".join(owned) if owned else "")


class Player:
    def __init__(self) -> None:
        self.world = World()
        self.clients: dict[str, Client] = {}
        self.output: list[str] = []
        self.states: dict[str, str] = {}
        self.tokens = 0
        self._listen()

    def _listen(self) -> None:
        self.world.on_reply = self._on_reply
        self.world.on_log = self._on_log

    def play(self, line: str) -> list[str]:
        self.output = []
        text, _, rest = line.partition(" (")
        options = [option.strip() for option in re.split("[,;]", rest.rstrip(")")) if option]
        words = text.split()
        command = {
            "config": self._config,
            "wait": self._wait,
            "restart": self._restart,
            "unload": self._unload,
            "log": self._log_command,
            "describe": self._describe,
            "list": self._list,
            "delete": self._delete,
            "remove": self._remove,
        }.get(words[0])
        if command is not None:
            command(words[1:], options)
        else:
            client = self.clients.setdefault(words[0], Client(words[0]))
            getattr(self, f"_{words[1]}")(client, words[2:], options, text)
        self._show_states()
        self.world.shard.verify()
        return self.output

    def say(self, text: str) -> None:
        self.output.append(f"    {self.world.ticks_ms / 1000:.3f}  {text}")

    def _show_states(self) -> None:
        groups = {group.group_id: group.group_state for group in self.world.shard.list_groups()}
        for group_id in sorted(groups.keys() | self.states.keys()):
            before, after = self.states.get(group_id, "-"), groups.get(group_id, "-")
            if before != after:
                self.say(f"{group_id}: {before} -> {after}")
        self.states = groups

    def _token(self, who: str, what: str) -> Token:
        self.tokens += 1
        return who, what, self.tokens

    def _info(self, client: Client, default: int) -> RequestInfo:
        return RequestInfo(client.name, "/10.0.0.1", int(client.option("version", str(default))))

    # Client commands

    def _joins(self, client: Client, words: list[str], options: list[str], text: str) -> None:
        self._read_options(client, options)
        version = int(client.option("version", "5"))
        kind = client.option("type", "consumer")
        metadata = b"opaque"
        if kind == "consumer":
            owned = by_topic(client.option("owning").split())
            metadata = encode_embedded(
                ConsumerProtocolSubscription(
                    client.option("topics", "orders").split("+"),
                    owned_partitions=[
                        ConsumerProtocolSubscription.TopicPartition(topic, indexes)
                        for topic, indexes in owned.items()
                    ],
                ),
                1,
            )
        request = JoinGroupRequest(
            client.option("group", "g"),
            duration_ms(client.option("session", "10 s")),
            duration_ms(client.option("rebalance", "60 s")) if version else -1,
            client.member_id,
            client.instance,
            kind,
            [JoinGroupRequest.Protocol(name, metadata) for name in client.protocols],
        )
        encode(request, version)
        token = self._token(client.name, f"join {version}")
        shard, info = self.world.shard, self._info(client, version)
        self.world.carry_out(shard.join_group(request, info, token, self.world.now))

    def _read_options(self, client: Client, options: list[str]) -> None:
        protocols = []
        client.options.pop("owning", None)
        for option in options:
            name, _, value = option.partition(" ")
            if re.fullmatch(r"v\d+", option):
                client.options["version"] = option[1:]
            elif value:
                client.options[name] = value
            else:
                protocols.append(option)
        client.protocols = protocols or client.protocols

    def _restarts(self, client: Client, words: list[str], options: list[str], text: str) -> None:
        client.forget()

    def _syncs(self, client: Client, words: list[str], options: list[str], text: str) -> None:
        generation, assignments = client.generation, []
        for option in options:
            if option.startswith("generation "):
                generation = int(option.split()[1])
                continue
            name, _, partitions = option.partition("=")
            assignment = ConsumerProtocolAssignment(
                [
                    ConsumerProtocolAssignment.TopicPartition(topic, indexes)
                    for topic, indexes in by_topic(partitions.split()).items()
                ]
            )
            assignments.append(
                SyncGroupRequest.Assignment(
                    self.clients[name].member_id, encode_embedded(assignment, 1)
                )
            )
        version = 5 if client.protocol else 3
        request = SyncGroupRequest(
            client.option("group", "g"),
            generation,
            client.member_id,
            client.instance,
            client.option("type", "consumer") if client.protocol else None,
            client.protocol,
            assignments,
        )
        info = RequestInfo(client.name, "/10.0.0.1", version)
        token = self._token(client.name, "sync")
        self.world.carry_out(self.world.shard.sync_group(request, info, token, self.world.now))

    def _heartbeats(self, client: Client, words: list[str], options: list[str], text: str) -> None:
        request = HeartbeatRequest(
            client.option("group", "g"), client.generation, client.member_id, client.instance
        )
        token = self._token(client.name, "heartbeat")
        shard = self.world.shard
        self.world.carry_out(shard.heartbeat(request, self._info(client, 4), token, self.world.now))

    def _leaves(self, client: Client, words: list[str], options: list[str], text: str) -> None:
        leaving = LeaveGroupRequest.Member(client.member_id, client.instance)
        self._leave(client.name, client.option("group", "g"), leaving)

    def _remove(self, words: list[str], options: list[str]) -> None:
        self._leave("admin", "g", LeaveGroupRequest.Member("", words[1]))

    def _leave(self, who: str, group_id: str, leaving: LeaveGroupRequest.Member) -> None:
        request = LeaveGroupRequest(group_id, members=[leaving])
        info = RequestInfo(who, "/10.0.0.1", 4)
        token = self._token(who, "leave")
        self.world.carry_out(self.world.shard.leave_group(request, info, token, self.world.now))

    def _commits(self, client: Client, words: list[str], options: list[str], text: str) -> None:
        self._read_options(client, options)
        topic, index = split_partition(words[0])
        note = re.search(r'"(.*)"', text)
        generation = int(client.options.pop("generation", str(client.generation)))
        request = OffsetCommitRequest(
            client.option("group", "g"),
            generation,
            client.member_id,
            client.instance,
            topics=[
                OffsetCommitRequest.Topic(
                    topic,
                    partitions=[
                        OffsetCommitRequest.Partition(
                            index, int(words[2]), 3, note[1] if note else None
                        )
                    ],
                )
            ],
        )
        info, token = RequestInfo(client.name, "/10.0.0.1", 8), self._token(client.name, "commit")
        self.world.carry_out(self.world.shard.offset_commit(request, info, token, self.world.now))

    def _fetches(self, client: Client, words: list[str], options: list[str], text: str) -> None:
        self._read_options(client, options)
        topics = None
        if words != ["everything"]:
            topics = [
                OffsetFetchRequest.GroupTopic(topic, partition_indexes=indexes)
                for topic, indexes in by_topic(words).items()
            ]
        asked = OffsetFetchRequest.Group(client.option("group", "g"), topics=topics)
        answer = self.world.shard.fetch_offsets(asked, require_stable=False)
        self._on_reply((client.name, "fetch", 0), response_of([answer], 8))

    # Operator commands and faults

    def _config(self, words: list[str], options: list[str]) -> None:
        settings = dict(word.split("=") for word in words)
        self.world = World(GroupConfig(**{name: int(value) for name, value in settings.items()}))
        self._listen()

    def _wait(self, words: list[str], options: list[str]) -> None:
        self.world.advance(duration_ms(" ".join(words)), self._show_states)

    def _restart(self, words: list[str], options: list[str]) -> None:
        self.states = {}
        self.world.restart()

    def _unload(self, words: list[str], options: list[str]) -> None:
        self.world.carry_out(self.world.shard.unload())

    def _log_command(self, words: list[str], options: list[str]) -> None:
        self.world.holds_log = words[0] == "holds"
        self.world.fails_log = ErrorCode[words[1]] if words[0] == "fails" else None
        if not self.world.holds_log:
            self.world.settle()
            self.world.fails_log = None

    def _describe(self, words: list[str], options: list[str]) -> None:
        version = int(options[0][1:]) if options else 6
        for group in self.world.shard.describe_groups(words, version):
            encode(DescribeGroupsResponse(groups=[group]), version)
            if group.error_code:
                self.say(f"{group.group_id}: {code_name(group.error_code)}")
                continue
            protocol = f"{group.protocol_type} {group.protocol_data}".strip() or "no protocol"
            self.say(f"{group.group_id} is {group.group_state}, {protocol}")
            for member in group.members:
                instance = member.group_instance_id
                known_as = f" (instance {instance})" if instance else ""
                metadata = member.member_metadata
                wants = f" wants {show_subscription(metadata)}" if metadata else ""
                has = f" has {show_assignment(member.member_assignment)}" if metadata else ""
                host = f"{member.client_id} at {member.client_host}"
                self.say(f"  {member.member_id}{known_as}, {host}{wants}{has}")

    def _list(self, words: list[str], options: list[str]) -> None:
        states = [option for option in options if option not in {"classic", "consumer"}]
        types = [option for option in options if option not in states]
        for group in self.world.shard.list_groups(states, types):
            kind = group.protocol_type or "no protocol"
            self.say(f"{group.group_id}: {group.group_state}, {group.group_type}, {kind}")

    def _delete(self, words: list[str], options: list[str]) -> None:
        shard, info, now = self.world.shard, RequestInfo("admin", "/10.0.0.9", 0), self.world.now
        if words[0] == "group":
            token = self._token("admin", "delete")
            request = DeleteGroupsRequest(words[1:])
            self.world.carry_out(shard.delete_groups(request, info, token, now))
        else:
            topic, index = split_partition(words[1])
            token = self._token("admin", "delete")
            delete = OffsetDeleteRequest(
                "g", [OffsetDeleteRequest.Topic(topic, [OffsetDeleteRequest.Partition(index)])]
            )
            self.world.carry_out(shard.offset_delete(delete, info, token, now))

    # Output

    def _on_log(self, record: LogRecord) -> None:
        entry = read_record(record.key, record.value)
        if isinstance(entry, OffsetEntry):
            about = f"{entry.key.group} {entry.key.topic}-{entry.key.partition}"
            what = "gone" if entry.value is None else f"at {entry.value.offset}"
            self.say(f"log: offset of {about} {what}")
        elif isinstance(entry, GroupEntry):
            if entry.value is None:
                self.say(f"log: group {entry.key.group} gone")
                return
            members = "; ".join(
                f"{member.member_id}={show_assignment(member.assignment)}"
                for member in entry.value.members
            )
            about = f"{entry.key.group} generation {entry.value.generation}"
            self.say(f"log: group {about}: {members or 'no members'}")

    def _on_reply(self, token: Token, response: Response) -> None:
        assert isinstance(token, tuple)
        who, what, _ = token
        for line in self._show(who, what, response):
            self.say(f"{who} <- {what.split()[0]}: {line}")

    def _show(self, who: str, what: str, response: Response) -> list[str]:
        match response:
            case JoinGroupResponse():
                encode(response, int(what.split()[1]))
                return [self._joined(self.clients[who], response)]
            case SyncGroupResponse():
                if response.error_code:
                    return [code_name(response.error_code)]
                return [show_assignment(response.assignment)]
            case HeartbeatResponse():
                return [code_name(response.error_code)]
            case LeaveGroupResponse():
                codes = [response.error_code] + [one.error_code for one in response.members]
                return [code_name(max(codes))]
            case OffsetCommitResponse() | OffsetDeleteResponse():
                top = getattr(response, "error_code", 0)
                return (
                    [code_name(top)]
                    if top
                    else [
                        f"{topic.name}-{one.partition_index} {code_name(one.error_code)}"
                        for topic in response.topics
                        for one in topic.partitions
                    ]
                )
            case DeleteGroupsResponse():
                return [f"{one.group_id} {code_name(one.error_code)}" for one in response.results]
            case OffsetFetchResponse():
                return self._fetched(response)
        raise AssertionError(response)

    def _joined(self, client: Client, response: JoinGroupResponse) -> str:
        if response.error_code:
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = response.member_id
                return f"MEMBER_ID_REQUIRED, come back as {response.member_id}"
            return code_name(response.error_code)
        client.member_id, client.generation = response.member_id, response.generation_id
        client.protocol = response.protocol_name
        leads = response.leader == response.member_id
        role = "you lead" if leads else f"{response.leader} leads"
        skip = ", skip the assignment" if response.skip_assignment else ""
        members = "; ".join(
            member.member_id + " wants " + show_subscription(member.metadata)
            for member in response.members
        )
        return (
            f"generation {response.generation_id}, {response.protocol_name}, "
            f"you are {response.member_id}, {role}{skip}" + (f" [{members}]" if members else "")
        )

    def _fetched(self, response: OffsetFetchResponse) -> list[str]:
        lines = []
        for topic in response.groups[0].topics:
            for one in topic.partitions:
                what = f"at {one.committed_offset} epoch {one.committed_leader_epoch}"
                if one.committed_offset < 0:
                    what = "nothing"
                elif one.metadata:
                    what += f', "{one.metadata}"'
                lines.append(f"{topic.name}-{one.partition_index} {what}")
        return lines or ["nothing at all"]


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
