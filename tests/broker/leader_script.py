"""Runs a real follower against a scripted leader: real logs and real bytes, but no sockets.

    harness = Harness()
    harness.follow("t", 0, leader=7, epoch=1)
    async with harness.running():
        asked = await harness.leader(7).asked()          # a FetchRequest, decoded
        asked.answer(given("t", 0, records, high_watermark=3))

Each connection to a broker is a `Line`. The requests from all lines of a broker arrive at `asked`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.peers.connector import PeerConnector
from penstock.broker.replication.replica_fetcher import ReplicaFetchers
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.image import BrokerChange, Changed
from penstock.metadata.model import BrokerInfo, Partition
from penstock.ports import Buffer, BufferedReceiver, Env, Listener, Pace, Receiver, Transport
from penstock.records.record import Record, build_batch
from penstock.runtime import SystemClock, SystemRandom
from penstock.sim.disk.disk import SimDisk
from penstock.storage.config import LogConfig
from penstock.storage.directory import DirectoryConfig, LogDirectory
from penstock.storage.flusher import Flusher
from penstock.testing.slowness import patient
from penstock.wire.codec import decode_request, encode_response
from penstock.wire.framing import FrameReader
from penstock.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from penstock.wire.messages.base import Request, Response

from .harness import InTurn

BROKER_ID = 2
BROKER_EPOCH = 40
NOW_MS = 1_700_000_000_000
SOON_S = 25.0
"""The deadline for everything that tests wait for."""


def topic_id(topic: str) -> bytes:
    return topic.encode().ljust(16, b"\0")


def batch(offset: int, *values: bytes, epoch: int = 1, **more: int) -> bytes:
    """Returns a batch as a leader of that epoch has it at that offset."""
    records = [
        Record(offset + at, NOW_MS, b"k", value) for at, value in enumerate(values or (b"v",))
    ]
    return bytes(build_batch(records, leader_epoch=epoch, **more))  # type: ignore[arg-type]


def given(
    topic: str,
    index: int,
    records: bytes = b"",
    *,
    error: int = 0,
    high_watermark: int = 0,
    start: int = 0,
    diverging: tuple[int, int] | None = None,
) -> FetchResponse:
    """Returns a fetch response about one partition."""
    part = FetchResponse.Partition(
        partition_index=index,
        error_code=error,
        high_watermark=high_watermark,
        log_start_offset=start,
        records=records,
        diverging_epoch=None if diverging is None else FetchResponse.DivergingEpoch(*diverging),
    )
    return FetchResponse(
        responses=[FetchResponse.Topic(topic_id=topic_id(topic), partitions=[part])]
    )


def merged(*responses: FetchResponse) -> FetchResponse:
    return FetchResponse(responses=[topic for each in responses for topic in each.responses])


def bounds(topic: str, index: int, offset: int) -> ListOffsetsResponse:
    part = ListOffsetsResponse.Partition(index, 0, -1, offset)
    return ListOffsetsResponse(topics=[ListOffsetsResponse.Topic(topic, [part])])


class Asked:
    """A request that the follower has sent. The test answers it when it wants to."""

    def __init__(self, line: Line, version: int, correlation_id: int, request: Request) -> None:
        self.line = line
        self.version = version
        self.request = request
        self._correlation_id = correlation_id

    @property
    def fetch(self) -> FetchRequest:
        assert isinstance(self.request, FetchRequest)
        return self.request

    @property
    def offsets(self) -> ListOffsetsRequest:
        assert isinstance(self.request, ListOffsetsRequest)
        return self.request

    @property
    def partitions(self) -> dict[tuple[str, int], FetchRequest.Partition]:
        return {
            (topic.topic_id.rstrip(b"\0").decode(), part.partition): part
            for topic in self.fetch.topics
            for part in topic.partitions
        }

    def answer(self, response: Response) -> None:
        frame = b"".join(encode_response(response, self.version, self._correlation_id))
        self.line.deliver(frame)

    def answer_empty(self) -> None:
        """Answers that no partition has anything new."""
        self.answer(merged(*(given(*key, high_watermark=0) for key in self.partitions)))


class Line:
    """The leader's end of a connection, and the follower's transport."""

    def __init__(self, leader: Leader, receiver: BufferedReceiver) -> None:
        self._leader = leader
        self._receiver = receiver
        self._frames = FrameReader(1 << 30)
        self.is_open = True
        receiver.connection_made(cast(Transport, self))

    def deliver(self, data: bytes) -> None:
        while data and self.is_open:
            room = memoryview(self._receiver.get_buffer(len(data)))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            self._receiver.buffer_updated(size)

    def cut(self) -> None:
        if self.is_open:
            self.is_open = False
            self._receiver.connection_lost(ConnectionResetError("cut by the test"))

    def write(self, data: Buffer) -> None:
        if not self.is_open:
            return
        for frame in self._frames.feed(bytes(data)):
            header, request = decode_request(frame)
            self._leader.queue.put_nowait(
                Asked(self, header.api_version, header.correlation_id, request)
            )

    def abort(self) -> None:
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().call_soon(self._receiver.connection_lost, None)


class Leader:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[Asked] = asyncio.Queue()
        self.lines: list[Line] = []
        self.refuses = False
        self.attempts = 0

    async def asked(self) -> Asked:
        async with asyncio.timeout(patient(SOON_S)):
            return await self.queue.get()


class ScriptNetwork:
    def __init__(self, leaders: Callable[[int], Leader]) -> None:
        self._leaders = leaders

    async def listen(
        self, host: str, port: int, receiver: Callable[[], Receiver], pace: Pace | None = None
    ) -> Listener:
        raise AssertionError("a follower listens to nobody")

    async def connect(
        self, host: str, port: int, receiver: Callable[[], Receiver], timeout_s: float
    ) -> Transport:
        leader = self._leaders(port - 9000)
        leader.attempts += 1
        await asyncio.sleep(0)
        if leader.refuses:
            raise ConnectionRefusedError(111, "refused by the test")
        line = Line(leader, cast(BufferedReceiver, receiver()))
        leader.lines.append(line)
        return cast(Transport, line)


class _Image:
    def __init__(self) -> None:
        self.brokers: dict[int, BrokerInfo] = {}


class _Cluster:
    def __init__(self) -> None:
        self.image = _Image()
        self.listeners: list[Callable[[Changed], None]] = []

    def listen(self, listener: Callable[[Changed], None]) -> None:
        self.listeners.append(listener)


class Roles:
    """The part of `Replicas` that a fetcher uses."""

    def __init__(self, flusher: Flusher, clock: SystemClock) -> None:
        self.hosted: dict[tuple[str, int], HostedPartition] = {}
        self.listeners: list[Callable[[HostedPartition], None]] = []
        self.role_changes = SimpleNamespace(on_any=self.listeners.append)
        self.flusher = flusher
        self.broker_epoch = BROKER_EPOCH
        self._clock = clock

    def __iter__(self) -> Any:
        return iter(list(self.hosted.values()))

    def get(self, topic: str, index: int) -> HostedPartition | None:
        return self.hosted.get((topic, index))

    def monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def tell(self, hosted: HostedPartition) -> None:
        for listener in self.listeners:
            listener(hosted)


class SlowFlushes:
    """An executor whose work waits for `gate` while the test has set one."""

    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None

    async def run(self, work: Callable[[], Any]) -> Any:
        try:
            await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            work()
            raise
        return work()


class Harness:
    def __init__(self, **kafka: str) -> None:
        self.kafka = {name.replace("_", "."): value for name, value in kafka.items()}
        self.leaders: dict[int, Leader] = {}
        self.cluster = _Cluster()
        clock = SystemClock()
        self.disk = SimDisk(Random(1), Random(2))
        self.flushes = SlowFlushes()
        self.flusher = Flusher(self.flushes, 4, self._on_flushed)
        self.roles = Roles(self.flusher, clock)
        self.directory = LogDirectory(self.disk, "/data", DirectoryConfig(disk_reserve_bytes=0))
        self.env = Env(
            clock=clock,
            random=SystemRandom(),
            disk=self.disk,
            network=ScriptNetwork(self.leader),
            executor=InTurn(),
            store=cast(Any, None),
        )
        self.fetchers = ReplicaFetchers(
            self.env,
            BROKER_ID,
            cast(ClusterView, self.cluster),
            cast(Replicas, self.roles),
            lambda: BrokerConfigs(static=self.kafka),
            PeerConnector(self.env.network),
        )

    def _on_flushed(self, log: Any) -> None:
        for hosted in self.roles:
            if hosted.log is log:
                hosted.on_flushed()

    def leader(self, broker_id: int) -> Leader:
        return self.leaders.setdefault(broker_id, Leader())

    def register(self, broker_id: int, epoch: int = 1, *, gone: bool = False) -> None:
        before = self.cluster.image.brokers.pop(broker_id, None)
        after = None
        if not gone:
            after = BrokerInfo(broker_id, "h", 9000 + broker_id, None, bytes(16), epoch)
            self.cluster.image.brokers[broker_id] = after
        for listener in self.cluster.listeners:
            listener(Changed(brokers=(BrokerChange(broker_id, before, after),)))

    def host(self, topic: str, index: int = 0, **configs: str) -> HostedPartition:
        texts = {name.replace("_", "."): value for name, value in configs.items()}
        settings = BrokerConfigs(static=self.kafka).settings(texts)
        log = self.directory.create(topic, index, topic_id="id", config=LogConfig(), now_ms=NOW_MS)
        hosted = HostedPartition(topic, topic_id(topic), index, log, settings, self.flusher)
        self.roles.hosted[topic, index] = hosted
        return hosted

    def follow(
        self, topic: str, index: int = 0, *, leader: int = 7, epoch: int = 1, **configs: str
    ) -> HostedPartition:
        """Follows a leader in a leader epoch. Registers the leader and creates the log if
        necessary.
        """
        if leader not in self.cluster.image.brokers:
            self.register(leader)
        hosted = self.roles.get(topic, index) or self.host(topic, index, **configs)
        hosted.follow(Partition((leader, BROKER_ID), (leader,), (), leader, epoch, epoch, 1))
        self.roles.tell(hosted)
        return hosted

    def rest(self, hosted: HostedPartition) -> None:
        hosted.resign()
        self.roles.tell(hosted)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.timeout(patient(4 * SOON_S)):
            tasks = [
                asyncio.create_task(work) for work in (self.flusher.run(), self.fetchers.run())
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                for each in ended:
                    if isinstance(each, Exception):
                        raise each

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(patient(SOON_S)):
            while not holds():  # noqa: ASYNC110 - what tests wait for has no event
                await asyncio.sleep(0.001)
