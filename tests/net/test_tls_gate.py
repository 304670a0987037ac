"""The server behind TLS on real sockets, on both event loops, with clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from penstock.net.session import Answer, Peer
from penstock.net.tls_gate import HandshakeLimits
from penstock.net.tls_refused import TlsRefused
from penstock.ports import Buffer, Receiver, Transport
from penstock.security.principal_rules import distinguished_name

from .fakes import FakeClock, framed
from .test_tls import ALICE, NOW_MS, STRANGER, broker
from .tls_rig import BEGIN, LOOPS, Client, Live, ended, on_both_loops, until


@on_both_loops
async def test_requests_and_answers_of_all_sizes_arrive(live: Live) -> None:
    await live.start()
    client = await live.client()
    for size in (1, 100, 70_000, 3_000_000):
        body = b"e" + bytes(size)
        assert await client.ask(body) == body
    assert live.gate.counters.completed == 1
    assert live.gate.counters.pending == 0


@on_both_loops
async def test_a_slow_reader_costs_a_bounded_amount_of_memory(live: Live) -> None:
    """It asks for 400 MB and reads nothing: few requests are served until it reads."""
    await live.start()
    client, other = await live.client(), await live.client()
    client.writer.write(framed(*[b"b1000000"] * 400))
    await until(lambda: bool(live.sessions[0].frames))
    assert await other.ask(b"e1") == b"e1"
    served = len(live.sessions[0].frames)
    assert served < 50
    for _ in range(60):
        await client.reader.readexactly(1_000_004)
    assert served < len(live.sessions[0].frames) < 110


@dataclass
class _Range:
    """The content of a file."""

    descriptor: int
    size: int
    position: int = 0

    def __len__(self) -> int:
        return self.size

    def fileno(self) -> int:
        return self.descriptor

    def read(self, skip: int = 0, bytes_max: int | None = None) -> Buffer:
        size = self.size - skip if bytes_max is None else min(bytes_max, self.size - skip)
        return os.pread(self.descriptor, size, skip)


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[_Range]:
    descriptor = os.memfd_create("content")
    try:
        os.write(descriptor, content)
        yield _Range(descriptor, len(content))
    finally:
        os.close(descriptor)


@dataclass
class FileSession:
    """Answers every request with a file."""

    part: _Range
    peer: Peer

    def may_overlap(self, frame: memoryview) -> bool:
        return False

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> Answer:
        return [struct.pack(">i", len(self.part)), self.part]

    def on_closed(self) -> None: ...


@on_both_loops
async def test_the_content_of_files_is_encrypted_too(live: Live) -> None:
    """Without TLS, files are sent past the transport."""
    content = bytes(range(256)) * 20_000
    with _file(content) as part:
        live.script = partial(FileSession, part)
        await live.start()
        client = await live.client()
        for _ in range(3):
            assert await client.ask(b"x") == content


@on_both_loops
async def test_half_open_handshakes_do_not_keep_out_another_address(live: Live) -> None:
    await live.start(HandshakeLimits(total=50, per_address=20, grace_s=1000.0, timeout_s=1000.0))
    await live.half_open(200, source="127.0.0.2")
    await until(lambda: live.gate.counters.waiting == 180)
    assert live.gate.counters.pending == 20
    client = await live.client()
    assert await client.ask(b"e1") == b"e1"
    assert live.gate.counters.evicted == 0


@on_both_loops
async def test_half_open_handshakes_do_not_keep_out_the_same_address(live: Live) -> None:
    """Those that are older than the grace make room."""
    await live.start(HandshakeLimits(per_address=50, grace_s=0.01, timeout_s=1000.0))
    sockets = await live.half_open(200)
    for sock in sockets[::2]:  # the others send nothing
        await asyncio.get_running_loop().sock_sendall(sock, BEGIN)
    client = await live.client()
    assert await client.ask(b"e1") == b"e1"
    assert live.gate.counters.evicted >= 100
    for sock in sockets[:10]:
        assert await ended(sock)


@on_both_loops
async def test_many_addresses_that_keep_handshakes_open_make_room_too(live: Live) -> None:
    """The total is at its limit, and each address is below its own. The clock stands still for the
    honest client: however slow the machine is, its own handshake does not get old."""
    clock = FakeClock()
    await live.start(HandshakeLimits(total=20, per_address=10, timeout_s=1000.0), clock=clock)
    for number in range(2, 12):
        await live.half_open(20, source=f"127.0.0.{number}")
    counters = live.gate.counters
    connecting = asyncio.create_task(live.client())
    await until(lambda: counters.waiting == 10 * 20 + 1 - 20)
    assert counters.evicted == 0
    clock.now += 1000.0
    client = await connecting
    assert await client.ask(b"e1") == b"e1"
    assert counters.evicted == 20
    assert counters.pending <= 20


@on_both_loops
async def test_an_address_with_too_many_connections_loses_the_last_ones(live: Live) -> None:
    limits = HandshakeLimits(per_address=2, waiting_per_address=3, grace_s=1000.0, timeout_s=1000.0)
    await live.start(limits)
    sockets = await live.half_open(9, source="127.0.0.2")
    await until(lambda: live.gate.counters.refused == 4)
    assert (live.gate.counters.pending, live.gate.counters.waiting) == (2, 3)
    for sock in sockets[5:]:
        assert await ended(sock)


@on_both_loops
async def test_if_too_many_wait_the_address_with_the_most_loses_one(live: Live) -> None:
    await live.start(HandshakeLimits(per_address=1, waiting=4, grace_s=1000.0, timeout_s=1000.0))
    greedy = await live.half_open(5, source="127.0.0.2")
    await until(lambda: live.gate.counters.waiting == 4)
    await live.half_open(2, source="127.0.0.3")
    assert await ended(greedy[-1])
    assert live.gate.counters.waiting == 4


@on_both_loops
async def test_too_many_addresses_that_wait_lose_their_connections(live: Live) -> None:
    await live.start(HandshakeLimits(total=1, waiting=2, grace_s=1000.0, timeout_s=1000.0))
    sockets = [await live.half_open(1, source=f"127.0.0.{number}") for number in range(2, 7)]
    await until(lambda: live.gate.counters.refused == 2)
    sockets[0][0].close()
    await until(lambda: live.gate.counters.waiting == 1)
    assert live.gate.counters.pending == 1


@on_both_loops
async def test_connections_that_wait_are_served_when_others_are_done(live: Live) -> None:
    """A burst of honest clients: all of them get in."""
    await live.start(HandshakeLimits(total=4, per_address=2, grace_s=1000.0, timeout_s=1000.0))
    clients = await asyncio.gather(*(live.client() for _ in range(20)))
    for client in clients:
        assert await client.ask(b"e1") == b"e1"
    counters = live.gate.counters
    assert (counters.completed, counters.pending, counters.waiting) == (20, 0, 0)


@on_both_loops
async def test_a_handshake_has_a_deadline(live: Live) -> None:
    """A client that sends nothing, and one that sends the begin of a handshake."""
    await live.start(HandshakeLimits(timeout_s=0.05))
    silent, slow = await live.half_open(2)
    await asyncio.get_running_loop().sock_sendall(slow, BEGIN)
    assert await ended(silent)
    assert await ended(slow)
    await until(lambda: live.gate.counters.timed_out == 2)
    assert not live.sessions


@pytest.mark.parametrize("sent", [framed(b"e1" * 20), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 999])
def test_a_client_without_tls_is_closed_and_logged(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    @on_both_loops
    async def run(live: Live) -> None:
        await live.start()
        (sock,) = await live.half_open(1)
        await asyncio.get_running_loop().sock_sendall(sock, sent)
        assert await ended(sock)
        await until(lambda: live.gate.counters.failed == 1)
        client = await live.client()
        assert await client.ask(b"e1") == b"e1"

    for kind in LOOPS:
        run(kind)
    found = [each.getMessage() for each in caplog.records if each.name == "penstock.net.tls_gate"]
    assert len(found) == 2
    assert all("a TLS handshake with 127.0.0.1 failed: the client" in line for line in found)


@on_both_loops
async def test_clients_are_known_by_their_certificates(live: Live) -> None:
    await live.start(client_auth="required")
    client = await live.client(ALICE)
    assert await client.ask(b"e1") == b"e1"
    for refused in (STRANGER, None):
        other: Client | None = None
        with contextlib.suppress(OSError):
            other = await live.client(refused)
        if other is not None:  # with TLS 1.3, a client learns it from its first read
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await other.ask(b"e1")
    await until(lambda: live.gate.counters.failed == 2)
    assert len(live.sessions) == 1


@on_both_loops
async def test_a_bad_reload_disturbs_nobody_and_a_good_one_serves_new_clients(live: Live) -> None:
    await live.start()
    old = await live.client()
    connecting = [asyncio.create_task(live.client()) for _ in range(10)]
    live.pki.files["server"] = (broker().certificate + broker().key).encode()
    with pytest.raises(TlsRefused):
        live.contexts.reload(NOW_MS)
    clients = [*await asyncio.gather(*connecting), await live.client()]
    assert {client.certificate() for client in clients} == {old.certificate()}
    live.pki.put("server", broker())
    assert live.contexts.reload(NOW_MS)
    new = await live.client()
    assert new.certificate() != old.certificate()
    for client in (old, new, *clients):
        assert await client.ask(b"e1") == b"e1"


@on_both_loops
async def test_closing_the_listener_ends_handshakes_but_no_connections(live: Live) -> None:
    await live.start(HandshakeLimits(per_address=2, timeout_s=1000.0, grace_s=1000.0))
    listener = await live.gate.listen("127.0.0.1", 0, lambda: Quiet(received))
    received: list[bytes] = []
    transport = await live.gate.connect("127.0.0.1", listener.address()[1], Quiet, 30.0)
    await until(lambda: live.gate.counters.completed == 1)
    sockets = []
    for _ in range(5):
        sock = socket.create_connection(listener.address())
        sock.sendall(BEGIN)
        sock.setblocking(False)
        sockets.append(sock)
    await until(lambda: live.gate.counters.waiting == 3)
    await listener.close()
    for sock in sockets:
        assert await ended(sock)
        sock.close()
    await until(lambda: live.gate.counters.pending == 0)
    assert live.gate.counters.waiting == 0
    transport.write(b"still here")
    await until(lambda: b"".join(received) == b"still here")
    with pytest.raises(OSError, match=r"refused|[Cc]onnect"):
        await live.gate.connect("127.0.0.1", listener.address()[1], Quiet, 30.0)
    transport.abort()


class Quiet(asyncio.Protocol):
    """Keeps what it receives."""

    def __init__(self, received: list[bytes] | None = None) -> None:
        self.received = [] if received is None else received
        self.names: list[str] = []

    def connection_made(self, transport: Any) -> None:
        found = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if found:
            self.names.append(distinguished_name(found))

    def data_received(self, data: bytes) -> None:
        self.received.append(data)


@on_both_loops
async def test_brokers_connect_to_each_other_with_their_certificates(live: Live) -> None:
    await live.start(client_auth="required")
    both: list[Quiet] = []

    def receiver() -> Receiver:
        both.append(Quiet())
        return both[-1]

    listener = await live.gate.listen("127.0.0.1", 0, receiver)
    transport: Transport = await live.gate.connect(*listener.address(), receiver, 30.0)
    await until(lambda: len(both) == 2 and all(each.names for each in both))
    assert [each.names for each in both] == [["CN=broker,O=Acme"]] * 2
    transport.abort()
    await listener.close()


@on_both_loops
async def test_connecting_fails_if_the_server_is_not_the_one_expected(live: Live) -> None:
    live.pki.put("server", broker(hosts=("elsewhere",)))
    await live.start()
    with pytest.raises(ssl.SSLCertVerificationError):
        await live.gate.connect(*live.server.address, Quiet, 30.0)


@on_both_loops
async def test_connecting_to_a_server_that_says_nothing_ends_in_time(live: Live) -> None:
    await live.start()
    with socket.socket() as silent:
        silent.setblocking(False)
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        accepting = asyncio.create_task(asyncio.get_running_loop().sock_accept(silent))
        while not accepting.done():  # on a busy machine, the time may end before it is connected
            with pytest.raises(OSError, match=r".*"):
                await live.gate.connect("127.0.0.1", silent.getsockname()[1], Quiet, 0.05)
        accepted, _ = await accepting
        with accepted:
            assert await ended(accepted)


@on_both_loops
async def test_a_receiver_that_fails_does_not_end_the_listener(live: Live) -> None:
    await live.start()
    failures = [RuntimeError("a bug")]

    def receiver() -> Any:
        if failures:
            raise failures.pop()
        return Quiet()

    listener = await live.gate.listen("127.0.0.1", 0, receiver)
    with contextlib.suppress(OSError):
        (await live.gate.connect(*listener.address(), Quiet, 30.0)).abort()
    await until(lambda: live.gate.counters.failed == 1)
    transport = await live.gate.connect(*listener.address(), Quiet, 30.0)
    transport.abort()
    await listener.close()


@on_both_loops
async def test_every_address_of_the_machine_gets_the_same_port(live: Live) -> None:
    await live.start()
    listener = await live.gate.listen("", 0, Quiet)
    transport = await live.gate.connect("127.0.0.1", listener.address()[1], Quiet, 30.0)
    transport.abort()
    await listener.close()


def test_limits_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match="per_address is 0"):
        HandshakeLimits(per_address=0)
