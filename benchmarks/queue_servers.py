"""Queue servers for `benchmarks.queues`, each with the Python client that its users have.

- penstock: a topic and a share group, `penstock.aio.Queue`.
- rabbitmq-quorum, rabbitmq-classic: durable queues, persistent messages, publisher confirms, manual
  acknowledgements; aio-pika.
- nats: a JetStream work-queue stream in files; nats-py.

Penstock and quorum queues have a job on the disk (fsync) before they confirm it. Classic queues and
this NATS confirm when the file system has it: NATS writes it to the disk every two minutes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from penstock import aio

START_S: Final = 90.0
PREFETCH: Final = 200
RABBITMQ: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_STOP_S: Final = 20.0
_RABBITMQ_SETTINGS: Final = """listeners.tcp.local = 127.0.0.1:{port}
loopback_users.guest = true
"""
_NATS_SETTINGS: Final = """listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}" }}
"""


class Link(Protocol):
    """A client of one queue. A ticket is what acknowledges a job."""

    async def put(self, job: bytes) -> None:
        """Returns when the server has confirmed the job."""

    async def put_all(self, jobs: Sequence[bytes]) -> None: ...

    async def take(self, limit: int) -> list[tuple[bytes, Any]]:
        """Waits for a job. Returns it with others that have arrived, each with its ticket."""
        ...

    async def done(self, tickets: Sequence[Any]) -> None:
        """Acknowledges jobs. No server is asked whether it has stored that: see `settle`."""

    async def settle(self) -> None:
        """Returns when the server has all acknowledgements."""

    async def close(self) -> None: ...


class Server(ABC):
    """A server process with its own folder, on a free port of the loopback interface."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"queues-{name}-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self.folder / "server.log").open("wb")
        with log:
            self._process = subprocess.Popen(
                self.command(),
                env={**os.environ, **self.environment()},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self.folder / "server.log").read_text("utf-8", "replace")
                raise RuntimeError(f"{self.name} did not start: {text[-2000:]}")
            time.sleep(0.1)  # Before the next look, with the deadline above.

    def stop(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cpu_s(self) -> float:
        """Returns the processor time of all processes of the server."""
        assert self._process is not None
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text("utf-8").rpartition(")")[2].split()
                if int(fields[3]) == self._process.pid:  # the session
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    @abstractmethod
    def command(self) -> list[str]:
        """Returns the command that starts the server, after writing its settings."""

    def environment(self) -> dict[str, str]:
        return {}

    @abstractmethod
    async def link(self, queue: str, *, takes: bool) -> Link:
        """Connects a client to a queue. Without `takes`, it can only put jobs."""


class Penstock(Server):
    def command(self) -> list[str]:
        return [
            str(Path(sys.executable).with_name("penstock")),
            *("up", "--data", str(self.folder / "data"), "--port", str(self.port), "--no-console"),
            *("--set", f"disk_reserve_bytes={64 << 20}"),
        ]

    async def link(self, queue: str, *, takes: bool) -> Link:
        client = aio.Queue(f"127.0.0.1:{self.port}", queue, prefetch=PREFETCH)
        await client.start()
        return _PenstockLink(client)


class _PenstockLink:
    def __init__(self, client: aio.Queue[bytes]) -> None:
        self._client = client

    async def put(self, job: bytes) -> None:
        await self._client.put(job)

    async def put_all(self, jobs: Sequence[bytes]) -> None:
        await self._client.put_all(jobs)

    async def take(self, limit: int) -> list[tuple[bytes, Any]]:
        return [(job.value or b"", job) for job in await self._client.take_many(limit)]

    async def done(self, tickets: Sequence[Any]) -> None:
        for job in tickets:
            await job.done(wait=False)

    async def settle(self) -> None:
        await self._client.flush()

    async def close(self) -> None:
        await self._client.close()


class Rabbitmq(Server):
    def __init__(self, kind: str) -> None:
        super().__init__(f"rabbitmq-{kind}")
        self._kind = kind
        self._distribution_port = free_port()

    def command(self) -> list[str]:
        settings = _RABBITMQ_SETTINGS.format(port=self.port)
        (self.folder / "rabbitmq.conf").write_text(settings, "utf-8")
        return [RABBITMQ]

    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"queues-{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    async def link(self, queue: str, *, takes: bool) -> Link:
        import aio_pika

        connection = await _patiently(
            lambda: aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{self.port}/")
        )
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(PREFETCH)
        declared = await channel.declare_queue(
            queue, durable=True, arguments={"x-queue-type": self._kind}
        )
        link = _RabbitmqLink(connection, channel, queue)
        if takes:
            await declared.consume(link.arrived.put)
        return link


class _RabbitmqLink:
    def __init__(self, connection: Any, channel: Any, queue: str) -> None:
        self._connection, self._channel, self._queue = connection, channel, queue
        self.arrived: asyncio.Queue[Any] = asyncio.Queue()

    async def put(self, job: bytes) -> None:
        import aio_pika

        message = aio_pika.Message(job, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self._channel.default_exchange.publish(message, routing_key=self._queue)

    async def put_all(self, jobs: Sequence[bytes]) -> None:
        await asyncio.gather(*map(self.put, jobs))

    async def take(self, limit: int) -> list[tuple[bytes, Any]]:
        return [(message.body, message) for message in await _arrived(self.arrived, limit)]

    async def done(self, tickets: Sequence[Any]) -> None:
        # Acknowledges all before it on this channel, too: they are in order.
        await tickets[-1].ack(multiple=len(tickets) > 1)

    async def settle(self) -> None:
        # Requests of a channel are handled in order: the answer follows the acknowledgements.
        await self._channel.declare_queue(self._queue, passive=True)

    async def close(self) -> None:
        await self._connection.close()


class Nats(Server):
    def command(self) -> list[str]:
        settings = _NATS_SETTINGS.format(port=self.port, folder=self.folder / "data")
        (self.folder / "nats.conf").write_text(settings, "utf-8")
        return ["nats-server", "-c", str(self.folder / "nats.conf")]

    async def link(self, queue: str, *, takes: bool) -> Link:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig

        connection = await nats.connect(f"nats://127.0.0.1:{self.port}")
        stream = connection.jetstream()
        settings = StreamConfig(
            name=queue, subjects=[queue], retention=RetentionPolicy.WORK_QUEUE, num_replicas=1
        )
        with suppress(nats.js.errors.BadRequestError):  # another client has added it
            await stream.add_stream(settings)
        link = _NatsLink(connection, stream, queue)
        if takes:
            limits = ConsumerConfig(
                ack_policy=AckPolicy.EXPLICIT, max_ack_pending=5 * PREFETCH, deliver_group="workers"
            )
            await stream.subscribe(
                queue,
                queue="workers",
                durable="workers",
                cb=link.arrived.put,
                manual_ack=True,
                config=limits,
            )
        return link


class _NatsLink:
    def __init__(self, connection: Any, stream: Any, queue: str) -> None:
        self._connection, self._stream, self._queue = connection, stream, queue
        self.arrived: asyncio.Queue[Any] = asyncio.Queue()

    async def put(self, job: bytes) -> None:
        await self._stream.publish(self._queue, job)

    async def put_all(self, jobs: Sequence[bytes]) -> None:
        await asyncio.gather(*map(self.put, jobs))

    async def take(self, limit: int) -> list[tuple[bytes, Any]]:
        return [(message.data, message) for message in await _arrived(self.arrived, limit)]

    async def done(self, tickets: Sequence[Any]) -> None:
        for message in tickets:
            await message.ack()

    async def settle(self) -> None:
        await self._connection.flush()

    async def close(self) -> None:
        await self._connection.close()


async def _arrived(queue: asyncio.Queue[Any], limit: int) -> list[Any]:
    """Waits for a message. Returns it with others that have already arrived."""
    messages = [await queue.get()]
    while len(messages) < limit and not queue.empty():
        messages.append(queue.get_nowait())
    return messages


def servers() -> dict[str, Callable[[], Server]]:
    """Returns the servers that are installed on this machine with their clients, by name."""
    found: dict[str, Callable[[], Server]] = {"penstock": lambda: Penstock("penstock")}
    if Path(RABBITMQ).exists() and find_spec("aio_pika"):
        found["rabbitmq-quorum"] = lambda: Rabbitmq("quorum")
        found["rabbitmq-classic"] = lambda: Rabbitmq("classic")
    if shutil.which("nats-server") and find_spec("nats"):
        found["nats"] = lambda: Nats("nats")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


async def _patiently(connect: Callable[[], Any]) -> Any:
    """Tries to connect until the server accepts clients, or the deadline has passed."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return await connect()
        except Exception:  # Of any kind while the server starts; raised at the deadline.
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
