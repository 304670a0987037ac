"""TLS between a transport in memory and a receiver: bounded turns, flow control, and the ends."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest

from penstock.net.tls_handshake import Secured
from penstock.net.tls_layer import TURN_BYTES, TURN_RECORDS, TlsLayer
from penstock.ports import Buffer, Transport
from penstock.testing.slowness import patient

from .test_tls import Pki

PKI = Pki()
CONTEXTS = PKI.contexts()


class Wire:
    """A transport whose peer accepts `window` more bytes."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.unsent = bytearray()
        self.window = 1 << 30
        self.reading = True
        self.closed = self.aborted = False
        self.high = 64 << 10
        self.paused = False
        self.layer: TlsLayer | None = None

    def is_closed(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading

    def write(self, data: Buffer) -> None:
        self.unsent += data
        self.accept(0)
        if len(self.unsent) > self.high and not self.paused and self.layer is not None:
            self.paused = True
            self.layer.pause_writing()

    def accept(self, more: int) -> None:
        self.window += more
        size = min(self.window, len(self.unsent))
        self.sent += self.unsent[:size]
        del self.unsent[:size]
        self.window -= size
        if self.paused and len(self.unsent) <= self.high // 4 and self.layer is not None:
            self.paused = False
            self.layer.resume_writing()

    def writelines(self, parts: Sequence[Buffer]) -> None:
        self.write(b"".join(parts))

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str) -> Any:
        return None


class Taker:
    """A receiver with a small buffer."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.buffer = memoryview(bytearray(5000))
        self.write_paused = self.eof = self.lost = False
        self.keeps_open = True
        self.transport: Transport | None = None

    def is_paused(self) -> bool:
        return self.write_paused

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False

    def get_buffer(self, size_hint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, size: int) -> None:
        self.received += self.buffer[:size]

    def eof_received(self) -> bool:
        self.eof = True
        return self.keeps_open


class Pair:
    """A layer on the server's side, and a client in memory."""

    def __init__(self) -> None:
        self.taker, self.wire = Taker(), Wire()
        self._to_client, self._to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = PKI.client().wrap_bio(
            self._to_client, self._to_server, server_hostname="localhost"
        )

    def shake_hands(self, first: Sequence[bytes] = (), early_bytes: int = 0) -> bytes:
        """`first` is sent with the end of the handshake, and `early_bytes` of its records arrive
        with it. Returns the others."""
        context, incoming, outgoing = CONTEXTS.server(), ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        for _ in range(2):
            for side, here, there in (
                (self.client, self._to_server, incoming),
                (tls, outgoing, self._to_client),
            ):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
                there.write(here.read())
        records = self.records(first)
        early = records[:early_bytes]
        self.layer = TlsLayer(Secured(context, tls, incoming, outgoing, early), self.taker)
        self.wire.layer = self.layer
        self.layer.connection_made(self.wire)  # type: ignore[arg-type]
        return records[early_bytes:]

    def deliver(self, data: bytes) -> None:
        """The layer reads the data, as far as its buffer reaches each time."""
        view = memoryview(data)
        while view:
            assert self.wire.is_reading()
            buffer = self.layer.get_buffer(-1)
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            self.layer.buffer_updated(size)
            view = view[size:]

    def collect(self) -> None:
        self._to_client.write(bytes(self.wire.sent))
        self.wire.sent.clear()

    def records(self, parts: Sequence[bytes]) -> bytes:
        """Returns the parts encrypted by the client, each as a record if it is short enough."""
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[self.client.write(view) :]
        return self._to_server.read()

    def read_all(self) -> bytes:
        self.collect()
        found = bytearray()
        with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self.client.read(1 << 16):
                found += piece
        return bytes(found)


def in_loop(test: Callable[[Pair], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def main() -> None:
            async with asyncio.timeout(patient(60)):
                await test(Pair())

        asyncio.run(main())

    del run.__wrapped__  # otherwise pytest would look for the arguments of the test itself
    return run


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)


@in_loop
async def test_a_read_with_many_records_takes_several_turns(pair: Pair) -> None:
    pair.shake_hands()
    count = 10 * TURN_RECORDS
    pair.deliver(pair.records([b"x"] * count))
    assert len(pair.taker.received) == TURN_RECORDS
    assert not pair.wire.is_reading()
    await asyncio.sleep(0)
    assert TURN_RECORDS < len(pair.taker.received) <= 3 * TURN_RECORDS
    await until(pair.wire.is_reading)
    assert pair.taker.received == b"x" * count


@in_loop
async def test_bytes_arrive_however_the_records_are_cut(pair: Pair) -> None:
    pair.shake_hands()
    sent = [os.urandom(size) for size in (1, 20_000, 5000, 3, 70_000, 1, 1, 4999, 5001)]
    data = pair.records(sent)
    for cut in (1, 4, 5, 6, 7, 1000, 16_405, 16_406, 16_407, 50_000):
        pair.deliver(data[:cut])
        data = data[cut:] + pair.records(sent)
    pair.deliver(data)
    await until(pair.wire.is_reading)
    assert pair.taker.received == b"".join(sent) * 11


@in_loop
async def test_requests_that_come_with_the_end_of_the_handshake_arrive(pair: Pair) -> None:
    sent = [b"y" * 16_000, b"z", b"y" * 100_000]
    pair.shake_hands(sent, early_bytes=1 << 20)
    await until(lambda: len(pair.taker.received) == 116_001)
    assert pair.taker.received == b"".join(sent)
    assert pair.wire.is_reading()


@pytest.mark.parametrize("early_bytes", [1, 4, 5, 6, 22, 23, 24, 27, 28, 1000])
@pytest.mark.parametrize("is_delayed", [True, False])
def test_a_record_may_be_cut_at_the_end_of_the_handshake(
    early_bytes: int, is_delayed: bool
) -> None:
    @in_loop
    async def run(pair: Pair) -> None:
        rest = pair.shake_hands([b"a", b"b" * 3000], early_bytes)
        if is_delayed:
            await asyncio.sleep(0)
        pair.deliver(rest)
        await until(lambda: len(pair.taker.received) == 3001)
        assert pair.taker.received == b"a" + b"b" * 3000

    run()


@in_loop
async def test_requests_arrive_if_the_peer_ends_its_side_at_once(pair: Pair) -> None:
    pair.shake_hands([b"y" * 16_000, b"z"], early_bytes=1 << 20)
    assert pair.layer.eof_received()
    assert pair.taker.received == b"y" * 16_000 + b"z"
    assert pair.taker.eof


@in_loop
async def test_nothing_arrives_while_reading_is_paused(pair: Pair) -> None:
    pair.shake_hands()
    sent = [os.urandom(3000) for _ in range(20)]
    update = pair.taker.buffer_updated

    def pause_at_once(size: int) -> None:
        update(size)
        pair.layer.pause_reading()

    pair.taker.buffer_updated = pause_at_once  # type: ignore[method-assign]
    pair.deliver(pair.records(sent))
    for turn in range(1, 100):
        assert len(pair.taker.received) <= 5000 * turn
        await asyncio.sleep(0)
        before = len(pair.taker.received)
        await asyncio.sleep(0)
        assert len(pair.taker.received) == before
        if before == 60_000:
            break
        assert not pair.wire.is_reading()
        pair.layer.resume_reading()
        await asyncio.sleep(0)
    assert pair.taker.received == b"".join(sent)


@in_loop
async def test_a_large_answer_is_encrypted_in_several_turns(pair: Pair) -> None:
    pair.shake_hands()
    parts = [os.urandom(100), os.urandom(5 * TURN_BYTES), os.urandom(70_000)]
    pair.layer.writelines(parts)
    assert pair.layer.get_write_buffer_size() > 3 * TURN_BYTES
    assert pair.taker.is_paused()
    await until(lambda: not pair.taker.is_paused())
    assert pair.layer.get_write_buffer_size() == 0
    assert pair.read_all() == b"".join(parts)


@in_loop
async def test_a_peer_that_does_not_read_gets_little_encrypted(pair: Pair) -> None:
    pair.shake_hands()
    pair.wire.window = 10_000
    body = os.urandom(4 * TURN_BYTES)
    pair.layer.write(body)
    for _ in range(20):
        await asyncio.sleep(0)
    assert pair.taker.is_paused()
    assert len(pair.wire.unsent) < TURN_BYTES
    pair.layer.write(b"end")
    while pair.taker.is_paused():
        pair.wire.accept(50_000)
        await asyncio.sleep(0)
    pair.wire.accept(1 << 20)
    assert pair.read_all() == body + b"end"


@in_loop
async def test_a_peer_that_ended_its_side_still_gets_answers(pair: Pair) -> None:
    pair.shake_hands()
    data = pair.records([b"last"])
    with suppress(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.deliver(data + pair.records([]))
    assert pair.taker.received == b"last"
    assert pair.taker.eof
    assert pair.layer.eof_received()
    pair.layer.write(b"answer")
    assert not pair.wire.is_closed()
    pair.layer.close()
    assert pair.wire.is_closed()
    before = len(pair.wire.sent)
    pair.layer.write(b"too late")
    assert len(pair.wire.sent) == before


@in_loop
async def test_closing_sends_everything_and_close_notify(pair: Pair) -> None:
    pair.shake_hands()
    body = os.urandom(3 * TURN_BYTES)
    pair.layer.write(body)
    pair.layer.close()
    assert not pair.wire.is_closed()
    await until(pair.wire.is_closed)
    assert pair.read_all() == body
    assert pair.client.read(1) == b""  # close_notify


@in_loop
async def test_the_connection_closes_with_the_peer_unless_the_receiver_keeps_it_open(
    pair: Pair,
) -> None:
    pair.taker.keeps_open = False
    pair.shake_hands()
    assert not pair.layer.eof_received()
    assert pair.wire.is_closed()
    pair.layer.connection_lost(None)
    assert pair.taker.lost


@in_loop
async def test_a_receiver_that_refuses_a_connection_aborts_it(pair: Pair) -> None:
    def refuse(transport: Transport) -> None:
        raise RuntimeError("no session")

    pair.taker.connection_made = refuse  # type: ignore[method-assign]
    pair.shake_hands([b"x"], early_bytes=100)
    assert str(pair.layer.refusal) == "no session"
    assert pair.wire.aborted
    pair.layer.connection_lost(None)
    await asyncio.sleep(0)
    assert not pair.taker.lost
    assert not pair.taker.received


@in_loop
async def test_a_changed_record_ends_the_connection(pair: Pair) -> None:
    pair.shake_hands()
    good, bad = pair.records([b"good"]), bytearray(pair.records([b"bad"]))
    bad[-1] ^= 1
    pair.deliver(good + bytes(bad))
    assert pair.taker.received == b"good"
    assert pair.wire.is_closed()
    pair.layer.connection_lost(None)
    assert pair.taker.lost
