"""Responses are sent in order and complete, from memory and from files, without needless copies."""

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
    """A range of a file that counts how often it is read into memory."""

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
    """Returns the parts as one frame."""
    return [struct.pack(">i", sum(map(len, parts))), *parts]


class FromFile(Script):
    """A session that answers requests b"r<position> <size>" from a file that has CONTENT."""

    def __init__(self, peer: Peer, file: int) -> None:
        super().__init__(peer)
        self.file = file
        self.ranges: list[Range] = []

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> Answer:
        body = bytes(frame)
        if body[:1] != b"r":
            return super().on_frame(frame, borrowed)
        position, size = map(int, body[1:].split())
        self.ranges.append(Range(self.file, position, size))
        return answer_of(b"<" + body, self.ranges[-1], b">")


@contextmanager
def content() -> Iterator[Callable[[Peer], FromFile]]:
    """Yields a factory of sessions that answer from a file."""
    with TemporaryFile() as file:
        file.write(CONTENT)
        file.flush()
        yield lambda peer: FromFile(peer, file.fileno())


def ranges_of(sessions: Sequence[Script]) -> list[Range]:
    return [held for session in sessions for held in cast(FromFile, session).ranges]


def wanted(position: int, size: int) -> tuple[bytes, bytes]:
    """Returns a request and its response."""
    body = b"r%d %d" % (position, size)
    return framed(body), b"<" + body + CONTENT[position : position + size] + b">"


@on_both_loops
async def test_a_range_of_a_file_is_sent_without_being_read(live: Live) -> None:
    """It is sent between the parts of its response that come before and after it."""
    with content() as live.script:
        client = await live.client(await live.server())
        for position, size in ((0, 200_000), (123_457, 300_001), (7, 130_000)):
            asked, expected = wanted(position, size)
            client.writer.write(asked)
            assert await client.answer() == expected
    assert [held.reads for held in ranges_of(live.sessions)] == [0, 0, 0]


@on_both_loops
async def test_many_ranges_reach_a_slow_peer_in_order(live: Live) -> None:
    """What the socket does not accept at once follows later. The server reads no more requests
    meanwhile.
    """
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
async def test_a_file_that_became_shorter_ends_the_connection(live: Live) -> None:
    """Half a response cannot be taken back, and must not look like a complete one."""
    with content() as live.script:
        client = await live.client(await live.server())
        client.writer.write(framed(b"r%d %d" % (len(CONTENT) - 1000, 200_000)))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.answer()


@on_both_loops
async def test_a_connection_that_sent_from_a_file_can_be_closed(live: Live) -> None:
    """Sending to the socket directly leaves nothing behind that would keep it open."""
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
async def test_a_peer_that_reads_nothing_costs_a_bounded_amount_of_memory(live: Live) -> None:
    """The amount does not depend on how much it has asked for. Once it reads, it gets all of it."""
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
    """This includes what the socket had not accepted when the session closed the connection."""
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
async def test_a_transport_without_a_socket_gets_ranges_from_memory() -> None:
    """An encrypted transport, for example, cannot use sendfile."""
    started = await rig()
    with content() as started.script:
        transport, _ = started.connect()
        asked, expected = wanted(5, 150_000)
        transport.deliver(asked)
    assert transport.answers() == [expected]


@in_loop
async def test_a_response_that_waits_for_an_earlier_one_is_not_read_from_its_file() -> None:
    started = await rig()
    with content() as started.script:
        transport, session = started.connect()
        asked, expected = wanted(5, 150_000)
        transport.deliver(framed(b"f") + asked)
        assert [held.reads for held in ranges_of([session])] == [0]
        session.finish(b"f")
        await settle()
        assert transport.answers() == [b"f", expected]


def test_in_memory_reads_ranges_and_does_not_copy_the_rest() -> None:
    with TemporaryFile() as file:
        file.write(CONTENT)
        file.flush()
        memory: Sequence[Part] = [b"a", bytearray(b"b"), memoryview(b"c")]
        held = in_memory([*memory, Range(file.fileno(), 3, 10)])
    assert all(given is part for given, part in zip(held, memory, strict=False))
    assert held[3] == CONTENT[3:13]
