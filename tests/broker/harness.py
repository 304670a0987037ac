"""Runs whole brokers in one process without sockets: frames in, frames out.

Disks are simulated. The metadata store is the real SQLite store in a file, which several brokers
share as they do on one machine. Work that a broker would send to threads runs on the loop, one
piece after the other.

    @with_harness
    async def test_something(harness: BrokerHarness) -> None:
        response = await harness.ask(MetadataRequest(), 12, MetadataResponse)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeVar

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.context import Services
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.maintenance import Maintenance
from penstock.net.fair_turns import FairTurns, Turn
from penstock.net.outbox import in_memory
from penstock.net.session import Session
from penstock.ports import Env, KeyProvider, Listener, Pace, Receiver, Slicing, Transport
from penstock.records.record import Record, build_batch
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.sim.disk.disk import SimDisk
from penstock.stores.sqlite import SqliteStore
from penstock.testing.slowness import patient
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.messages.base import Request, Response

T = TypeVar("T")
R = TypeVar("R", bound=Response)
Scenario = Callable[["BrokerHarness"], Awaitable[None]]

TIMEOUT_S = 100.0
SESSION_S = 60.0
"""Long, because a broker whose lease may be over refuses clients: it would begin to do so when a
busy machine stops this process for a while.
"""
LAG_S = 300.0
NOW_MS = 1_700_000_000_000


class InTurn:
    """An executor without threads, because the simulated disk has one owner."""

    async def run(self, work: Callable[[], T]) -> T:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # As with threads: cancelling the caller does not stop the work, and takes effect after
            # it. An error of the work must not take the place of the cancellation.
            with suppress(Exception):
                work()
            raise
        return work()


class _Listener:
    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def address(self) -> tuple[str, int]:
        return self._address

    async def close(self) -> None:
        pass


class NoNetwork:
    """A network on which no client connects and no broker can be reached."""

    async def listen(
        self, host: str, port: int, receiver: Callable[[], Receiver], pace: Pace | None = None
    ) -> Listener:
        return _Listener(host, port)

    async def connect(
        self, host: str, port: int, receiver: Callable[[], Receiver], timeout_s: float
    ) -> Transport:
        raise ConnectionRefusedError(f"{host}:{port} is on no network")


class HarnessPeer:
    host = "192.0.2.1"
    port = 40_000
    frame_bytes_max = 100 << 20
    is_replica = False

    def __init__(self) -> None:
        self.turn = Turn(FairTurns(lambda: 0.0), lambda: None)
        self.mutes: list[float] = []
        """For how long the broker has muted this connection, each time."""

    def get_extra_info(self, name: str) -> None:
        return None

    def replace_session(self, session: Session) -> None:
        pass

    def mute(self, seconds: float) -> None:
        self.mutes.append(seconds)

    def close(self) -> None:
        pass


class BrokerHarness:
    """Brokers 0, 1, ... of one cluster, and one client's connection to each."""

    def __init__(self, brokers: Sequence[Broker], disks: Sequence[SimDisk]) -> None:
        self.brokers = brokers
        self.disks = disks
        self._sessions: list[Session] = [each.server.new_session(HarnessPeer()) for each in brokers]
        self._correlation_ids = count(1)

    @property
    def broker(self) -> Broker:
        return self.brokers[0]

    async def ask(self, request: Request, version: int, response: type[R], *, broker: int = 0) -> R:
        """Returns a broker's response. Both messages are encoded and decoded on the way."""
        correlation_id = next(self._correlation_ids)
        frame = b"".join(encode_request(request, version, correlation_id, "harness"))
        data = await self.exchange(frame[4:], broker=broker)
        assert data is not None, f"{type(request).__name__} was not answered"
        answered, message = decode_response(response, memoryview(data), version)
        assert answered == correlation_id
        return message

    async def exchange(self, frame: bytes, *, broker: int = 0) -> bytes | None:
        """Sends one frame and returns the response frame, both without their length.

        Returns None if the request has no response.
        """
        answer = self._sessions[broker].on_frame(memoryview(bytearray(frame)))
        parts = await answer if isinstance(answer, asyncio.Future) else answer
        return None if parts is None else b"".join(in_memory(parts))[4:]

    def hosted(self, topic: str, index: int = 0, *, broker: int = 0) -> HostedPartition:
        found = self.brokers[broker].replicas.get(topic, index)
        assert found is not None, f"broker {broker} does not host {topic}-{index}"
        return found

    @property
    def services(self) -> Services:
        """The services of the first broker."""
        services = self.broker.services
        assert services is not None
        return services

    async def until(self, holds: Callable[[], bool]) -> None:
        """Lets the brokers work until a condition holds. The deadline is the harness's own
        timeout.
        """
        while not holds():  # noqa: ASYNC110 - what tests wait for has no event
            await asyncio.sleep(0.002)

    async def until_synced(self, topic: str, offset: int) -> None:
        """Flushes the log of the topic's partition 0 until everything below `offset` is synced."""
        log = self.hosted(topic).log
        self.broker.replicas.flusher.request(log)
        await self.until(lambda: log.recovery_point >= offset)

    async def create(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> bytes:
        """Creates a topic, asserts that it succeeded and returns the topic's id."""
        texts = [CreateTopicsRequest.Config(*item) for item in (configs or {}).items()]
        asked = CreateTopicsRequest.Topic(name, partitions, 1, configs=texts)
        created = await self.ask(CreateTopicsRequest([asked]), 7, CreateTopicsResponse)
        assert created.topics[0].error_code == 0, created.topics[0].error_message
        return created.topics[0].topic_id

    async def produce(
        self, topic: str, values: Sequence[bytes], index: int = 0, **batch: int
    ) -> int:
        """Produces one batch with acks=all and returns the offset of its first record."""
        records = [Record(at, NOW_MS + at, None, value) for at, value in enumerate(values)]
        data = ProduceRequest.Partition(index, build_batch(records, **batch))  # type: ignore[arg-type]
        request = ProduceRequest(
            None, -1, 10_000, [ProduceRequest.Topic(topic, partition_data=[data])]
        )
        produced = await self.ask(request, 9, ProduceResponse)
        answer = produced.responses[0].partition_responses[0]
        assert answer.error_code == 0, answer.error_message
        return answer.base_offset


def soon(milliseconds: float) -> int:
    """Returns a delay that is longer than the pauses of a busy machine, and much shorter than a
    request waits.
    """
    return int(min(20_000.0, patient(milliseconds)))


def internal_replicas(brokers: int) -> dict[str, str]:
    """Returns settings with which groups and transactions work in clusters of fewer than three
    brokers.
    """
    factor = str(min(3, brokers))
    return {
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "audit.topic.replication.factor": factor,
        "share.coordinator.state.topic.replication.factor": factor,
    }


def _settings(brokers: int) -> dict[str, str]:
    settings = internal_replicas(brokers)
    if brokers > 1:
        # There are no real followers: they would leave the ISR while a busy machine runs the test.
        settings["replica.lag.time.max.ms"] = str(round(patient(LAG_S) * 1000))
    return settings


@asynccontextmanager
async def open_harness(
    directory: Path,
    brokers: int = 1,
    kafka: Mapping[str, str] | None = None,
    base: BrokerConfig | None = None,
    slicing: Slicing | None = None,
    keys: KeyProvider | None = None,
) -> AsyncIterator[BrokerHarness]:
    """Starts brokers, waits until they are ready, and stops them in the end. Broker 0 is the
    controller.

    `base` has the settings that they share in addition to Kafka's.
    """
    threads = Threads(2)
    async with AsyncExitStack() as stack:
        stack.callback(threads.close)
        running: list[Broker] = []
        disks: list[SimDisk] = []
        for broker_id in range(brokers):
            config = replace(
                base or BrokerConfig(),
                session_timeout_s=patient(SESSION_S),
                broker_id=broker_id,
                port=9092 + broker_id,
                data_dir=f"/broker-{broker_id}",
                rack=f"rack-{broker_id}",
                kafka=tuple({**_settings(brokers), **(kafka or {})}.items()),
            )
            disk = SimDisk(Random(broker_id), Random(broker_id))
            life = _running(config, disk, directory, threads, slicing or Slicing(), keys)
            broker = await stack.enter_async_context(life)
            running.append(broker)
            disks.append(disk)
        revision = max(broker.cluster.image.revision for broker in running)
        for broker in running:
            await broker.cluster.wait_for(revision)
        yield BrokerHarness(running, disks)


@asynccontextmanager
async def _running(
    config: BrokerConfig,
    disk: SimDisk,
    directory: Path,
    threads: Threads,
    slicing: Slicing,
    keys: KeyProvider | None,
) -> AsyncIterator[Broker]:
    clock = SystemClock()
    store = await SqliteStore.open(str(directory / "metadata.db"), threads, clock)
    env = Env(
        clock=clock,
        random=SystemRandom(),
        disk=disk,
        network=NoNetwork(),
        executor=InTurn(),
        store=store,
        slicing=slicing,
        keys=keys,
    )
    stop, ready = asyncio.Event(), asyncio.Event()
    broker = Broker(env, config)
    # Not a task group: it would wrap a failed assertion, once for every broker.
    life = asyncio.create_task(broker.run(stop, lambda host, port: ready.set()))
    life.add_done_callback(lambda _: ready.set())
    try:
        await ready.wait()
        yield broker
    finally:
        stop.set()
        try:
            await life
        finally:
            await store.close()


def with_harness_of(
    *,
    brokers: int = 1,
    kafka: Mapping[str, str] | None = None,
    slicing: Slicing | None = None,
) -> Callable[[Scenario], Callable[[Path], None]]:
    """Decorates a test so that it runs with brokers of its own."""

    def wrap(scenario: Scenario) -> Callable[[Path], None]:
        async def run_case(directory: Path) -> None:
            opening = open_harness(directory, brokers, kafka, slicing=slicing)
            async with asyncio.timeout(patient(TIMEOUT_S)), opening as harness:
                await scenario(harness)

        def test(tmp_path: Path) -> None:
            asyncio.run(run_case(tmp_path))

        test.__name__ = scenario.__name__
        test.__doc__ = scenario.__doc__
        return test

    return wrap


with_harness = with_harness_of()


def maintenance_of(services: Services) -> Maintenance:
    """Returns the periodic work of a broker, which a test runs step by step."""
    return Maintenance(
        services.env,
        services.directory,
        services.replicas,
        services.counters,
        services.configs,
    )
