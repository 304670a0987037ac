"""Answers leave by the cheapest way, in order and whole, from memory and from files."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import cast

import pytest

from penstock.net.outbox import PIECE_BYTES, in_memory
from penstock.net.session import Answer, Part, Peer
from penstock.ports import Buffer

from .fakes import Script, framed, in_loop, rig, settle
from .test_sockets import Live, on_both_loops, until

CONTENT = bytes(number % 251 for number in range(1 << 20)) * 4


class Range:
    """Bytes of a file; counts who read them into memory."""

    def __init__(self, file: int, position: int, size: int) -> None:
        self.position = position
        self.reads = 0
        self._file = file
        self._size = size

    def __len__(self) -> int:
        return self._size

    def fileno(self) -> int:
        return self._file

    def read(self, skip: int = 0, bytes_max: int | None = None) -> Buffer:
        self.reads += 1
        size = self._size - skip if bytes_max is None else min(bytes_max, self._size - skip)
        return os.pread(self._file, size, self.position + skip)


def answer_of(*parts: Part) -> list[Part]:
    """Those parts as one frame."""
    return [struct.pack(">i", sum(map(len, parts))), *parts]


class FromFile(Script):
    """A session whose requests b"r<position> <size>" are answered from a file with the content."""

    def __init__(self, peer: Peer, file: int) -> None:
        super().__init__(peer)
        self.file = file
        self.ranges: list[Range] = []

    def on_frame(self, frame: memoryview) -> Answer:
        body = bytes(frame)
        if body[:1] != b"r":
            return super().on_frame(frame)
        position, size = map(int, body[1:].split())
        self.ranges.append(Range(self.file, position, size))
        return answer_of(b"<" + body, self.ranges[-1], b">")


@contextmanager
def content() -> Iterator[Callable[[Peer], FromFile]]:
    """Makes sessions that answer from a file."""
    with TemporaryFile() as file:
        file.write(CONTENT)
        file.flush()
        yield lambda peer: FromFile(peer, file.fileno())


def ranges_of(sessions: Sequence[Script]) -> list[Range]:
    return [held for session in sessions for held in cast(FromFile, session).ranges]


def wanted(position: int, size: int) -> tuple[bytes, bytes]:
    """A request and its answer."""
    body = b"r%d %d" % (position, size)
    return framed(body), b"<" + body + CONTENT[position : position + size] + b">"


@on_both_loops
async def test_a_range_of_a_file_is_sent_without_being_read(live: Live) -> None:
    """Between what comes before and after it in its answer."""
    with content() as live.script:
        client = await live.client(await live.server())
        for position, size in ((0, 200_000), (123_457, 300_001), (7, 130_000)):
            asked, expected = wanted(position, size)
            client.writer.write(asked)
            assert await client.answer() == expected
    assert [held.reads for held in ranges_of(live.sessions)] == [0, 0, 0]


@on_both_loops
async def test_many_ranges_to_a_peer_that_is_slow_to_take_them(live: Live) -> None:
    """What the socket does not take at once follows in order, and the server does not read on."""
    with content() as live.script:
        client = await live.client(await live.server(), limit=1 << 16)
        pairs = [wanted(number * 1000, 1_000_000 + number) for number in range(24)]
        small = [b"e%d" % number for number in range(24)]
        for (asked, _), echo in zip(pairs, small, strict=True):
            client.writer.write(asked + framed(echo))
        await until(lambda: any(held.reads for held in ranges_of(live.sessions)))
        assert len(ranges_of(live.sessions)) < 24
        for (_, expected), echo in zip(pairs, small, strict=True):
            assert await client.answer() == expected
            assert await client.answer() == echo


@on_both_loops
async def test_a_file_that_is_shorter_than_it_was_ends_the_connection(live: Live) -> None:
    """Half an answer cannot be taken back, and must not pass for a whole one."""
    with content() as live.script:
        client = await live.client(await live.server())
        client.writer.write(framed(b"r%d %d" % (len(CONTENT) - 1000, 200_000)))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.answer()


@on_both_loops
async def test_the_connection_closes_when_its_owner_says_so(live: Live) -> None:
    """Sending past the transport leaves nothing behind that would keep the socket open."""
    with content() as live.script:
        server = await live.server()
        client = await live.client(server)
        asked, expected = wanted(0, 200_000)
        client.writer.write(asked + framed(b"c"))
        assert await client.answer() == expected
        assert await client.answer() == b"c"
        assert await client.ended()
        await until(lambda: server.counters.connections == 0)


@on_both_loops
async def test_a_peer_that_reads_nothing_costs_a_piece_of_memory(live: Live) -> None:
    """However much it has asked for; once it reads, it gets all of it."""
    with content() as live.script:
        server = await live.server()
        client = await live.client(server, limit=1 << 12)
        size = len(CONTENT)
        pairs = [wanted(0, size) for _ in range(8)]
        client.writer.write(b"".join(asked for asked, _ in pairs))
        await until(lambda: any(held.reads for held in ranges_of(live.sessions)))
        await asyncio.sleep(0.1)
        assert 0 < server.responses.used <= 2 * PIECE_BYTES
        assert len(ranges_of(live.sessions)) < 8
        for _, expected in pairs:
            assert await client.answer() == expected
        await until(lambda: server.responses.used == 0)


@on_both_loops
async def test_a_connection_that_closes_sends_the_rest_of_its_file_first(live: Live) -> None:
    """Also what the socket did not take when the session said to close."""
    with content() as live.script:
        server = await live.server()
        client = await live.client(server, limit=1 << 12)
        asked, expected = wanted(0, len(CONTENT))
        client.writer.write(asked)
        await until(lambda: any(held.reads for held in ranges_of(live.sessions)))
        live.sessions[-1].peer.close()
        assert await client.answer() == expected
        assert await client.ended()


@in_loop
async def test_without_a_socket_ranges_are_read() -> None:
    """A transport of another kind, an encrypted one say, gets memory."""
    started = await rig()
    with content() as started.script:
        transport, _ = started.connect()
        asked, expected = wanted(5, 150_000)
        transport.deliver(asked)
    assert transport.answers() == [expected]


@in_loop
async def test_an_answer_that_must_wait_stays_in_its_file() -> None:
    """Behind one that is not ready yet: nothing is read before its turn comes."""
    started = await rig()
    with content() as started.script:
        transport, session = started.connect()
        asked, expected = wanted(5, 150_000)
        transport.deliver(framed(b"f") + asked)
        assert [held.reads for held in ranges_of([session])] == [0]
        session.finish(b"f")
        await settle()
        assert transport.answers() == [b"f", expected]


def test_only_ranges_are_read() -> None:
    """What is in memory stays where it is."""
    with TemporaryFile() as file:
        file.write(CONTENT)
        file.flush()
        memory: Sequence[Part] = [b"a", bytearray(b"b"), memoryview(b"c")]
        held = in_memory([*memory, Range(file.fileno(), 3, 10)])
    assert all(given is part for given, part in zip(held, memory, strict=False))
    assert held[3] == CONTENT[3:13]
