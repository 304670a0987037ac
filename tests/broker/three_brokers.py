"""Runs three brokers of one cluster in one process, on real sockets and one SQLite file.

Each broker has its own disk. A broker can be stopped, killed or lose its power, and started again
on the same disk. The client is simple: it sends a request to one broker, or to a partition's leader
until the leader accepts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from errno import EIO
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.peers.connection import Peer, PeerLost, connect_peer
from penstock.metadata.model import Partition
from penstock.net.sockets import SocketNetwork
from penstock.ports import Env, KeyProvider
from penstock.records.batch import iter_batches
from penstock.records.record import Record, build_batch, read_records
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.sim.disk.disk import SimDisk
from penstock.stores.sqlite import SqliteStore
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.messages.base import Request, Response

from .harness import InTurn, internal_replicas

R = TypeVar("R", bound=Response)
NOW_MS = 1_700_000_000_000
SOON_S = 100.0
CONNECT_S = 20.0
COMMIT_S = 20.0
"""A record that is not committed in time may be there all the same. Then `produce` would send it
twice.
"""
SESSION_S = 20.0
"""The three brokers share one event loop, on a machine that may be busy. A long session keeps a
broker's lease until a test kills the broker.
"""


class MortalDisk:
    """A disk as one process sees it. Once the process is killed, none of its later calls reach the
    disk.
    """

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._is_dead = False

    def die(self) -> None:
        self._is_dead = True

    def __getattr__(self, name: str) -> Any:
        if self._is_dead:
            raise OSError(EIO, "this process is dead")
        return getattr(self._disk, name)


class Node:
    """One broker with its disk. The disk outlives the broker process."""

    def __init__(self, broker_id: int, directory: Path, threads: Threads) -> None:
        self.broker_id = broker_id
        self.port = free_port(SystemRandom())
        self.second_port = free_port(SystemRandom())
        self.disk = SimDisk(Random(broker_id), Random(broker_id))
        self.broker: Broker | None = None
        self.keys: KeyProvider | None = None
        self.boots = 0
        self._mortal = MortalDisk(self.disk)
        self._directory = directory
        self._threads = threads
        self._store: SqliteStore | None = None
        self._stop = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._idle: list[Peer] = []

    @property
    def is_running(self) -> bool:
        return self._life is not None

    def lose_disk(self) -> None:
        """Replaces the disk with an empty one."""
        self.boots += 1
        self.disk = SimDisk(Random(self.boots), Random(self.boots))

    async def start(self, kafka: Mapping[str, str]) -> None:
        """Starts the broker. In its settings, PORT and SECOND stand for its two ports."""
        kafka = {
            name: text.replace("PORT", str(self.port)).replace("SECOND", str(self.second_port))
            for name, text in kafka.items()
        }
        config = BrokerConfig(
            broker_id=self.broker_id,
            port=self.port,
            data_dir="/data",
            session_timeout_s=patient(SESSION_S),
            disk_reserve_bytes=0,
            kafka=tuple(kafka.items()),
        )
        clock = SystemClock()
        self._mortal = MortalDisk(self.disk)
        path = str(self._directory / "metadata.db")
        self._store = await SqliteStore.open(path, self._threads, clock)
        env = Env(
            clock=clock,
            random=SystemRandom(),
            disk=self._mortal,
            network=SocketNetwork(),
            executor=InTurn(),
            store=self._store,
            boot_id=lambda: f"{self.broker_id}/{self.boots}",
            keys=self.keys,
        )
        ready = asyncio.Event()
        self._stop = asyncio.Event()
        self.broker = Broker(env, config)
        self._life = asyncio.create_task(self.broker.run(self._stop, lambda *_: ready.set()))
        self._life.add_done_callback(lambda _: ready.set())
        async with asyncio.timeout(patient(SOON_S)):
            await ready.wait()
        if self._life.done():
            self._life.result()

    async def stop(self) -> None:
        """Stops the broker cleanly, as on SIGTERM."""
        assert self._life is not None
        self._stop.set()
        async with asyncio.timeout(patient(SOON_S)):
            await self._life
        await self._tidy()

    async def kill(self, *, power_loss: bool = False, keeps_lease: bool = False) -> None:
        """Ends the broker at once, as SIGKILL does.

        Revokes its lease, so that tests do not wait for the lease to expire. With `keeps_lease` the
        cluster does not notice that the broker was gone if it starts again at once.
        """
        assert self._life is not None
        assert self.broker is not None
        self._mortal.die()
        if power_loss:
            self.boots += 1
            self.disk.power_loss()
        else:
            self.disk.kill()
        self._life.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._life
        await self.broker.server.stop(0)
        if self._store is not None and not keeps_lease:
            await self._store.revoke_lease(self.broker.membership._commits.lease)
        await self._tidy()

    async def _tidy(self) -> None:
        for peer in self._idle:
            peer.close()
        self._idle.clear()
        if self._store is not None:
            await self._store.close()
        self.broker = self._life = self._store = None

    async def ask(self, request: Request, version: int, response: type[R]) -> R:
        peer = self._idle.pop() if self._idle else None
        if peer is None or not peer.is_open:
            peer = await connect_peer(
                SocketNetwork(),
                ("127.0.0.1", self.port),
                client_id="three_brokers",
                timeout_s=patient(CONNECT_S),
                response_bytes_max=1 << 30,
            )
        answer = await peer.ask(request, version, response, patient(SOON_S))
        self._idle.append(peer)
        return answer


class ThreeBrokers:
    def __init__(self, nodes: Sequence[Node], kafka: Mapping[str, str]) -> None:
        self.nodes = nodes
        self._kafka = kafka

    async def start(self, broker_id: int, kafka: Mapping[str, str] | None = None) -> None:
        """Starts a broker, with the cluster's settings or with these in addition."""
        await self.nodes[broker_id].start({**self._kafka, **(kafka or {})})
        epoch = self.broker(broker_id).replicas.broker_epoch
        await self.until(
            lambda: all(
                (seen := self.broker(node.broker_id).cluster.image.brokers.get(broker_id))
                and seen.broker_epoch == epoch
                for node in self.running
            )
        )

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.is_running]

    def broker(self, broker_id: int) -> Broker:
        broker = self.nodes[broker_id].broker
        assert broker is not None
        return broker

    def hosted(self, broker_id: int, topic: str = "t", index: int = 0) -> HostedPartition:
        found = self.broker(broker_id).replicas.get(topic, index)
        assert found is not None
        return found

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        """Returns the partition from the newest cluster image that a running broker has."""
        images = [node.broker.cluster.image for node in self.running if node.broker is not None]
        found = max(images, key=lambda each: each.revision).partition(topic, index)
        assert found is not None
        return found

    async def until(self, holds: Callable[[], bool], timeout_s: float = SOON_S) -> None:
        async with asyncio.timeout(patient(timeout_s)):
            while not holds():  # noqa: ASYNC110 - what tests wait for has no event
                await asyncio.sleep(0.002)

    async def create(
        self, name: str = "t", partitions: int = 1, replicas: int = 3, **configs: str
    ) -> None:
        texts = [
            CreateTopicsRequest.Config(key.replace("_", "."), value)
            for key, value in configs.items()
        ]
        asked = CreateTopicsRequest.Topic(name, partitions, replicas, configs=texts)
        created = await self.running[0].ask(
            CreateTopicsRequest([asked], round(patient(SOON_S) * 1000)), 7, CreateTopicsResponse
        )
        assert created.topics[0].error_code == 0, created.topics[0].error_message
        await self.until(lambda: all(self._is_known(name, index) for index in range(partitions)))

    def _is_known(self, topic: str, index: int) -> bool:
        """Whether the partition is led, and every running broker knows that it has a leader."""
        images = [node.broker.cluster.image for node in self.running if node.broker is not None]
        found = [image.partition(topic, index) for image in images]
        return self._is_led(topic, index) and all(each and each.leader >= 0 for each in found)

    def _is_led(self, topic: str, index: int) -> bool:
        leader = self.partition(topic, index).leader
        if leader < 0 or not self.nodes[leader].is_running:
            return False
        hosted = self.broker(leader).replicas.get(topic, index)
        return hosted is not None and hosted.leadership is not None

    async def produce(
        self, *values: bytes, topic: str = "t", index: int = 0, acks: int = -1, **batch: int
    ) -> int:
        """Sends one batch to the leader until it is accepted. Returns the offset of its first
        record.
        """
        records = [Record(at, NOW_MS + at, b"k", value) for at, value in enumerate(values)]
        data = bytes(build_batch(records, **batch))  # type: ignore[arg-type]
        async with asyncio.timeout(patient(SOON_S)):
            while True:
                leader = self.partition(topic, index).leader
                if leader >= 0 and self.nodes[leader].is_running:
                    code, offset = await self._produce(leader, topic, index, data, acks)
                    if code == ErrorCode.NONE:
                        return offset
                await asyncio.sleep(0.01)

    async def try_produce(
        self, broker_id: int, value: bytes, topic: str = "t", index: int = 0
    ) -> tuple[int, int]:
        """Sends one record to one broker, once. Returns the error code and the offset."""
        data = bytes(build_batch([Record(0, NOW_MS, b"k", value)]))
        return await self._produce(broker_id, topic, index, data, -1)

    async def _produce(
        self, leader: int, topic: str, index: int, data: bytes, acks: int
    ) -> tuple[int, int]:
        part = ProduceRequest.Partition(index, data)
        request = ProduceRequest(
            None,
            acks,
            round(patient(COMMIT_S) * 1000),
            [ProduceRequest.Topic(topic, partition_data=[part])],
        )
        try:
            produced = await self.nodes[leader].ask(request, 9, ProduceResponse)
        except PeerLost:
            return ErrorCode.NETWORK_EXCEPTION, -1
        answer = produced.responses[0].partition_responses[0]
        return answer.error_code, answer.base_offset

    def values(self, broker_id: int, topic: str = "t", index: int = 0) -> list[bytes]:
        """Returns every record in a broker's log, committed or not."""
        log = self.hosted(broker_id, topic, index).log
        found: list[bytes] = []
        offset = log.log_start_offset
        while (piece := log.read(offset, 1 << 20)) is not None:
            for position, header in iter_batches(piece.data):
                part = piece.data[position : position + header.size]
                found += [bytes(held.value or b"") for held in read_records(part)]
                offset = header.next_offset
        return found

    async def all_equal(self, topic: str = "t", index: int = 0) -> list[bytes]:
        """Waits until every running broker has the same records, all committed. Returns their
        values.
        """

        def same() -> bool:
            states = [
                (
                    self.hosted(node.broker_id, topic, index).log.end_offset,
                    self.hosted(node.broker_id, topic, index).high_watermark,
                    self.hosted(node.broker_id, topic, index).log.epochs.entries,
                )
                for node in self.running
                if self.broker(node.broker_id).replicas.get(topic, index) is not None
            ]
            return (
                len(states) == len(self.running)
                and len({state[0] for state in states}) == 1
                and all(state[0] == state[1] for state in states)
            )

        await self.until(same)
        logs = [self.values(node.broker_id, topic, index) for node in self.running]
        assert all(each == logs[0] for each in logs)
        return logs[0]


@asynccontextmanager
async def three_brokers(
    directory: Path, kafka: Mapping[str, str] | None = None, brokers: int = 3
) -> AsyncIterator[ThreeBrokers]:
    threads = Threads(4)
    settings = {**internal_replicas(brokers), **(kafka or {})}
    cluster = ThreeBrokers([Node(each, directory, threads) for each in range(brokers)], settings)
    try:
        for node in cluster.nodes:
            await cluster.start(node.broker_id)
        yield cluster
    finally:
        for node in cluster.running:
            await node.kill()
        threads.close()
