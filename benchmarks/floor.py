"""What is the minimum that a Python broker has to do, and what does `net` add to it?

Produce: read a frame, check the CRC32C of the batch, write with pwrite, send a 16-byte response, in
a bare uvloop protocol (`floor`); and the same work as a session of `penstock.net` (`net`). `bare`
and `bare_net` only send the response: their difference is the cost of `net` per request.

Fetch of 1 MiB: the same ranges of a file by `sendfile` and by pread + send on blocking sockets, by
pread + write in a bare uvloop protocol, and by a session of `net`.

All servers run at the same time and are loaded in turns; see `load.py`. Run it from the project's
root: `python -m benchmarks.floor`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from struct import Struct
from typing import Final, cast

import uvloop
from crc32c import crc32c

from benchmarks.load import (
    Address,
    Result,
    ServerProcess,
    as_json,
    drive,
    file_of,
    show,
    stay_apart,
    take_turns,
)
from penstock.net.config import ServerConfig
from penstock.net.memory import keep_large_blocks
from penstock.net.server import Server
from penstock.net.session import Peer, Session
from penstock.net.sockets import SocketNetwork
from penstock.runtime import SystemClock

KIB: Final = 1 << 10
MIB: Final = 1 << 20
PRODUCE_BYTES: Final = (KIB, 16 * KIB, 128 * KIB, MIB)
FETCH_BYTES: Final = MIB
CONNECTIONS: Final = 4
"""While one connection waits for its next requests, the server works on those of the others."""
FILE_BYTES: Final = 256 * MIB
WRITTEN_BYTES_MAX: Final = 8 << 30
READ_BYTES: Final = 256 * KIB
ANSWER: Final = b"\0\0\0\x0c" + bytes(12)
BATCH_AT: Final = 12
"""Where the batch begins in a request: after a placeholder for the header and topic."""
CRC_FROM: Final = 21
_length: Final = Struct(">i")
_fetch: Final = Struct(">qi")

Handle = Callable[[memoryview], "list[bytes] | bytes"]


class Working(ABC):
    """Work that keeps no reference to a frame."""

    @abstractmethod
    def on_frame(self, frame: memoryview, borrowed: bool = False) -> list[bytes]: ...

    def may_overlap(self, frame: memoryview) -> bool:
        return True

    def on_closed(self) -> None:  # noqa: B027 -- nothing to do by default
        pass


class Appender(Working):
    """Computes the CRC of each batch and appends it; truncates its file if a connection closes."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._position = 0

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> list[bytes]:
        batch = frame[BATCH_AT:]
        crc32c(batch[CRC_FROM:])
        self._position += os.pwrite(self._file, batch, self._position)
        if self._position > WRITTEN_BYTES_MAX:
            self.on_closed()
        return [ANSWER]

    def on_closed(self) -> None:
        os.ftruncate(self._file, 0)
        self._position = 0


class Nothing(Working):
    def on_frame(self, frame: memoryview, borrowed: bool = False) -> list[bytes]:
        return [ANSWER]


class Reader(Working):
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY)

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> list[bytes]:
        position, size = _fetch.unpack(frame)
        data = os.pread(self._file, size, position)
        return [_length.pack(len(data)), data]


class Bare(asyncio.BufferedProtocol):
    """Splits frames with the shortest correct code, and writes the answers of one read at once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._frame: memoryview | None = None
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._session.on_closed()

    def get_buffer(self, sizehint: int) -> memoryview:
        return (self._view if self._frame is None else self._frame)[self._filled :]

    def buffer_updated(self, size: int) -> None:
        self._filled += size
        if self._frame is not None:
            if self._filled == len(self._frame):
                frame, self._frame, self._filled = self._frame, None, 0
                self._answer([frame[4:]])
            return
        position, filled = 0, self._filled
        frames = []
        while filled - position >= 4:
            end = position + 4 + _length.unpack_from(self._buffer, position)[0]
            if end > filled:
                break
            frames.append(self._view[position + 4 : end])
            position = end
        if frames:
            # No copy is needed: all work is done before the next read.
            self._answer(frames)
        rest = self._view[position:filled]
        self._filled = len(rest)
        if len(rest) >= 4 and (wanted := 4 + _length.unpack_from(rest)[0]) > READ_BYTES:
            self._frame = memoryview(bytearray(wanted))
            self._frame[: len(rest)] = rest
        else:
            self._buffer[: len(rest)] = bytes(rest)

    def _answer(self, frames: list[memoryview]) -> None:
        parts: list[bytes] = []
        for frame in frames:
            parts += cast("list[bytes]", self._session.on_frame(frame))
        self._transport.writelines(parts)


async def serve_bare(session: Session) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Bare(session), "127.0.0.1", 0)
    print("ready", *server.sockets[0].getsockname(), flush=True)
    await asyncio.Event().wait()


async def serve_net(session: Session) -> None:
    def new_session(_peer: Peer) -> Session:
        return session

    server = Server(SocketNetwork(), SystemClock(), ServerConfig(port=0), new_session)
    await server.start()
    print("ready", *server.address, flush=True)
    await asyncio.Event().wait()


def serve_blocking(answer: Callable[[socket.socket, int, int], None]) -> None:
    """Serves one connection after the other, one request at a time, without an event loop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print("ready", *listener.getsockname(), flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                while len(request := connection.recv(16, socket.MSG_WAITALL)) == 16:
                    position, size = _fetch.unpack_from(request, 4)
                    connection.send(_length.pack(size), socket.MSG_MORE)
                    answer(connection, position, size)


def serve_pread(path: str) -> None:
    file = os.open(path, os.O_RDONLY)

    def answer(connection: socket.socket, position: int, size: int) -> None:
        connection.sendall(os.pread(file, size, position))

    serve_blocking(answer)


def serve_sendfile(path: str) -> None:
    file = os.open(path, os.O_RDONLY)

    def answer(connection: socket.socket, position: int, size: int) -> None:
        while size:
            sent = os.sendfile(connection.fileno(), file, position, size)
            position += sent
            size -= sent

    serve_blocking(answer)


def serve(kind: str, path: str) -> None:
    keep_large_blocks()
    if kind == "sendfile":
        serve_sendfile(path)
    elif kind == "pread":
        serve_pread(path)
    else:
        work: dict[str, Callable[[], Session]] = {
            "floor": lambda: Appender(path),
            "net": lambda: Appender(path),
            "bare": Nothing,
            "bare_net": Nothing,
            "uvloop": lambda: Reader(path),
            "fetch_net": lambda: Reader(path),
        }
        session = work[kind]()
        uvloop.run(serve_net(session) if kind.endswith("net") else serve_bare(session))


def start(kind: str, path: str) -> ServerProcess:
    """Starts one of the servers above in its own process."""
    return ServerProcess(
        [sys.executable, "-m", "benchmarks.floor", "--serve", kind, "--path", path], _ready
    )


def _ready(line: str) -> Address | None:
    words = line.split()
    return (words[1], int(words[2])) if words[:1] == ["ready"] else None


def produce_request(batch_bytes: int) -> bytes:
    return _length.pack(BATCH_AT + batch_bytes) + bytes(BATCH_AT) + os.urandom(batch_bytes)


def fetch_requests(connections: int) -> list[bytes]:
    step = FILE_BYTES // connections
    return [
        _length.pack(_fetch.size) + _fetch.pack(number * step, FETCH_BYTES)
        for number in range(connections)
    ]


def in_flight_for(size: int) -> int:
    """Returns the requests in flight per connection: about as much as socket buffers hold."""
    return max(2, min(32, MIB // size))


def load(server: ServerProcess, requests: list[bytes], in_flight: int, seconds: float) -> Result:
    return drive(
        server.address, requests, in_flight=in_flight, seconds=seconds, server_pid=server.pid
    )


def measure(root: str, rounds: int, seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    results = {}
    with ExitStack() as stack:
        servers = {
            kind: stack.enter_context(start(kind, f"{root}/{kind}"))
            for kind in ("floor", "net", "bare", "bare_net")
        }
        for size in PRODUCE_BYTES:
            requests = [produce_request(size)] * CONNECTIONS
            for kinds in (("floor", "net"), ("bare", "bare_net")):
                sides = {
                    kind: partial(load, servers[kind], requests, in_flight_for(size), seconds)
                    for kind in kinds
                }
                found = take_turns(sides, rounds)
                name = "produce" if kinds[0] == "floor" else "answer"
                in_flight = f"{CONNECTIONS} x {in_flight_for(size)} in flight"
                show(f"{name}, {size // KIB} KiB, {in_flight}", found)
                results[f"{name}_{size}"] = as_json(found)
    with ExitStack() as stack:
        path = f"{root}/fetched"
        file_of(path, FILE_BYTES)
        sides = {
            kind: partial(
                load, stack.enter_context(start(kind, path)), fetch_requests(1), 4, seconds
            )
            for kind in ("pread", "sendfile", "uvloop", "fetch_net")
        }
        found = take_turns(sides, rounds)
        show("fetch, 1 MiB, 4 in flight", found)
        results[f"fetch_{FETCH_BYTES}"] = as_json(found)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="short rounds, only to see it run")
    parser.add_argument("--directory", help="where to put the files (default: a temporary one)")
    parser.add_argument(
        "--apart", action="store_true", help="generator and servers on processors of their own"
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--path", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.path)
        return
    if arguments.apart:
        stay_apart()
    root = tempfile.mkdtemp(prefix="penstock-bench-", dir=arguments.directory)
    try:
        results = measure(root, *((1, 0.05) if arguments.smoke else (5, 0.4)))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
