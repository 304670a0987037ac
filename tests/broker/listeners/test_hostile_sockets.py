"""Hostile clients of listeners with TLS, over sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.harness import BrokerHarness, open_harness
from penstock.runtime import SystemClock, SystemRandom
from penstock.security.certificates import Issued, Subject, new_authority, new_client, new_server
from penstock.testing.slowness import patient
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.messages import ApiVersionsRequest, ApiVersionsResponse

from .test_hostile_logins import login_service

TIMEOUT_S = 60
DAY_MS = 24 * 3600 * 1000
LENGTHS = [(2**31 - 1).to_bytes(4, "big"), b"\xff\xff\xff\xff", b"\x16\x03\x01\x00", b"GET "]
_random = SystemRandom().bytes


class Files:
    """An authority, the certificate of a broker, and certificates of clients."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now_ms = SystemClock().wall_ms()
        self.authority = new_authority(Subject("authority"), self.now_ms, _random)
        self.write_server(self.authority)
        (directory / "ca.pem").write_text(self.authority.certificate)

    def write_server(self, authority: Issued) -> None:
        made = new_server(authority, Subject("broker"), ["127.0.0.1"], self.now_ms, _random)
        self.write("broker.pem", made.key + made.certificate)

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def settings(self) -> dict[str, str]:
        return {
            "listeners": "PLAINTEXT://127.0.0.1:9092,LOGIN://127.0.0.1:0,MUTUAL://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL,MUTUAL:SSL",
            "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": (
                r"RULE:^CN=(.*)\\,plain$/$1/,DEFAULT"
            ),
            "ssl.keystore.location": str(self.directory / "broker.pem"),
            "ssl.truststore.location": str(self.directory / "ca.pem"),
        }

    def context(self, client: Issued | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.certificate)
        if client is not None:
            self.write("client.pem", client.key + client.certificate)
            context.load_cert_chain(self.directory / "client.pem")
        return context


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(harness: BrokerHarness, listener: str, context: ssl.SSLContext) -> Streams:
    opened = harness.broker.server.listeners[listener].listener
    assert opened is not None
    return await asyncio.open_connection(*opened.address(), ssl=context)


async def ended(streams: Streams) -> bool:
    """Returns whether the broker ends the connection without an answer."""
    reader, writer = streams
    try:
        return await reader.read() == b""
    except OSError:
        return True
    finally:
        writer.transport.abort()


async def served(streams: Streams) -> int:
    """Returns how many APIs the broker tells."""
    reader, writer = streams
    writer.writelines(encode_request(ApiVersionsRequest("x", "1"), 3, 7, "x"))
    size = int.from_bytes(await reader.readexactly(4), "big")
    frame = memoryview(await reader.readexactly(size))
    return len(decode_response(ApiVersionsResponse, frame, 3)[1].api_keys)


def run(directory: Path, scenario: Callable[[BrokerHarness, Files], Awaitable[None]]) -> None:
    async def main() -> None:
        files = Files(directory)
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            open_harness(directory, kafka=files.settings()) as harness,
        ):
            await scenario(harness, files)

    asyncio.run(main())


def principals(harness: BrokerHarness) -> list[str]:
    """Returns the users of the connections to the listener for certificates."""
    found: list[Any] = [*harness.broker.server._connections]
    return [each._session._identity.principal for each in found]


def test_bad_lengths_before_the_login_end_the_connection(tmp_path: Path) -> None:
    async def scenario(harness: BrokerHarness, files: Files) -> None:
        for length in LENGTHS:
            streams = await connected(harness, "LOGIN", files.context())
            streams[1].write(length + bytes(8))
            assert await ended(streams), length
        # One byte more than the limit before the login.
        streams = await connected(harness, "LOGIN", files.context())
        streams[1].write(((512 << 10) + 1).to_bytes(4, "big"))
        assert await ended(streams)
        await harness.until(lambda: not harness.broker.server.counters.connections)
        assert harness.broker.server.budget.used == 0

    run(tmp_path, scenario)


def test_slow_bytes_do_not_extend_the_deadline(tmp_path: Path) -> None:
    async def scenario(harness: BrokerHarness, files: Files) -> None:
        object.__setattr__(login_service(harness).settings, "deadline_ms", int(patient(3_000)))
        reader, writer = await connected(harness, "LOGIN", files.context())
        writer.write((1000).to_bytes(4, "big"))
        closed = asyncio.create_task(ended((reader, writer)))
        while not closed.done():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        assert closed.result()
        await harness.until(lambda: not harness.broker.server.counters.connections)

    run(tmp_path, scenario)


def test_bad_certificates_are_refused(tmp_path: Path) -> None:
    """Of another authority, expired, not valid yet, of the broker's kind, and none."""

    async def scenario(harness: BrokerHarness, files: Files) -> None:
        other = new_authority(Subject("authority"), files.now_ms, _random)
        then = files.now_ms - 3000 * DAY_MS
        alice = Subject("alice")
        bad = [
            new_client(other, alice, files.now_ms, _random),
            new_client(files.authority, alice, then, _random, days=1),
            new_client(files.authority, alice, files.now_ms + 9 * DAY_MS, _random),
            None,
        ]
        for client in bad:
            try:
                streams = await connected(harness, "MUTUAL", files.context(client))
                assert await ended(streams)
            except OSError:
                pass  # with TLS 1.2 the handshake fails, with 1.3 the first read
        await harness.until(lambda: not harness.broker.server.counters.connections)
        gone = harness.broker.listeners.certificates
        assert gone is not None and gone.handshakes["MUTUAL"].completed == 0

    run(tmp_path, scenario)


def test_a_name_cannot_forge_another_principal(tmp_path: Path) -> None:
    """Signs in a certificate's name are escaped. No rule makes a name that means somebody else, or
    that could forge a line of a log."""

    async def scenario(harness: BrokerHarness, files: Files) -> None:
        for name, principal in (
            ("eve,O=Acme", "User:CN=eve\\,O\\=Acme"),
            ("alice\nUser:admin", None),
            ("ANONYMOUS,plain", None),
            ("*,plain", None),
            ("bob,plain", "User:bob"),
            ("ängström", "User:CN=ängström"),
        ):
            client = new_client(files.authority, Subject(name), files.now_ms, _random)
            streams = await connected(harness, "MUTUAL", files.context(client))
            if principal is None:
                assert await ended(streams)
                continue
            assert await served(streams) > 10
            assert principals(harness) == [principal]
            streams[1].transport.abort()
            await harness.until(lambda: not harness.broker.server.counters.connections)

    run(tmp_path, scenario)


def test_a_bad_reload_leaves_the_old_certificate_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections that are open stay open."""

    async def scenario(harness: BrokerHarness, files: Files) -> None:
        certificates = harness.broker.listeners.certificates
        assert certificates is not None
        client = new_client(files.authority, Subject("alice"), files.now_ms, _random)
        context = files.context(client)
        live = await connected(harness, "MUTUAL", context)
        other = new_server(files.authority, Subject("b"), ["127.0.0.1"], files.now_ms, _random)
        held = (tmp_path / "broker.pem").read_text()
        certificate = held[held.index("-----BEGIN CERTIFICATE") :]
        for text in ("", "-----BEGIN PRIVATE KEY-----\n", other.key + certificate, other.key):
            files.write("broker.pem", text)
            await certificates.reload()
            assert "the old one stays in use" in caplog.text
            assert "PRIVATE KEY" not in caplog.text
            caplog.clear()
            fresh = await connected(harness, "MUTUAL", context)
            assert await served(fresh) > 10
            fresh[1].transport.abort()
        assert await served(live) > 10
        files.write_server(files.authority)
        await certificates.reload()
        last = await connected(harness, "MUTUAL", context)
        assert await served(last) > 10
        for _, writer in (live, last):
            writer.transport.abort()

    run(tmp_path, scenario)
