"""Do thousands of hostile connections slow down a good client, or fill the broker's memory?

A good client produces, fetches and requests metadata over one connection, at a fixed pace: first
alone, then while another process keeps many connections open that misbehave, in equal shares:

    silent      connects and sends nothing
    dripping    sends one byte of a request per second
    deaf        sends a long poll and forty fetches of 50 MB, and reads nothing
    announcing  announces a request of 100 MB, sends 256 KiB of it, and stops

A connection that the broker closes is opened again. All traffic stays on the loopback interface.
The connections come from several of its addresses, because the broker limits connections per
address.

Run it from the project's root: `python -m benchmarks.hostile --json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import select
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count, cycle
from pathlib import Path
from typing import Final

from benchmarks.broker import (
    MIB,
    batch_of,
    fetch_request,
    produce_request,
    start_broker,
)
from benchmarks.scale import Client
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    MetadataRequest,
    ProduceResponse,
)

KINDS: Final = ("silent", "dripping", "deaf", "announcing")
ADDRESSES: Final = 8
"""How many loopback addresses the connections come from."""
PACE_S: Final = 0.005
"""Seconds between two rounds of the good client. A round is three requests."""
OPENED_PER_S: Final = 2_000
LOG_BYTES: Final = 64 * MIB
FETCHES: Final = 40
FETCHED_BYTES: Final = 50 * MIB
ANNOUNCED_BYTES: Final = 100_000_000
SENT_BYTES: Final = 256 << 10
ARRIVED_SHARE: Final = 0.9
"""The share of the connections that must be open at the broker before measuring."""
ARRIVAL_TIMEOUT_S: Final = 60.0
TARGET_RATIO: Final = 3.0
TARGET_MIB: Final = 1024


def raise_file_limit() -> None:
    """Raises the limit as far as the system allows; child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# The attack, in its own process


def greedy_fetch(wait_ms: int, offset: int, min_bytes: int) -> bytes:
    asked = FetchRequest.Partition(0, fetch_offset=offset, partition_max_bytes=FETCHED_BYTES)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=FETCHED_BYTES,
        session_epoch=-1,
        topics=[FetchRequest.Topic("prey", partitions=[asked])],
    )
    return b"".join(encode_request(request, 11, 1, "hostile"))


def first_bytes(kind: str) -> bytes:
    """Returns what a connection sends when it is open."""
    match kind:
        case "deaf":
            return greedy_fetch(2000, 0, 1 << 30) + FETCHES * greedy_fetch(0, 0, 1)
        case "announcing":
            return struct.pack(">i", ANNOUNCED_BYTES) + bytes(SENT_BYTES)
    return b""


class Attack:
    def __init__(self, port: int, connections: int, kinds: Sequence[str]) -> None:
        self._port = port
        self._connections = connections
        self._poll = select.epoll()
        self._open: dict[int, tuple[socket.socket, str]] = {}
        self._unsent: dict[int, memoryview] = {}
        self._kinds = cycle(kinds)
        self._sources = (f"127.0.0.{2 + number % ADDRESSES}" for number in count())
        self._drip = b"".join(encode_request(MetadataRequest(), 9, 1, "hostile" * 20))
        self._first = {kind: first_bytes(kind) for kind in KINDS}
        self.opened = self.closed = 0

    def run(self, seconds: float) -> None:
        start = time.monotonic()
        next_drip = start
        drips = 0
        while (now := time.monotonic()) < start + seconds:
            budget = int((now - start) * OPENED_PER_S) + 100 - self.opened
            for _ in range(min(50, budget, self._connections - len(self._open))):
                self._connect()
            for number, event in self._poll.poll(0.01):
                self._on_event(number, event)
            if now >= next_drip:
                next_drip += 1.0
                self._send_drips(drips)
                drips += 1

    def report(self) -> dict[str, int]:
        kinds = [kind for _, kind in self._open.values()]
        return {
            "opened": self.opened,
            "closed_by_broker": self.closed,
            **{f"open_{kind}": kinds.count(kind) for kind in KINDS},
        }

    def _connect(self) -> None:
        kind = next(self._kinds)
        sock = socket.socket()
        # Small, so that data stays in the broker's memory and not in the kernel's buffers.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        sock.bind((next(self._sources), 0))
        self.opened += 1
        try:
            sock.connect(("127.0.0.1", self._port))
        except BlockingIOError:
            pass
        except OSError:
            sock.close()
            return
        number = sock.fileno()
        self._open[number] = sock, kind
        if self._first[kind]:
            self._unsent[number] = memoryview(self._first[kind])
        self._poll.register(number, select.EPOLLOUT | select.EPOLLRDHUP)

    def _on_event(self, number: int, event: int) -> None:
        sock, _ = self._open[number]
        if event & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            self._lose(number)
            return
        rest = self._unsent.pop(number, None)
        if rest is not None:
            try:
                sent = sock.send(rest)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._lose(number)
                return
            if sent < len(rest):
                self._unsent[number] = rest[sent:]
                return
        self._poll.modify(number, select.EPOLLRDHUP)

    def _send_drips(self, drips: int) -> None:
        byte = self._drip[drips % len(self._drip) :][:1]
        for number, (sock, kind) in list(self._open.items()):
            if kind == "dripping":
                try:
                    sock.send(byte)
                except BlockingIOError:
                    pass
                except OSError:
                    self._lose(number)

    def _lose(self, number: int) -> None:
        sock, _ = self._open.pop(number)
        self._unsent.pop(number, None)
        self._poll.unregister(number)
        sock.close()
        self.closed += 1


# The good client


def rounds(client: Client, seconds: float) -> Iterator[float]:
    """Sends requests at a fixed pace, and yields their latencies in seconds."""
    batch = batch_of(1024)
    end = due = time.perf_counter()
    end += seconds
    metadata = b"".join(encode_request(MetadataRequest([]), 9, 1, "good"))
    while (due := due + PACE_S) < end:
        time.sleep(max(0.0, due - time.perf_counter()))
        due = max(due, time.perf_counter() - PACE_S)
        offset = 0
        for step in range(3):
            frame = metadata
            if step == 0:
                frame = produce_request("good", 0, bytearray(batch))
            elif step == 1:
                frame = fetch_request("good", offset)
            began = time.perf_counter()
            answer = client.exchange(frame)
            yield time.perf_counter() - began
            if step == 0:
                made = decode_response(ProduceResponse, memoryview(answer), 9)[1]
                part = made.responses[0].partition_responses[0]
                assert not part.error_code, part.error_message
                offset = part.base_offset


def percentiles(latencies: Sequence[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    at = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found = {
        name: ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
        for name, share in at.items()
    }
    return {f"{name}_ms": round(value * 1000, 3) for name, value in found.items()}


def prepare(client: Client) -> None:
    """Creates one topic for each side, with enough data to fetch for the hostile one."""
    configs = [CreateTopicsRequest.Config("durability", "replicated")]
    topics = [CreateTopicsRequest.Topic(name, 1, 1, [], configs) for name in ("good", "prey")]
    made = client.ask(CreateTopicsRequest(topics), 7, CreateTopicsResponse)
    assert not any(topic.error_code for topic in made.topics), made
    frame = produce_request("prey", 0, batch_of(MIB - 1024))
    for _ in range(LOG_BYTES // MIB):
        client.exchange(frame)


def memory_mib(pid: int, field: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def measure(connections: int, seconds: float, kinds: Sequence[str], root: str) -> dict[str, object]:
    with start_broker(f"{root}/data") as broker:
        client = Client(broker.address)
        prepare(client)
        list(rounds(client, min(1.0, seconds)))
        quiet = list(rounds(client, seconds))
        before = memory_mib(broker.pid, "VmRSS")
        command = [sys.executable, "-m", "benchmarks.hostile", "--attack", str(broker.address[1])]
        command += ["--connections", str(connections), "--seconds"]
        command += [str(ARRIVAL_TIMEOUT_S + 2 * seconds + 30)]
        if len(kinds) == 1:
            command += ["--only", kinds[0]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attack:
            # Measure while the connections arrive, and when they are open.
            coming = list(rounds(client, 0.5))
            give_up = time.monotonic() + ARRIVAL_TIMEOUT_S
            while open_files(broker.pid) < ARRIVED_SHARE * connections:
                coming += rounds(client, 0.5)
                if time.monotonic() > give_up:
                    break
            hostile = list(rounds(client, seconds))
            peak = memory_mib(broker.pid, "VmHWM")
            there = open_files(broker.pid)
            attack.terminate()
            told = attack.communicate()[0]
        again = list(rounds(client, seconds))
        client.close()
    alone = percentiles([*quiet, *again])
    # Both are medians of several p99s, so one slow second of a shared machine has little effect.
    ratio = _p99(hostile) / _p99([*quiet, *again])
    return {
        "connections": connections,
        "broker_files": there,
        "attack": json.loads(told) if told else {},
        "alone": alone,
        "while_they_come": percentiles(coming),
        "hostile": percentiles(hostile),
        "p99_ratio": round(ratio, 2),
        "memory_before_mib": round(before),
        "memory_peak_mib": round(peak),
        "within_targets": ratio <= TARGET_RATIO and peak < TARGET_MIB,
    }


def _p99(latencies: Sequence[float], parts: int = 10) -> float:
    size = max(1, len(latencies) // parts)
    return statistics.median(
        percentiles(latencies[start : start + size])["p99_ms"]
        for start in range(0, len(latencies) - size + 1, size)
    )


def attack(port: int, connections: int, seconds: float, kinds: Sequence[str]) -> None:
    held = Attack(port, connections, kinds)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(KeyboardInterrupt):
        held.run(seconds)
    print(json.dumps(held.report()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="few connections, only to see it run")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measured phase")
    parser.add_argument("--only", choices=KINDS, help="connections of one kind")
    parser.add_argument("--directory", help="where to put the data (default: a temporary one)")
    parser.add_argument("--attack", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    raise_file_limit()
    kinds = [options.only] if options.only else KINDS
    if options.attack:
        attack(options.attack, options.connections, options.seconds, kinds)
        return
    if options.smoke:
        options.connections, options.seconds = 300, 1.0
    root = tempfile.mkdtemp(prefix="penstock-hostile-", dir=options.directory)
    try:
        found = measure(options.connections, options.seconds, kinds, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, value in found.items():
        print(f"{name}: {value}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
