"""Clients that send TLS records without data: key updates of TLS 1.3, renegotiations of TLS 1.2."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.net.tls_layer import IDLE_RECORDS_MAX

from .crafted_records import CLIENT_HELLO, KEY_UPDATE_REQUESTED, Tls12Records, Tls13Records
from .fakes import framed
from .tls_rig import LOOPS, Live, on_both_loops, until


class RawClient(NamedTuple):
    """A client that has done its handshake, and whose socket is for the test to use."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    first: bytes
    """The first bytes of the server."""


async def raw_client(live: Live, key_log: Path, version: str) -> RawClient:
    context = live.pki.client(ssl_enabled_protocols=version)
    context.keylog_filename = str(key_log)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    reader, writer = await asyncio.open_connection(*live.server.address)
    live.own(writer)
    first = b""
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            data = await reader.read(1 << 16)
            assert data
            first = first or data
            incoming.write(data)
        else:
            writer.write(outgoing.read())
            return RawClient(reader, writer, tls, incoming, outgoing, first)


async def is_answered(client: RawClient, size: int) -> bool:
    """Reads an answer of this size. Returns False if the connection ends."""
    got = 0
    while True:
        try:
            got += len(client.tls.read(1 << 16))
            if got >= size:
                return True
        except ssl.SSLWantReadError:
            data = await client.reader.read(1 << 16)
            if not data:
                return False
            client.incoming.write(data)


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_a_client_may_update_its_key_now_and_then(loop_kind: str, tmp_path: Path) -> None:
    @on_both_loops
    async def run(live: Live) -> None:
        await live.start()
        client = await raw_client(live, tmp_path / "keys", "TLSv1.3")
        records, body = Tls13Records(tmp_path / "keys"), framed(b"e1")
        for _ in range(IDLE_RECORDS_MAX):
            client.writer.write(records.record(body))
            client.writer.write(records.key_updates(1, KEY_UPDATE_REQUESTED))
        assert await is_answered(client, IDLE_RECORDS_MAX * len(body))
        assert live.gate.counters.broken == 0

    run(loop_kind)


@pytest.mark.parametrize("loop_kind", LOOPS)
@pytest.mark.parametrize("is_after_a_request", [True, False])
def test_a_flood_of_key_updates_ends_the_connection(
    loop_kind: str, is_after_a_request: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @on_both_loops
    async def run(live: Live) -> None:
        await live.start()
        client = await raw_client(live, tmp_path / "keys", "TLSv1.3")
        records = Tls13Records(tmp_path / "keys")
        if is_after_a_request:
            client.writer.write(records.record(framed(b"e1")))
            assert await is_answered(client, len(framed(b"e1")))
        client.writer.write(records.key_updates(10_000, KEY_UPDATE_REQUESTED))
        await until(lambda: live.gate.counters.broken == 1)
        with suppress(ConnectionResetError):
            while await client.reader.read(1 << 16):
                pass
        other = await live.client()
        assert await other.ask(b"e1") == b"e1"

    run(loop_kind)
    (line,) = [each.getMessage() for each in caplog.records if "TLS" in each.getMessage()]
    assert "a TLS connection with 127.0.0.1 was closed: the peer sent too many" in line


def randoms(client: RawClient, key_log: Path) -> bytes:
    """Those of the server and of the client. The server's are in its first message."""
    of_client = next(
        line.split()[1]
        for line in key_log.read_text().splitlines()
        if line.startswith("CLIENT_RANDOM")
    )
    return client.first[11:43] + bytes.fromhex(of_client)


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_a_client_of_tls_1_2_cannot_renegotiate(loop_kind: str, tmp_path: Path) -> None:
    """A request to do so is answered by a warning. Many of them end the connection."""

    @on_both_loops
    async def run(live: Live) -> None:
        await live.start()
        key_log = tmp_path / "keys"
        client = await raw_client(live, key_log, "TLSv1.2")
        cipher = client.tls.cipher()
        assert cipher is not None
        assert cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
        records = Tls12Records(key_log, randoms(client, key_log))
        client.writer.write(records.record(CLIENT_HELLO))
        with pytest.raises(ssl.SSLError, match="NO_RENEGOTIATION"):
            await is_answered(client, 1)
        count = IDLE_RECORDS_MAX + 1
        client.writer.write(b"".join(records.record(CLIENT_HELLO) for _ in range(count)))
        await until(lambda: live.gate.counters.broken == 1)

    run(loop_kind)
