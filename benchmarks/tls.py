"""What do TLS and logins cost a broker?

Throughput: a client sends produce requests with 128 KiB batches, one after the other, and then
fetches them, over plain text and over TLS in turn, in short rounds. Each round has a topic of its
own, which is deleted afterwards, so that the broker does not wait for dirty pages. `processor`
compares the bytes per second of the broker's processor time. `elapsed` compares the bytes per
second, and decides whether the target is met: the client, which encrypts while the broker waits,
limits them more than the broker does. A fetch over plain text is sent from the file without being
read, which TLS cannot do. `broker_us` is the processor time of the broker for each request. If it
is much above 100 for a produce request over plain text, the machine is too busy for either ratio
to mean anything.

Most of the difference is AES, and so depends on OpenSSL: since version 3.1 it uses the vector
instructions of newer processors, and is about twice as fast there.

Logins: the processor time of the broker for each login with SCRAM-SHA-256, without TLS, minus that
of a connection without a login.

Run it from the project's root: `python -m benchmarks.tls --json`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.broker import batch_of, fetch_request, produce_request
from benchmarks.load import cpu_seconds
from penstock.broker.peers.connection import Peer, PeerSecurity, connect_peer
from penstock.net.sockets import SocketNetwork
from penstock.net.tls import client_context
from penstock.runtime import SystemClock, SystemRandom, Threads, read_file
from penstock.security.certificates import Subject, new_authority, new_server
from penstock.security.client_login import PasswordLogin
from penstock.security.listener_security import parse_client_tls
from penstock.security.scram_credentials import ScramMechanism, password_hash
from penstock.testing.ports import free_port
from penstock.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

BATCH_BYTES: Final = 128 << 10
TARGET_THROUGHPUT: Final = 0.6
TARGET_LOGIN_MS: Final = 3.0
USER: Final = "alice"
PASSWORD: Final = "a password"
TIMEOUT_S: Final = 60.0
WARM_UP: Final = 10
"""Requests before each measurement. A fetch then returns 1 MiB."""


class Broker:
    """A broker process with one listener of each kind."""

    def __init__(self, folder: Path) -> None:
        now_ms, random = SystemClock().wall_ms(), SystemRandom()
        authority = new_authority(Subject("benchmark"), now_ms, random.bytes)
        issued = new_server(authority, Subject("broker"), ["127.0.0.1"], now_ms, random.bytes)
        (folder / "broker.pem").write_text(issued.key + issued.certificate)
        self.authority = folder / "ca.pem"
        self.authority.write_text(authority.certificate)
        self.ports = {name: free_port(random) for name in ("PLAIN", "TLS", "LOGIN")}
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        settings = {
            "listeners": listeners,
            "listener.security.protocol.map": "PLAIN:PLAINTEXT,TLS:SSL,LOGIN:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAIN",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        }
        lines = [f"data_dir = {json.dumps(str(folder / 'data'))}", 'metrics = "off"', "[kafka]"]
        lines += [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items()]
        (folder / "broker.toml").write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "penstock.cli.main", "broker", "--config"]
        self.process = subprocess.Popen(
            [*command, str(folder / "broker.toml")], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready"):
            raise RuntimeError("the broker did not start")

    def cpu_s(self) -> float:
        """Returns the processor time that the broker has used."""
        return cpu_seconds(self.process.pid)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(TIMEOUT_S)


class Line:
    """One connection that sends whole frames and reads whole frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, frame: bytes) -> int:
        """Sends a request. Returns the size of the response."""
        self._writer.write(frame)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        left = size
        while left:
            left -= len(await self._reader.read(min(left, 1 << 20)))
        return int(size)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def connect(broker: Broker, listener: str) -> Line:
    context = None
    if listener == "TLS":
        settings = parse_client_tls({"ssl.truststore.location": str(broker.authority)})
        context = client_context(settings, read_file)
    opened = await asyncio.open_connection(
        "127.0.0.1", broker.ports[listener], ssl=context, limit=4 << 20
    )
    return Line(*opened)


async def throughput(broker: Broker, topic: str, listener: str, seconds: float) -> dict[str, float]:
    """Returns the MiB per second, elapsed and of the broker's processor time, and the broker's
    microseconds for each request."""
    line = await connect(broker, listener)
    found: dict[str, float] = {}
    works: dict[str, Callable[[], bytes]] = {
        "produce": lambda: produce_request(topic, 0, batch_of(BATCH_BYTES)),
        "fetch": lambda: fetch_request(topic, 0),
    }
    for name, make in works.items():
        frame = make()
        for _ in range(WARM_UP):
            await line.ask(frame)
        began, sent, count, start = broker.cpu_s(), 0, 0, time.monotonic()
        while time.monotonic() < start + seconds:
            size = await line.ask(frame)
            sent += len(frame) if name == "produce" else size
            count += 1
        used = broker.cpu_s() - began
        found[f"{name}_elapsed"] = sent / (1 << 20) / (time.monotonic() - start)
        found[f"{name}_processor"] = sent / (1 << 20) / used
        found[f"{name}_us"] = used / count * 1e6
    await line.close()
    return found


async def logins(broker: Broker, count: int) -> float:
    """Returns the processor time of the broker for one login, in milliseconds."""
    threads, network = Threads(2), SocketNetwork()
    security = PeerSecurity(
        SystemRandom(), threads, None, PasswordLogin("SCRAM-SHA-256", USER, PASSWORD)
    )

    async def open_many(listener: str, how: PeerSecurity | None) -> float:
        began = broker.cpu_s()
        for _ in range(count):
            peer = await connect_peer(
                network,
                ("127.0.0.1", broker.ports[listener]),
                client_id="benchmark",
                timeout_s=TIMEOUT_S,
                response_bytes_max=1 << 20,
                security=how,
            )
            if how is None:
                await peer.ask(ApiVersionsRequest("b", "1"), 3, ApiVersionsResponse, TIMEOUT_S)
            peer.close()
        return broker.cpu_s() - began

    try:
        with_login = await open_many("LOGIN", security)
        without = await open_many("PLAIN", None)
    finally:
        threads.close()
    return (with_login - without) / count * 1000


async def admin(broker: Broker) -> Peer:
    return await connect_peer(
        SocketNetwork(),
        ("127.0.0.1", broker.ports["PLAIN"]),
        client_id="benchmark",
        timeout_s=TIMEOUT_S,
        response_bytes_max=1 << 20,
    )


async def prepare(peer: Peer) -> None:
    """Makes the user."""
    salt = SystemRandom().bytes(16)
    salted = password_hash(ScramMechanism.SHA_256, PASSWORD, salt, 4096).run()
    upsertion = AlterUserScramCredentialsRequest.Upsertion(USER, 1, 4096, salt, salted)
    request = AlterUserScramCredentialsRequest([], [upsertion])
    answer = await peer.ask(request, 0, AlterUserScramCredentialsResponse, TIMEOUT_S)
    assert [each.error_code for each in answer.results] == [0]


async def compare(
    broker: Broker, peer: Peer, rounds: int, seconds: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the ratios of TLS to plain text, and the broker's microseconds for each request."""
    ratios: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    for number in range(rounds):
        found: dict[str, dict[str, float]] = {}
        for listener in ("PLAIN", "TLS"):
            topic = f"{listener}-{number}"
            configs = [CreateTopicsRequest.Config("durability", "replicated")]
            new = CreateTopicsRequest.Topic(topic, 1, 1, configs=configs)
            await peer.ask(CreateTopicsRequest([new]), 7, CreateTopicsResponse, TIMEOUT_S)
            found[listener] = await throughput(broker, topic, listener, seconds)
            old = DeleteTopicsRequest([DeleteTopicsRequest.Topic(topic)], timeout_ms=30_000)
            await peer.ask(old, 6, DeleteTopicsResponse, TIMEOUT_S)
        for name, plain in found["PLAIN"].items():
            if name.endswith("_us"):
                for listener, each in found.items():
                    costs.setdefault(f"{listener}_{name}".lower(), []).append(each[name])
            else:
                ratios.setdefault(name, []).append(found["TLS"][name] / plain)
    return (
        {name: round(statistics.median(each), 3) for name, each in ratios.items()},
        {name: round(statistics.median(each), 1) for name, each in costs.items()},
    )


async def run(rounds: int, seconds: float, count: int, directory: str | None) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=directory))
    broker = Broker(folder)
    try:
        peer = await admin(broker)
        await prepare(peer)
        ratios, costs = await compare(broker, peer, rounds, seconds)
        login_ms = await logins(broker, count)
        peer.close()
    finally:
        broker.close()
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "tls_throughput_ratio": ratios,
        "broker_us": costs,
        "openssl": ssl.OPENSSL_VERSION,
        "target_ratio": TARGET_THROUGHPUT,
        "scram_login_cpu_ms": round(login_ms, 3),
        "target_login_ms": TARGET_LOGIN_MS,
        "met": ratios["produce_elapsed"] >= TARGET_THROUGHPUT and login_ms <= TARGET_LOGIN_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    parser.add_argument("--logins", type=int, default=500)
    parser.add_argument("--directory", help="where to put the data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print only one JSON object")
    chosen = parser.parse_args()
    result = asyncio.run(run(chosen.rounds, chosen.seconds, chosen.logins, chosen.directory))
    sys.stdout.write(json.dumps(result, indent=None if chosen.json else 2) + "\n")


if __name__ == "__main__":
    main()
