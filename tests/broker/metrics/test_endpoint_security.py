"""The token and the TLS of the metrics endpoint, on real sockets with a real HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker.harness import BrokerHarness, with_harness
from penstock.broker.config import BrokerConfig, ConfigError
from penstock.broker.metrics.observability import Watch, watching
from penstock.broker.metrics.token_guard import (
    TOKEN_VARIABLE,
    Access,
    TokenGuard,
    read_token,
)
from penstock.cli.doctor_finding import State
from penstock.cli.doctor_health import MetricsAccess, check_health
from penstock.client.address import Address
from penstock.client.admin.operations import BrokerInfo
from penstock.net.sockets import SocketNetwork
from penstock.security.certificates import Issued, Subject, new_authority, new_server
from penstock.testing.slowness import patient

TOKEN = "0123456789abcdef-metrics"
PATIENCE_S = 150.0
NOW_MS = time.time_ns() // 1_000_000
RANDOM = random.Random(17).randbytes
CA = new_authority(Subject("authority"), NOW_MS, RANDOM)
SERVER = new_server(CA, Subject("broker"), ("localhost", "127.0.0.1"), NOW_MS, RANDOM)
EXPIRED = new_server(CA, Subject("broker"), ("127.0.0.1",), NOW_MS - 10 * 365 * 86_400_000, RANDOM)


@pytest.fixture(autouse=True)
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def token_file(folder: Path, token: str = TOKEN) -> str:
    path = folder / "token"
    path.write_text(f"{token}\n")
    return str(path)


def keystore(folder: Path, issued: Issued = SERVER) -> str:
    path = folder / "metrics.pem"
    path.write_text(issued.certificate + issued.key)
    return str(path)


def trusting(authority: Issued = CA) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.certificate)


@asynccontextmanager
async def watched(harness: BrokerHarness, **settings: str) -> AsyncIterator[Watch]:
    env = replace(harness.broker._env, network=SocketNetwork())
    config = harness.broker._config.with_overrides({"metrics": "127.0.0.1:0", **settings})
    async with (
        asyncio.timeout(patient(PATIENCE_S)),
        watching(env, config, harness.broker, asyncio.Event()) as watch,
    ):
        watch.health.is_serving = True
        yield watch


Answer = tuple[int, http.client.HTTPMessage, bytes]


async def get(
    watch: Watch,
    path: str,
    *authorization: str,
    tls: ssl.SSLContext | None = None,
    method: str = "GET",
) -> Answer:
    """Makes a request with Python's HTTP client, on a thread."""
    assert watch.address is not None
    host, port = watch.address

    def ask() -> Answer:
        if tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE_S, context=tls)
        try:
            connection.putrequest(method, path)
            for value in authorization:
                connection.putheader("Authorization", value)
            connection.endheaders()
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


# The token


@with_harness
async def test_without_a_token_loopback_is_open(harness: BrokerHarness) -> None:
    """As before. An unneeded token is ignored."""
    async with watched(harness) as watch:
        assert (await get(watch, "/metrics"))[0] == 200
        assert (await get(watch, "/metrics", "Bearer whatever"))[0] == 200
        assert json.loads((await get(watch, "/health/live"))[2]) == {"live": True, "broker": 0}
        assert "checks" in json.loads((await get(watch, "/health/ready"))[2])


def test_a_token_opens_everything(tmp_path: Path) -> None:
    """Also from this machine, all metrics need it."""

    @with_harness
    async def run(harness: BrokerHarness) -> None:
        async with watched(harness, metrics_token_file=token_file(tmp_path)) as watch:
            status, headers, body = await get(watch, "/metrics")
            assert status == 401
            assert headers["WWW-Authenticate"].startswith("Bearer")
            assert b"metrics_token_file" in body
            assert TOKEN.encode() not in body
            status, _, body = await get(watch, "/metrics", f"Bearer {TOKEN}")
            assert (status, b"penstock_connections" in body) == (200, True)
            report = json.loads((await get(watch, "/health/ready", f"bearer {TOKEN}"))[2])
            assert report["checks"]

    run(tmp_path)


def test_without_its_token_health_shows_only_its_result(tmp_path: Path) -> None:
    """Orchestrators need no token. What is wrong, and with which broker, is not shown."""

    @with_harness
    async def run(harness: BrokerHarness) -> None:
        async with watched(harness, metrics_token_file=token_file(tmp_path)) as watch:
            status, _, body = await get(watch, "/health/live")
            assert (status, json.loads(body)) == (200, {"live": True})
            status, _, body = await get(watch, "/health/ready")
            assert (status, json.loads(body)) == (200, {"ready": True})
            watch.health.is_serving = False
            status, _, body = await get(watch, "/health/ready")
            assert (status, json.loads(body)) == (503, {"ready": False})
            assert (await get(watch, "/health/live", method="POST"))[0] == 405

    run(tmp_path)


@pytest.mark.parametrize(
    "authorization",
    [
        ["Bearer"],
        ["Bearer "],
        [f"Bearer {TOKEN}x"],
        [f"Bearer {TOKEN[:-1]}"],
        [f"Bearer {TOKEN.upper()}"],
        [f"Basic {TOKEN}"],
        [TOKEN],
        [f"Bearer {TOKEN}", f"Bearer {TOKEN}"],
        ["Bearer wrong", f"Bearer {TOKEN}"],
    ],
    ids=str,
)
def test_a_wrong_token_is_refused(authorization: list[str]) -> None:
    """Two tokens are as wrong as another scheme."""
    guard = TokenGuard(TOKEN)
    assert guard.access([each.encode() for each in authorization]) is Access.WRONG
    assert guard.access([]) is Access.ANONYMOUS
    assert guard.access([f"Bearer {TOKEN}".encode()]) is Access.FULL


def test_a_request_with_a_wrong_token_gets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even the pages that need none, or a list of the pages. It is logged and counted."""

    @with_harness
    async def run(harness: BrokerHarness) -> None:
        async with watched(harness, metrics_token_file=token_file(tmp_path)) as watch:
            for path in ("/metrics", "/health/live", "/health/ready", "/other"):
                status, _, body = await get(watch, path, "Bearer wrong-secret")
                assert status == 401
                assert b"/health" not in body
            assert (await get(watch, "/other"))[0] == 401
            assert (await get(watch, "/other", f"Bearer {TOKEN}"))[0] == 404
            metrics = (await get(watch, "/metrics", f"Bearer {TOKEN}"))[2].decode()
            assert "penstock_metrics_refused_requests_total 5.0" in metrics

    run(tmp_path)
    assert "refused a request to the metrics endpoint" in caplog.text
    assert "wrong-secret" not in caplog.text


def test_a_new_token_is_used_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The old one stays in use if the new one cannot be read."""

    @with_harness
    async def run(harness: BrokerHarness) -> None:
        async with watched(harness, metrics_token_file=token_file(tmp_path)) as watch:
            token_file(tmp_path, "short")
            await watch._security.reload()
            assert (await get(watch, "/metrics", f"Bearer {TOKEN}"))[0] == 200
            token_file(tmp_path, "another-token-that-is-long")
            await watch._security.reload()
            assert (await get(watch, "/metrics", f"Bearer {TOKEN}"))[0] == 401
            status, _, _ = await get(watch, "/metrics", "Bearer another-token-that-is-long")
            assert status == 200

    run(tmp_path)
    assert "5 characters: use 16" in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "metrics.example.com"])
def test_an_address_that_others_can_reach_needs_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """From a file, or from an environment variable. The error says what to do."""
    config = BrokerConfig(metrics=f"{host}:9404")
    with pytest.raises(ConfigError, match=r"set metrics_token_file .* listen on 127\.0\.0\.1"):
        read_token(config)
    assert read_token(replace(config, metrics_token_file=token_file(tmp_path))) == TOKEN
    monkeypatch.setenv(TOKEN_VARIABLE, "from-the-environment")
    assert read_token(config) == "from-the-environment"
    assert read_token(BrokerConfig(metrics="off")) is None


@pytest.mark.parametrize("metrics", ["auto", "127.0.0.1:1", "[::1]:1", "localhost:1", "off"])
def test_an_address_of_this_machine_needs_no_token(metrics: str) -> None:
    assert read_token(BrokerConfig(metrics=metrics)) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read"),
        (b"", "0 characters"),
        (b"short\n", "5 characters"),
        (b"two words that are long", "does not allow"),
        (b"one-line-of-the-token\nanother-secret", "does not allow"),
        ("\u00fc".encode() * 20, "does not allow"),
        (b"\xff" * 20, "not text"),
        (b"x" * 2000, "characters: use"),
    ],
)
def test_a_token_that_cannot_be_used_is_an_error(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    """It names the file, and does not repeat its content. A missing file never opens the
    endpoint, not even on loopback."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_token(BrokerConfig(metrics="127.0.0.1:1", metrics_token_file=str(path)))
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)


@with_harness
async def test_a_broker_without_a_token_does_not_start_off_loopback(harness: BrokerHarness) -> None:
    """It fails before it listens."""
    with pytest.raises(ConfigError, match="needs a token"):
        async with watched(harness, metrics="0.0.0.0:0"):
            raise AssertionError("it listens")


# TLS


def test_tls_serves_clients_that_trust_its_authority(tmp_path: Path) -> None:
    """With the token as without TLS. Others do not connect, and neither do plain requests."""

    @with_harness
    async def run(harness: BrokerHarness) -> None:
        settings = {
            "metrics_keystore": keystore(tmp_path),
            "metrics_token_file": token_file(tmp_path),
        }
        async with watched(harness, **settings) as watch:
            assert watch.scheme == "https"
            bearer = f"Bearer {TOKEN}"
            for _ in range(2):
                assert (await get(watch, "/metrics", bearer, tls=trusting()))[0] == 200
                assert (await get(watch, "/metrics", tls=trusting()))[0] == 401
                other = new_authority(Subject("other"), NOW_MS, RANDOM)
                with pytest.raises(ssl.SSLCertVerificationError):
                    await get(watch, "/metrics", bearer, tls=trusting(other))
                with pytest.raises((ConnectionError, http.client.HTTPException)):
                    await get(watch, "/metrics", bearer)

    run(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "metrics_keystore: cannot read"),
        ("nonsense", "metrics_keystore"),
        (SERVER.certificate, "metrics_keystore"),
        (EXPIRED.certificate + EXPIRED.key, "expired"),
    ],
    ids=["missing", "nonsense", "no key", "expired"],
)
def test_a_broker_with_a_bad_certificate_does_not_start(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    """The error names the setting."""
    path = tmp_path / "metrics.pem"
    if content is not None:
        path.write_text(content)

    @with_harness
    async def run(harness: BrokerHarness) -> None:
        with pytest.raises(ConfigError, match=reason):
            async with watched(harness, metrics_keystore=str(path)):
                raise AssertionError("it listens")

    run(tmp_path)


def test_a_new_certificate_is_used_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that cannot be used is refused, and the old one stays in use."""
    other = new_authority(Subject("other"), NOW_MS, RANDOM)
    moved = new_server(other, Subject("moved"), ("127.0.0.1",), NOW_MS, RANDOM)

    @with_harness
    async def run(harness: BrokerHarness) -> None:
        async with watched(harness, metrics_keystore=keystore(tmp_path)) as watch:
            keystore(tmp_path, EXPIRED)
            await watch._security.reload()
            assert (await get(watch, "/health/live", tls=trusting()))[0] == 200
            keystore(tmp_path, moved)
            await watch._security.reload()
            assert (await get(watch, "/health/live", tls=trusting(other)))[0] == 200

    run(tmp_path)
    assert "listener metrics: the new certificate is refused" in caplog.text


def test_a_client_that_begins_no_handshake_does_not_keep_others_out(tmp_path: Path) -> None:
    """Nor one that sends no request after it. When the endpoint closes, both are disconnected."""

    @with_harness
    async def run(harness: BrokerHarness) -> None:
        async with watched(harness, metrics_keystore=keystore(tmp_path)) as watch:
            assert watch.address is not None
            silent = [await asyncio.open_connection(*watch.address) for _ in range(20)]
            slow = await asyncio.open_connection(*watch.address, ssl=trusting())
            assert (await get(watch, "/health/live", tls=trusting()))[0] == 200
        for reader, writer in (*silent, slow):
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(tmp_path)


# The doctor


def test_the_doctor_reads_a_report_with_the_token_and_the_authority(tmp_path: Path) -> None:
    """Without them, it says what is missing."""

    @with_harness
    async def run(harness: BrokerHarness) -> None:
        settings = {
            "metrics_keystore": keystore(tmp_path),
            "metrics_token_file": token_file(tmp_path),
        }
        async with watched(harness, **settings) as watch:
            assert watch.address is not None
            broker = BrokerInfo(0, Address("127.0.0.1", watch.address[1] - 1000), None)
            (found,) = await check_health(broker, MetricsAccess(TOKEN, trusting()))
            assert (found.state, found.found) == (State.OK, "ready")
            (found,) = await check_health(broker, MetricsAccess(None, trusting()))
            assert "it needs a token" in found.found
            (found,) = await check_health(broker)
            assert (found.state, "--metrics-ca" in found.advice) == (State.NOTE, True)

    run(tmp_path)
