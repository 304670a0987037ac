"""A load generator that uses far less processor time than the server it loads.

Requests are bytes built beforehand; the same ones are sent over and over. A connection keeps
`in_flight` of them unanswered: for every response that arrives, one more request is sent, and all
that are due are sent in one call. Responses are counted by their lengths and otherwise ignored.
There is no event loop and no object per request, only sockets, `epoll` and two large buffers.

The generator runs in the process of the benchmark, each server in its own process. Every result
says how much processor time both used: if the server's share is near 1 and the generator's is well
below, the server was the bottleneck. Requests per second of server processor time are comparable
even on a machine that others are using.
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from struct import Struct
from types import TracebackType
from typing import Final

Address = tuple[str, int]

BURST_BYTES: Final = 4 << 20
RECEIVE_BYTES: Final = 1 << 20
_length: Final = Struct(">i").unpack_from


@dataclass(frozen=True, slots=True)
class Result:
    requests: int
    seconds: float
    bytes_out: int
    bytes_in: int
    client_cpu_s: float
    server_cpu_s: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def per_server_cpu_s(self) -> float:
        return self.requests / max(self.server_cpu_s, 1e-9)


class _Stream:
    """One connection: what may still be sent, and the position in the current response."""

    def __init__(self, address: Address, request: bytes, in_flight: int) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.size = len(request)
        self.repeated = memoryview(request * max(1, min(in_flight, BURST_BYTES // len(request))))
        self.due = in_flight * self.size
        """Bytes of requests that may be sent now."""
        self.sent = 0
        self.received = 0
        self.answers = 0
        self.skip = 0
        """Bytes of the current response that have not arrived yet."""
        self.head = b""

    def send(self, more: bool) -> None:
        """Sends what is due; without `more` only the rest of a request that has begun."""
        while True:
            within = self.sent % self.size
            due = self.due if more else (self.size - within if within else 0)
            if not due:
                return
            piece = self.repeated[within : within + due]
            try:
                count = self.socket.send(piece)
            except BlockingIOError:
                return
            self.sent += count
            self.due -= count
            if count < len(piece):
                return

    def receive(self, buffer: bytearray) -> None:
        try:
            size = self.socket.recv_into(buffer)
        except BlockingIOError:
            return
        if not size:
            raise ConnectionError("the server hung up: see its log for the reason")
        self.received += size
        position = self.skip
        if position > size:
            self.skip -= size
            return
        if self.head:
            rest = 4 - len(self.head)
            self.head += bytes(buffer[position : min(size, position + rest)])
            if len(self.head) < 4:
                return
            position += rest + _length(self.head)[0]
            self.head = b""
            self._answered()
        answers = 0
        while position + 4 <= size:
            position += 4 + _length(buffer, position)[0]
            answers += 1
        self.answers += answers
        self.due += answers * self.size
        if position < size:
            self.head = bytes(buffer[position:size])
            position = size
        self.skip = position - size

    def _answered(self) -> None:
        self.answers += 1
        self.due += self.size


def drive(
    address: Address,
    requests: Sequence[bytes],
    *,
    in_flight: int,
    seconds: float,
    server_pid: int | None = None,
) -> Result:
    """Loads a server over one connection per request, for about that many seconds.

    Each connection repeats its own request, `in_flight` at a time. A response counts when its
    length has arrived. At the end all outstanding responses are awaited, so none counts that was
    not sent.
    """
    streams = [_Stream(address, request, in_flight) for request in requests]
    poll = select.epoll()
    by_number = {stream.socket.fileno(): stream for stream in streams}
    for number in by_number:
        poll.register(number, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    buffer = bytearray(RECEIVE_BYTES)
    server_start = cpu_seconds(server_pid) if server_pid else 0.0
    client_start = time.process_time()
    start = time.perf_counter()
    end = start + seconds
    more = True
    for stream in streams:
        stream.send(more)
    while True:
        if more and time.perf_counter() >= end:
            more = False
        if not more and all(_is_done(stream) for stream in streams):
            break
        for number, event in poll.poll(10):
            stream = by_number[number]
            if event & ~select.EPOLLOUT:
                _receive_all(stream, buffer, more)
            stream.send(more)
    elapsed = time.perf_counter() - start
    result = Result(
        requests=sum(stream.answers for stream in streams),
        seconds=elapsed,
        bytes_out=sum(stream.sent for stream in streams),
        bytes_in=sum(stream.received for stream in streams),
        client_cpu_s=time.process_time() - client_start,
        server_cpu_s=(cpu_seconds(server_pid) - server_start) if server_pid else 0.0,
    )
    poll.close()
    for stream in streams:
        stream.socket.close()
    return result


def _receive_all(stream: _Stream, buffer: bytearray, more: bool) -> None:
    """Reads until nothing is left (the poll is edge-triggered), and sends meanwhile."""
    while True:
        before = stream.received
        stream.receive(buffer)
        if stream.received == before:
            return
        stream.send(more)


def _is_done(stream: _Stream) -> bool:
    asked = stream.sent // stream.size
    whole = stream.sent % stream.size == 0
    return whole and asked == stream.answers and not stream.skip and not stream.head


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process and all its threads, in nanosecond resolution."""
    # Linux: the clock id of a process is (~pid << 3) | 2.
    return time.clock_gettime((~pid << 3) | 2)


def stay_apart() -> None:
    """Keeps this process on one processor; `ServerProcess` uses the others.

    Otherwise the system may put both ends of a socket on the same processor, where they alternate.
    On a machine that others use, this does more harm than good.
    """
    own = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {own})


class ServerProcess:
    """A server as a child process. `ready` returns its address if a printed line contains it."""

    def __init__(self, command: Sequence[str], ready: Callable[[str], Address | None]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        others = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
        if others:
            os.sched_setaffinity(self.pid, others)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            address = ready(line)
            if address is not None:
                self.address = address
                return
        raise RuntimeError(f"{command[0]} ended with {self._process.wait()} before it was ready")

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass(frozen=True, slots=True)
class Summary:
    """Several rounds: the best by the clock, the median by the server's processor time."""

    per_second: float
    mib_per_second: float
    per_server_cpu_s: float
    server_us: float
    """Processor time of the server per request."""
    client_us: float
    server_share: float
    client_share: float


def summarize(results: Sequence[Result]) -> Summary:
    best = max(results, key=lambda result: result.per_second)
    per_cpu = statistics.median(result.per_server_cpu_s for result in results)
    moved = (best.bytes_out + best.bytes_in) / best.seconds / (1 << 20)
    return Summary(
        per_second=best.per_second,
        mib_per_second=moved,
        per_server_cpu_s=per_cpu,
        server_us=1e6 / per_cpu,
        client_us=best.client_cpu_s / best.requests * 1e6,
        server_share=best.server_cpu_s / best.seconds,
        client_share=best.client_cpu_s / best.seconds,
    )


def take_turns(sides: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, Summary]:
    """Runs every side once per round, so that noise affects all; the first is warm-up."""
    results: dict[str, list[Result]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            result = side()
            if number:
                results[name].append(result)
    return {name: summarize(found) for name, found in results.items()}


def show(title: str, summaries: Mapping[str, Summary]) -> None:
    against, first = next(iter(summaries.items()))
    print(f"\n{title}")
    for name, summary in summaries.items():
        print(
            f"  {name:12} {summary.per_second:10,.0f}/s {summary.mib_per_second:8,.0f} MiB/s"
            f"  server {summary.server_us:8.1f} us {summary.server_share:4.0%}"
            f"  client {summary.client_us:7.1f} us {summary.client_share:4.0%}"
            f"  | of {against}: {summary.per_second / first.per_second:4.2f} by clock,"
            f" {summary.per_server_cpu_s / first.per_server_cpu_s:4.2f} by processor"
        )


def as_json(summaries: Mapping[str, Summary]) -> dict[str, dict[str, float]]:
    return {name: asdict(summary) for name, summary in summaries.items()}


def file_of(path: str, size: int) -> None:
    """Writes a file of that size, so that its bytes are in the page cache."""
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(block)
