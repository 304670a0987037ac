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
from penstock.broker.metrics.event_log import EventLog
from penstock.broker.metrics.health import Health
from penstock.broker.metrics.pages import Page, text_page
from penstock.broker.metrics.scrape import NotWired, Scrapes
from penstock.ports import Env

DELAY_EVERY_S: Final = 0.1
_log = logging.getLogger(__name__)


class Watch:
    def __init__(self, env: Env, config: BrokerConfig, broker: Broker, stop: asyncio.Event) -> None:
        self._env = env
        self._config = config
        self._counters = broker.counters
        self._scrapes = Scrapes(env, broker)
        self.health = Health(env, config, broker, stop)
        self._event_log = EventLog(broker, config.broker_id)
        self._endpoint = Endpoint(
            env.network,
            {"/metrics": self._metrics, "/health/live": self._live, "/health/ready": self._ready},
        )
        self._delays: asyncio.Task[None] | None = None
        self.address: tuple[str, int] | None = None
        """The address it listens on. None if metrics are off."""

    async def start(self) -> None:
        wanted = self._config.metrics_address
        self._delays = asyncio.get_running_loop().create_task(self._measure_delays())
        if wanted is not None:
            self.address = await self._listen(*wanted)

    async def close(self) -> None:
        await self._endpoint.close()
        if self._delays is not None:
            self._delays.cancel()
            await asyncio.wait([self._delays])
        await self.health.close()
        self._scrapes.close()
        self._event_log.close()

    async def _listen(self, host: str, port: int) -> tuple[str, int]:
        try:
            return await self._endpoint.start(host, port)
        except OSError as error:
            if self._config.metrics != METRICS_AUTO or error.errno != errno.EADDRINUSE:
                raise ConfigError(
                    f"metrics: cannot listen on {host}:{port} ({error.strerror}): choose another "
                    "address, or off"
                ) from error
        return await self._endpoint.start(host, 0)

    async def _measure_delays(self) -> None:
        """Measures how late the event loop runs timers, until cancelled."""
        clock = self._env.clock
        while True:
            due = clock.monotonic() + DELAY_EVERY_S
            await clock.sleep(DELAY_EVERY_S)
            self._counters.loop_delays.observe(max(0.0, clock.monotonic() - due))

    # Pages

    async def _metrics(self) -> Page:
        try:
            content_type, body = await self._scrapes.scrape()
        except NotWired:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, "the broker is starting: try again")
        return Page(HTTPStatus.OK, content_type, body)

    async def _live(self) -> Page:
        return _json(HTTPStatus.OK, {"live": True, "broker": self._config.broker_id})

    async def _ready(self) -> Page:
        ready, report = await self.health.report()
        return _json(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, report)


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
            _log.info("metrics and health at http://%s:%d", *watch.address)
        yield watch
    finally:
        await watch.close()
