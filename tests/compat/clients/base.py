"""One interface for every Python client, so that each behavior is tested with one test.

A `Client` is a thin adapter: it turns the verbs of the tests into calls of an unmodified library,
and the library's results and exceptions into the types below. It adds no retries and no repairs;
the tests check what the library does. If a library lacks a verb, the test is skipped with that
reason.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NoReturn

import pytest

from penstock.testing.slowness import patient

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_S = 75.0
"""No wait of a healthy client on loopback takes nearly as long."""


HOUR_AGO_MS = int(time.time() * 1000) - 3_600_000
"""The first timestamp of test records: clearly older than now, and too young to expire."""

_NEVER = threading.Event()


class Code(IntEnum):
    """The protocol's error codes that the tests expect."""

    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    COORDINATOR_LOAD_IN_PROGRESS = 14
    INVALID_TOPIC = 17
    UNKNOWN_MEMBER_ID = 25
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87


class Refused(Exception):
    """The broker answered with an error code."""

    def __init__(self, code: int, message: object = "") -> None:
        super().__init__(f"code {code}: {message}")
        self.code = code


class NoOffset(Exception):
    """There is no position to read from, and the reset policy does not allow choosing one."""


Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Received:
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the broker stored a record."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    codec: str = "none"
    acks: Literal[0, 1, -1] = -1
    idempotent: bool = False
    linger_ms: int = 5
    request_bytes_max: int = 1_000_000
    batch_bytes: int = 16_384


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Heartbeats are frequent so that members learn of a rebalance at once, not after seconds."""

    reset: Literal["earliest", "latest", "none"] = "earliest"
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    wait_ms_max: int = 250
    bytes_min: int = 1
    strategy: str = "range"
    instance_id: str | None = None
    client_id: str = "compat"
    session_timeout_ms: int = 30_000
    heartbeat_ms: int = 150


PRODUCER = ProducerOptions()
CONSUMER = ConsumerOptions()


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConfigValue:
    value: str | None
    is_default: bool


@dataclass(frozen=True, slots=True)
class GroupMember:
    client_id: str
    instance_id: str | None
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    state: str
    """As the protocol spells it: Empty, Stable, Dead, ..."""

    strategy: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str | None
    controller: int
    brokers: Mapping[int, str]
    """Broker id -> HOST:PORT."""


class Consumer(ABC):
    """A reader of given partitions, or a group member; always of one topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.received: list[Received] = []
        self.rebalances: list[tuple[str, frozenset[int]]] = []
        """Every call of the library's rebalance listener: the event and its partitions."""
        self.closed = False

    @abstractmethod
    def fetch(self, timeout_s: float) -> list[Received]:
        """Returns what is available, or what arrives first within the time."""

    def poll(self, timeout_s: float = 0.1) -> list[Received]:
        records = self.fetch(timeout_s)
        self.received += records
        return records

    def read(self, count: int, within_s: float | None = None) -> list[Received]:
        """Returns at least `count` more records, or fewer if the time is up."""
        got: list[Received] = []
        limit_s = patient(DEADLINE_S) if within_s is None else within_s
        deadline = time.monotonic() + limit_s
        while len(got) < count and time.monotonic() < deadline:
            got += self.poll(0.2)
        return got

    def read_nothing(self, for_s: float = 0.6) -> list[Received]:
        """Returns everything that arrives within the time: the caller expects nothing."""
        return self.read(1, within_s=for_s)

    @abstractmethod
    def assignment(self) -> frozenset[int]: ...

    @abstractmethod
    def seek(self, partition: int, offset: int) -> None: ...

    @abstractmethod
    def pause(self, *partitions: int) -> None: ...

    @abstractmethod
    def resume(self, *partitions: int) -> None: ...

    @abstractmethod
    def position(self, partition: int) -> int: ...

    @abstractmethod
    def bounds(self, partition: int) -> tuple[int, int]:
        """Returns the first offset and the next one to be written, requested from the broker."""

    @abstractmethod
    def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset at or after the time; None if every record is older."""

    @abstractmethod
    def commit(self, offsets: Mapping[int, tuple[int, str]] | None = None) -> None:
        """Commits synchronously: all polled records, or partition -> (offset, metadata)."""

    @abstractmethod
    def committed(self, partition: int) -> tuple[int, str] | None: ...

    @abstractmethod
    def shut(self) -> None: ...

    def close(self) -> None:
        """Leaves the group as the library does; static members stay until their session ends."""
        if not self.closed:
            self.closed = True
            self.shut()


class Client(ABC):
    name: str
    strategies: tuple[str, ...]
    """The assignors it has, by their names in the protocol."""

    sends_null_headers = True

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def sees(self, code: Code) -> int:
        """Returns the code that a caller of the library gets if the broker sends this one."""
        return code

    def lacks(self, what: str) -> NoReturn:
        pytest.skip(f"{self.name} has no {what}")

    def check_codec(self, codec: str) -> None:
        """Skips if the library as installed does not support this codec."""
        assert codec in CODECS

    @abstractmethod
    def produce(
        self, topic: str, records: Sequence[Record], options: ProducerOptions = PRODUCER
    ) -> list[Placed]:
        """Sends all records and waits for all; returns the results in the order of the records."""

    @abstractmethod
    def reader(
        self,
        topic: str,
        partitions: Sequence[int] = (0,),
        options: ConsumerOptions = CONSUMER,
        group: str | None = None,
    ) -> Consumer:
        """Returns a reader of these partitions. With a group it may commit, but never joins."""

    @abstractmethod
    def member(self, group: str, topic: str, options: ConsumerOptions = CONSUMER) -> Consumer: ...

    @abstractmethod
    def close(self) -> None: ...

    # Administration. The broker's refusals are raised as `Refused`.

    @abstractmethod
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None: ...

    @abstractmethod
    def delete_topic(self, name: str) -> None: ...

    @abstractmethod
    def list_topics(self) -> set[str]: ...

    @abstractmethod
    def describe_topic(self, name: str) -> dict[int, PartitionInfo]: ...

    @abstractmethod
    def create_partitions(self, topic: str, total: int) -> None: ...

    @abstractmethod
    def describe_configs(
        self, kind: Literal["topic", "broker"], name: str
    ) -> dict[str, ConfigValue]: ...

    @abstractmethod
    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """AlterConfigs: configs that are not named are reset to their defaults."""

    def alter_configs(
        self,
        topic: str,
        changes: Mapping[str, tuple[Literal["set", "delete", "append", "subtract"], str]],
    ) -> None:
        """IncrementalAlterConfigs: configs that are not named stay."""
        self.lacks("incremental change of configs")

    @abstractmethod
    def list_groups(self) -> set[str]: ...

    @abstractmethod
    def describe_group(self, group: str) -> GroupInfo: ...

    def delete_group(self, group: str) -> None:
        self.lacks("deletion of groups")

    @abstractmethod
    def group_offsets(self, group: str, topic: str) -> dict[int, int]: ...

    def alter_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self.lacks("change of a group's offsets")

    def delete_group_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        self.lacks("deletion of a group's offsets")

    @abstractmethod
    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Returns the partition's new first offset."""

    @abstractmethod
    def describe_cluster(self) -> ClusterInfo: ...

    def max_timestamp_offset(self, topic: str, partition: int) -> int:
        self.lacks("listing of the offset with the greatest timestamp")

    def log_sizes(self, topic: str) -> dict[int, int]:
        self.lacks("description of log directories")


def wait_until(
    condition: Callable[[], bool], *consumers: Consumer, within_s: float = DEADLINE_S
) -> bool:
    """Waits until the condition holds, polling each consumer in its own thread meanwhile.

    In one thread the consumers would wait for each other: a library may not return from a poll
    before a rebalance ends, and the rebalance does not end before the other members have polled.
    """
    deadline = time.monotonic() + patient(within_s)
    polls: dict[Future[list[Received]], Consumer] = {}
    with ThreadPoolExecutor(max(1, len(consumers))) as threads:
        while not (held := condition()) and time.monotonic() < deadline:
            for consumer in set(consumers).difference(polls.values()):
                polls[threads.submit(consumer.poll, 0.05)] = consumer
            done = wait(polls, timeout=0.02, return_when=FIRST_COMPLETED).done
            if not polls:
                _NEVER.wait(0.02)
            for poll in done:
                del polls[poll]
                poll.result()
        for poll in wait(polls, timeout=patient(DEADLINE_S)).done:
            poll.result()
    return held
