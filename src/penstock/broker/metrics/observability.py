"""Wires up the observability of a real broker: metrics, health, cluster events, loop delay.

All of this runs next to the broker, from before it starts until after it has stopped. A broker that
reads its logs for minutes after a crash is live during that time, and reports why it is not ready.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.config import METRICS_AUTO, BrokerConfig, ConfigError
from penstock.broker.metrics.endpoint import Endpoint
from penstock.broker.metrics.endpoint_security import EndpointSecurity
from penstock.broker.metrics.event_log import EventLog
from penstock.broker.metrics.health import Health
from penstock.broker.metrics.pages import Page, Resource, text_page
from penstock.broker.metrics.scrape import NotWired, Scrapes
from penstock.broker.metrics.token_guard import TokenGuard
from penstock.ports import Env, Network

DELAY_EVERY_S: Final = 0.1
_log = logging.getLogger(__name__)


class Watch:
    def __init__(self, env: Env, config: BrokerConfig, broker: Broker, stop: asyncio.Event) -> None:
        self._env = env
        self._config = config
        self._counters = broker.counters
        self.health = Health(env, config, broker, stop)
        self._event_log = EventLog(broker, config.broker_id)
        self._endpoint = Endpoint(
            {
                "/metrics": Resource(self._metrics),
                "/health/live": Resource(self._live, is_open=True),
                "/health/ready": Resource(self._ready, is_open=True),
            },
            TokenGuard(),
        )
        self._scrapes = Scrapes(env, broker, lambda: self._endpoint.refused)
        self._security = EndpointSecurity(env, config, self._endpoint)
        self._tasks: list[asyncio.Task[None]] = []
        self.address: tuple[str, int] | None = None
        """The address it listens on. None if metrics are off."""

    @property
    def scheme(self) -> str:
        """http or https."""
        return self._security.scheme

    async def start(self) -> None:
        wanted = self._config.metrics_address
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._measure_delays()))
        if wanted is not None:
            self.address = await self._listen(await self._security.load(), *wanted)
            self._tasks.append(loop.create_task(self._security.run()))

    async def close(self) -> None:
        await self._endpoint.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.health.close()
        self._scrapes.close()
        self._event_log.close()

    async def _listen(self, network: Network, host: str, port: int) -> tuple[str, int]:
        try:
            return await self._endpoint.start(network, host, port)
        except OSError as error:
            if self._config.metrics != METRICS_AUTO or error.errno != errno.EADDRINUSE:
                raise ConfigError(
                    f"metrics: cannot listen on {host}:{port} ({error.strerror}): choose another "
                    "address, or off"
                ) from error
        return await self._endpoint.start(network, host, 0)

    async def _measure_delays(self) -> None:
        """Measures how late the event loop runs timers, until cancelled."""
        clock = self._env.clock
        while True:
            due = clock.monotonic() + DELAY_EVERY_S
            await clock.sleep(DELAY_EVERY_S)
            self._counters.loop_delays.observe(max(0.0, clock.monotonic() - due))

    # Pages. Without the token, health checks return only what an orchestrator needs.

    async def _metrics(self, _is_trusted: bool) -> Page:
        try:
            content_type, body = await self._scrapes.scrape()
        except NotWired:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, "the broker is starting: try again")
        return Page(HTTPStatus.OK, content_type, body)

    async def _live(self, is_trusted: bool) -> Page:
        about = {"broker": self._config.broker_id} if is_trusted else {}
        return _json(HTTPStatus.OK, {"live": True, **about})

    async def _ready(self, is_trusted: bool) -> Page:
        ready, report = await self.health.report()
        shown = report if is_trusted else {"ready": ready}
        return _json(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, shown)


def _json(status: HTTPStatus, value: object) -> Page:
    return Page(status, "application/json", f"{json.dumps(value, indent=2)}\n".encode())


@asynccontextmanager
async def watching(
    env: Env, config: BrokerConfig, broker: Broker, stop: asyncio.Event
) -> AsyncIterator[Watch]:
    """Watches a broker from before it runs until it has stopped. `stop` is the event that stops
    it."""
    watch = Watch(env, config, broker, stop)
    try:
        await watch.start()
        if watch.address is not None:
            _log.info("metrics and health at %s://%s:%d", watch.scheme, *watch.address)
        yield watch
    finally:
        await watch.close()
