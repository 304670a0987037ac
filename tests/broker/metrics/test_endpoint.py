"""The HTTP pages of a broker on real sockets: what is served, what is refused, and how it stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus

import pytest

from broker.harness import BrokerHarness, with_harness
from penstock.broker.config import BrokerConfig, ConfigError
from penstock.broker.metrics import endpoint as endpoint_module
from penstock.broker.metrics.endpoint import Endpoint
from penstock.broker.metrics.observability import watching
from penstock.broker.metrics.pages import Page, Resource, text_page
from penstock.broker.metrics.token_guard import TokenGuard
from penstock.net.sockets import SocketNetwork
from penstock.testing.slowness import patient

Address = tuple[str, int]


async def exchange(address: Address, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Sends bytes and reads until the server closes. Returns status, headers and body."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    return int(status.split()[1]), {name.lower(): value for name, value in pairs}, body


async def get(
    address: Address, path: str, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    return await exchange(address, f"{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())


@asynccontextmanager
async def serving(**pages: Page | Exception | asyncio.Event) -> AsyncIterator[Address]:
    """Serves pages that have content, fail or wait."""

    def resource(page: Page | Exception | asyncio.Event) -> Resource:
        async def answer(_is_trusted: bool) -> Page:
            if isinstance(page, Exception):
                raise page
            if isinstance(page, asyncio.Event):
                await page.wait()
                return text_page(HTTPStatus.OK, "waited")
            return page

        return Resource(answer)

    held = Endpoint({f"/{name}": resource(page) for name, page in pages.items()}, TokenGuard())
    address = await held.start(SocketNetwork(), "127.0.0.1", 0)
    try:
        async with asyncio.timeout(patient(120)):
            yield address
    finally:
        await held.close()


HELLO = text_page(HTTPStatus.OK, "hello")


def test_a_page_is_served_and_the_connection_is_closed() -> None:
    """The query string is ignored."""

    async def run_case() -> None:
        async with serving(hello=HELLO) as address:
            status, headers, body = await get(address, "/hello?x=1")
            assert (status, body) == (200, b"hello\n")
            assert headers["content-length"] == "6"
            assert headers["content-type"] == "text/plain; charset=utf-8"
            assert headers["connection"] == "close"

    asyncio.run(run_case())


def test_head_has_no_body() -> None:
    """It has the length of the body, however."""

    async def run_case() -> None:
        async with serving(hello=HELLO) as address:
            status, headers, body = await get(address, "/hello", "HEAD")
            assert (status, headers["content-length"], body) == (200, "6", b"")

    asyncio.run(run_case())


def test_other_paths_and_methods_are_refused() -> None:
    """The response lists the existing pages, and does not repeat the requested path."""

    async def run_case() -> None:
        async with serving(hello=HELLO) as address:
            status, _, body = await get(address, "/<script>")
            assert (status, body) == (404, b"there is no such page; the pages are /hello\n")
            assert (await get(address, "/hello", "POST"))[0] == 405

    asyncio.run(run_case())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x00\x00\x10\x00\x12\x00\x03\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000, 431),
    ],
    ids=["kafka", "no host", "endless"],
)
def test_requests_that_are_not_valid_http_are_refused(data: bytes, status: int) -> None:
    """The server goes on."""

    async def run_case() -> None:
        async with serving(hello=HELLO) as address:
            assert (await exchange(address, data))[0] == status
            assert (await get(address, "/hello"))[0] == 200

    asyncio.run(run_case())


def test_a_page_that_raises_is_answered_with_500(caplog: pytest.LogCaptureFixture) -> None:
    """The log names the page. The response reveals nothing of the exception."""

    async def run_case() -> None:
        async with serving(bad=ValueError("secret")) as address:
            status, _, body = await get(address, "/bad")
            assert status == 500
            assert b"secret" not in body

    asyncio.run(run_case())
    assert "cannot serve /bad" in caplog.text


def test_connections_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until one of them has closed."""
    monkeypatch.setattr(endpoint_module, "CONNECTIONS_MAX", 1)

    async def run_case() -> None:
        async with serving(hello=HELLO) as address:
            reader, writer = await asyncio.open_connection(*address)
            while True:
                # The server may not have accepted the first connection yet.
                try:
                    status, _, _ = await get(address, "/hello")
                except (ConnectionError, IndexError, ValueError):
                    break
                assert status == 200
            writer.write(b"GET /hello HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b"hello" in await reader.read()
            writer.close()

    asyncio.run(run_case())


def test_a_connection_without_a_complete_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.metrics.http.REQUEST_S", 0.05)

    async def run_case() -> None:
        async with serving(hello=HELLO) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /hello HTTP/1.1\r\n")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()

    asyncio.run(run_case())


def test_closing_the_endpoint_does_not_wait_for_pending_responses() -> None:
    """They are cancelled."""

    async def run_case() -> None:
        async with serving(slow=asyncio.Event()) as address:
            _, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run_case())


# The endpoint of a broker


@with_harness
async def test_a_broker_serves_its_metrics_and_health(harness: BrokerHarness) -> None:
    """On a separate address, even before it is ready."""
    env = replace(harness.broker._env, network=SocketNetwork())
    config = replace(harness.broker._config, metrics="127.0.0.1:0")
    async with watching(env, config, harness.broker, asyncio.Event()) as watch:
        assert watch.address is not None
        assert json.loads((await get(watch.address, "/health/live"))[2])["live"] is True
        status, headers, body = await get(watch.address, "/health/ready")
        assert (status, headers["content-type"]) == (503, "application/json")
        assert json.loads(body)["ready"] is False
        watch.health.is_serving = True
        assert (await get(watch.address, "/health/ready"))[0] == 200
        status, headers, body = await get(watch.address, "/metrics")
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
        assert b"\npenstock_connections " in body
        await harness.until(lambda: sum(harness.broker.counters.loop_delays.counts) > 0)
    with pytest.raises(ConnectionError):
        await get(watch.address, "/health/live")


@with_harness
async def test_only_an_automatic_metrics_address_is_replaced_if_it_is_in_use(
    harness: BrokerHarness,
) -> None:
    """`auto` takes another port. An address from the config file is an error that says what to
    do.
    """
    env = replace(harness.broker._env, network=SocketNetwork())
    stop = asyncio.Event()
    first = replace(harness.broker._config, metrics="127.0.0.1:0")
    async with watching(env, first, harness.broker, stop) as holder:
        assert holder.address is not None
        port = holder.address[1]
        auto = replace(first, port=port - 1000, metrics="auto")
        assert auto.metrics_address == ("127.0.0.1", port)
        async with watching(env, auto, harness.broker, stop) as watch:
            assert watch.address is not None
            assert watch.address[1] not in (0, port)
        chosen = replace(first, metrics=f"127.0.0.1:{port}")
        with pytest.raises(ConfigError, match="choose another address, or off"):
            async with watching(env, chosen, harness.broker, stop):
                pass
    off = replace(first, metrics="off")
    async with watching(env, off, harness.broker, stop) as watch:
        assert watch.address is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:9404", ("0.0.0.0", 9404)),
        ("[::1]:9404", ("::1", 9404)),
        ("off", None),
        ("auto", ("127.0.0.1", 10092)),
    ],
)
def test_metrics_addresses_are_parsed(text: str, address: Address | None) -> None:
    """Host and port, or `auto`, or `off`."""
    assert BrokerConfig(metrics=text).metrics_address == address


@pytest.mark.parametrize("text", ["", "9404", ":9404", "h:", "h:x", "h:70000", "on"])
def test_invalid_metrics_addresses_are_refused(text: str) -> None:
    """When the configuration is read."""
    with pytest.raises(ConfigError, match="metrics"):
        BrokerConfig(metrics=text)


@pytest.mark.parametrize(("key", "value"), [("log_format", "xml"), ("log_level", "loud")])
def test_invalid_log_settings_are_refused(key: str, value: str) -> None:
    """The error lists the valid values."""
    with pytest.raises(ConfigError, match=f"{key} is '{value}': write one of"):
        BrokerConfig().with_overrides({key: value})
