"""How many heartbeats does a rebalance take, and how long does the coordinator work on it?

A group of the new protocol (KIP-848) has 100 members and 1,000 partitions. Each member is a
connection of its own to a broker process. One more member joins, later one leaves. A round is one
heartbeat of every member: they are sent together, and the next round begins about a second later.
A member that must give up partitions does so at once, and tells it with one more heartbeat, as
clients do; these are `acknowledgements`. `heartbeats` are the rounds until every member owns its
target assignment, the heartbeat of the member that joins or leaves not counted.

`seconds` is the time of these rounds without the pauses, `broker_cpu_s` is what the broker worked
in it, and `slowest_ms` is the longest time to an answer. `forming` is the start of the group: all
members join together.

Run it from the project's root: `python -m benchmarks.rebalance --json`.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from itertools import count
from typing import Final

from benchmarks.broker import start_broker
from benchmarks.hostile import raise_file_limit
from benchmarks.load import ServerProcess, cpu_seconds
from benchmarks.scale import Client
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP: Final = "rebalance"
TOPICS: Final = 10
ROUNDS_MAX: Final = 30
TARGET_HEARTBEATS: Final = 2
INTERVAL_S: Final = 1.1
"""Longer than group.consumer.assignment.interval.ms, as the time between heartbeats is."""
DEADLINE_S: Final = 60.0
_VERSION: Final = 1
_BUSY: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

Partition = tuple[bytes, int]


class Member:
    """A member that follows the protocol, over its own connection."""

    _correlation_ids = count(1)

    def __init__(self, address: tuple[str, int], number: int) -> None:
        self.member_id = f"member-{number:04}"
        self.epoch = 0
        self.owned: set[Partition] = set()
        self.has_news = False
        """It has given up partitions, and the coordinator does not know yet."""
        self._socket = socket.create_connection(address)
        self._socket.settimeout(DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sent_s = 0.0

    def send(self, names: list[str], epoch: int | None = None) -> None:
        """Sends a heartbeat; one that joins if the member has no epoch."""
        asked = self.epoch if epoch is None else epoch
        request = ConsumerGroupHeartbeatRequest(GROUP, self.member_id, asked)
        if asked == 0:
            request.rebalance_timeout_ms = 60_000
            request.subscribed_topic_names = names
            self.owned = set()
        if asked >= 0:
            request.topic_partitions = self._listed()
        self._sent_s = time.perf_counter()
        parts = encode_request(request, _VERSION, next(self._correlation_ids), "rebalance")
        self._socket.sendall(b"".join(parts))

    def _listed(self) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        topics: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(self.owned):
            topics.setdefault(topic_id, []).append(index)
        return [ConsumerGroupHeartbeatRequest.TopicPartitions(*each) for each in topics.items()]

    def receive(self) -> float:
        """Takes the answer. Returns how long it took, in seconds."""
        size = int.from_bytes(self._read(4), "big")
        frame = memoryview(self._read(size))
        _, response = decode_response(ConsumerGroupHeartbeatResponse, frame, _VERSION)
        took_s = time.perf_counter() - self._sent_s
        self.has_news = False
        if response.error_code:
            raise RuntimeError(f"{self.member_id}: {response.error_code} {response.error_message}")
        self.epoch = response.member_epoch
        if response.assignment is not None:
            given = {
                (topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            }
            self.has_news = bool(self.owned - given)
            self.owned = given
        return took_s

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


class Group:
    """The members, and an operator that looks at the group."""

    def __init__(self, broker: ServerProcess, partitions: int) -> None:
        self._broker = broker
        self._operator = Client(broker.address)
        self._partitions = partitions
        self.names = [f"rebalance-{number}" for number in range(TOPICS)]
        self.members: list[Member] = []
        self._numbers = count()

    def prepare(self) -> None:
        """Creates the topics, and waits for the coordinator."""
        each = self._partitions // TOPICS
        wanted = [CreateTopicsRequest.Topic(name, each, 1) for name in self.names]
        created = self._operator.ask(CreateTopicsRequest(wanted, 60_000), 7, CreateTopicsResponse)
        failed = [topic.error_message for topic in created.topics if topic.error_code]
        if failed:
            raise RuntimeError(f"cannot create the topics: {failed[0]}")
        end = time.monotonic() + DEADLINE_S
        while self._describe().error_code in _BUSY or self._is_homeless():
            if time.monotonic() > end:
                raise RuntimeError("the group has no coordinator")
            time.sleep(0.1)  # Before the next look, with the deadline above.

    def _is_homeless(self) -> bool:
        asked = FindCoordinatorRequest(coordinator_keys=[GROUP])
        found = self._operator.ask(asked, 4, FindCoordinatorResponse)
        return found.coordinators[0].error_code != 0

    def _describe(self) -> ConsumerGroupDescribeResponse.Group:
        asked = ConsumerGroupDescribeRequest([GROUP])
        return self._operator.ask(asked, _VERSION, ConsumerGroupDescribeResponse).groups[0]

    def add(self) -> Member:
        member = Member(self._broker.address, next(self._numbers))
        self.members.append(member)
        return member

    def is_done(self) -> bool:
        """Returns whether every partition has one owner, and the coordinator waits for nobody."""
        owned = Counter(each for member in self.members for each in member.owned)
        whole = self._partitions // TOPICS * TOPICS
        is_spread = len(owned) == whole and owned.total() == whole
        return is_spread and self._describe().group_state == "Stable"

    def settle(self) -> dict[str, float]:
        """Lets all members send heartbeats until the rebalance is over."""
        took_s, worked_s, slowest_s, acknowledgements = 0.0, 0.0, 0.0, 0
        for rounds in range(1, ROUNDS_MAX + 1):
            if rounds > 1:
                time.sleep(INTERVAL_S)
            cpu_s, began_s = cpu_seconds(self._broker.pid), time.perf_counter()
            slowest_s = max(slowest_s, self._round(self.members))
            news = [member for member in self.members if member.has_news]
            if news:
                acknowledgements += len(news)
                slowest_s = max(slowest_s, self._round(news))
            took_s += time.perf_counter() - began_s
            worked_s += cpu_seconds(self._broker.pid) - cpu_s
            if self.is_done():
                return {
                    "heartbeats": rounds,
                    "acknowledgements": acknowledgements,
                    "seconds": round(took_s, 4),
                    "broker_cpu_s": round(worked_s, 4),
                    "slowest_ms": round(slowest_s * 1e3, 2),
                }
        raise RuntimeError(f"the rebalance is not over after {ROUNDS_MAX} rounds of heartbeats")

    def _round(self, members: list[Member]) -> float:
        for member in members:
            member.send(self.names)
        return max(member.receive() for member in members)

    def close(self) -> None:
        for member in self.members:
            member.close()
        self._operator.close()


def measure(members: int, partitions: int, repeats: int) -> dict[str, object]:
    raise_file_limit()
    with tempfile.TemporaryDirectory() as data, ExitStack() as stack:
        settings = ("offsets.topic.num.partitions=1",)
        broker = stack.enter_context(start_broker(data, settings=settings))
        group = Group(broker, partitions)
        stack.callback(group.close)
        group.prepare()
        for _ in range(members):
            group.add()
        forming = group.settle()
        joins, leaves = [], []
        for _ in range(repeats):
            time.sleep(INTERVAL_S)
            joining = group.add()
            joining.send(group.names)
            joining.receive()
            joins.append(group.settle())
            time.sleep(INTERVAL_S)
            leaving = group.members.pop(members // 2)
            leaving.send(group.names, epoch=-1)
            leaving.receive()
            leaving.close()
            leaves.append(group.settle())
    return {
        "members": members,
        "partitions": partitions,
        "forming": forming,
        "join": worst(joins),
        "leave": worst(leaves),
        "target_heartbeats": TARGET_HEARTBEATS,
    }


def worst(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: max(each[name] for each in found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    found = measure(options.members, options.partitions, options.repeats)
    if options.json:
        json.dump(found, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    for name in ("forming", "join", "leave"):
        sys.stdout.write(f"{name}: {found[name]}\n")


if __name__ == "__main__":
    main()
