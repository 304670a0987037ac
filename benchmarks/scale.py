"""How soon is a broker ready, and what do many topics and many idle connections cost?

Start: the time from the start of the process to its ready line, the best of several, and the memory
it uses when idle. Topics: `--topics` topics of one partition each are created, and the broker is
stopped and started again; then one Metadata request asks for all of them. Connections: a client's
produce round trips are measured alone, then with `--connections` others that send ApiVersions once
and then nothing, and alone again: the difference between the first and the last is the noise of the
machine.

Run it from the project's root: `python -m benchmarks.scale --json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

from penstock.records.record import Record, build_batch
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.messages.base import Request, Response

R = TypeVar("R", bound=Response)

PENSTOCK: Final = str(Path(sys.executable).with_name("penstock"))
READY: Final = re.compile(r"ready bootstrap=([\d.]+):(\d+)")
TOPICS_PER_REQUEST: Final = 500
CONNECTIONS_PER_ADDRESS: Final = 2_500
"""From 127.0.0.1, 127.0.0.2, ...: a broker limits the connections from one address."""
MB: Final = 1 << 20


class BrokerProcess:
    """`penstock up` with a data directory, ready."""

    def __init__(self, data: str, *settings: str) -> None:
        command = [PENSTOCK, "up", "--data", data, "--port", "0", "--no-console"]
        for setting in settings:
            command += ["--set", setting]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := READY.search(line):
                self.ready_s = time.perf_counter() - began
                self.address = (found[1], int(found[2]))
                return
        raise RuntimeError(f"the broker ended with {self._process.wait()} before it was ready")

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> float:
        """Returns the seconds from SIGTERM to the end of the process."""
        began = time.perf_counter()
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return time.perf_counter() - began

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Client:
    """Sends one request at a time over one blocking connection."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
        self._correlation_ids = count(1)

    def ask(self, request: Request, version: int, response: type[R]) -> R:
        frame = b"".join(encode_request(request, version, next(self._correlation_ids), "scale"))
        return decode_response(response, memoryview(self.exchange(frame)), version)[1]

    def exchange(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        return self._read(int.from_bytes(self._read(4), "big"))

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            read = self._socket.recv_into(view[filled:])
            if not read:
                raise ConnectionError("the broker hung up")
            filled += read
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


def start(root: str, repeats: int) -> dict[str, float]:
    ready, stopped, resident = [], [], []
    for number in range(repeats):
        with BrokerProcess(f"{root}/start-{number}") as broker:
            ready.append(broker.ready_s)
            resident.append(broker.resident_bytes)
            stopped.append(broker.stop())
    return {
        "ready_s": min(ready),
        "ready_median_s": statistics.median(ready),
        "stop_s": statistics.median(stopped),
        "resident_mb": max(resident) / MB,
    }


def create_topics(client: Client, names: Sequence[str], **configs: str) -> None:
    settings = [CreateTopicsRequest.Config(*item) for item in configs.items()]
    for first in range(0, len(names), TOPICS_PER_REQUEST):
        wanted = [
            CreateTopicsRequest.Topic(name, 1, 1, configs=settings)
            for name in names[first : first + TOPICS_PER_REQUEST]
        ]
        answer = client.ask(CreateTopicsRequest(wanted, 60_000), 7, CreateTopicsResponse)
        failed = [topic for topic in answer.topics if topic.error_code]
        if failed:
            raise RuntimeError(f"{failed[0].name}: {failed[0].error_message}")


def topics(root: str, number: int) -> dict[str, float]:
    data = f"{root}/topics"
    names = [f"topic-{index:05}" for index in range(number)]
    with BrokerProcess(data) as broker:
        client = Client(broker.address)
        began = time.perf_counter()
        create_topics(client, names)
        created_s = time.perf_counter() - began
        client.close()
        stop_s = broker.stop()
    with BrokerProcess(data) as broker:
        client = Client(broker.address)
        frame = b"".join(encode_request(MetadataRequest(None), 12, 1, "scale"))
        answers, times = b"", []
        for _ in range(3):
            began = time.perf_counter()
            answers = client.exchange(frame)
            times.append(time.perf_counter() - began)
        metadata = decode_response(MetadataResponse, memoryview(answers), 12)[1]
        led = [topic for topic in metadata.topics if topic.partitions[0].leader_id >= 0]
        if len(led) != number:
            raise RuntimeError(f"{len(led)} of {number} topics have a leader")
        client.close()
        return {
            "topics": number,
            "create_s": created_s,
            "stop_s": stop_s,
            "ready_s": broker.ready_s,
            "metadata_first_s": times[0],
            "metadata_s": min(times),
            "metadata_bytes": len(answers),
            "resident_mb": broker.resident_bytes / MB,
        }


def produce_frame(topic: str, value_bytes: int) -> bytes:
    batch = build_batch([Record(0, 1_700_000_000_000, None, b"x" * value_bytes)])
    data = ProduceRequest.Partition(0, batch)
    request = ProduceRequest(None, 1, 10_000, [ProduceRequest.Topic(topic, partition_data=[data])])
    return b"".join(encode_request(request, 9, 1, "good"))


def percentile(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def round_trips(client: Client, frame: bytes, number: int) -> list[float]:
    times = []
    for _ in range(number):
        began = time.perf_counter()
        answer = client.exchange(frame)
        times.append(time.perf_counter() - began)
    produced = decode_response(ProduceResponse, memoryview(answer), 9)[1]
    if produced.responses[0].partition_responses[0].error_code:
        raise RuntimeError(f"the produce failed: {produced}")
    return times


def connections(root: str, number: int, trips: int) -> dict[str, float]:
    _allow_files(number + 100)
    with BrokerProcess(f"{root}/connections", "connections_per_address_max=10000") as broker:
        client = Client(broker.address)
        create_topics(client, ["good"], durability="replicated")
        frame = produce_frame("good", 1_000)
        round_trips(client, frame, 500)
        alone = round_trips(client, frame, trips)
        before = broker.resident_bytes
        began = time.perf_counter()
        idle = _open_idle(broker.address, number)
        opened_s = time.perf_counter() - began
        beside = round_trips(client, frame, trips)
        more = broker.resident_bytes - before
        for each in idle:
            each.close()
        after = round_trips(client, frame, trips)
        client.close()
    p99 = [percentile(times, 0.99) * 1e3 for times in (alone, beside, after)]
    return {
        "connections": number,
        "opened_s": opened_s,
        "more_mb": more / MB,
        "bytes_per_connection": more / max(1, number),
        "p50_alone_ms": percentile(alone, 0.5) * 1e3,
        "p50_beside_ms": percentile(beside, 0.5) * 1e3,
        "p99_alone_ms": p99[0],
        "p99_beside_ms": p99[1],
        "p99_after_ms": p99[2],
        "p99_ratio": p99[1] / max(p99[0], p99[2]),
    }


def _allow_files(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, number)), hard))


def _open_idle(address: tuple[str, int], number: int) -> list[socket.socket]:
    """Opens connections that have sent ApiVersions, as every client does, and then wait."""
    hello = b"".join(encode_request(ApiVersionsRequest("idle", "1"), 3, 1, "idle"))
    opened = []
    for index in range(number):
        source = f"127.0.0.{2 + index // CONNECTIONS_PER_ADDRESS}"
        connection = socket.create_connection(address, source_address=(source, 0))
        connection.sendall(hello)
        opened.append(connection)
        if not connection.recv(1 << 16):
            raise ConnectionError(f"connection {index} was refused")
    return opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="few of everything, to see it run")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--trips", type=int, default=5_000, help="timed round trips per phase")
    parser.add_argument("--directory", help="where to put the data (default: a temporary one)")
    parser.add_argument(
        "--only", choices=("start", "topics", "connections"), help="one of the questions"
    )
    options = parser.parse_args()
    if options.smoke:
        options.topics, options.connections, options.trips = 50, 50, 200
    root = tempfile.mkdtemp(prefix="penstock-bench-", dir=options.directory)
    questions: dict[str, Callable[[], dict[str, float]]] = {
        "start": lambda: start(root, 2 if options.smoke else 7),
        "topics": lambda: topics(root, options.topics),
        "connections": lambda: connections(root, options.connections, options.trips),
    }
    results = {}
    try:
        for name, question in questions.items():
            if options.only in (None, name):
                results[name] = question()
                print(name, *(f"{key}={value:.4g}" for key, value in results[name].items()))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
