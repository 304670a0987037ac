"""Runs scrapes one at a time: gathers and renders the metrics, in slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module

from penstock.broker.broker import Broker
from penstock.broker.cooperative_yield import Slices
from penstock.broker.metrics.gather import Gatherer
from penstock.ports import Env


class NotWired(Exception):
    """The broker is still opening its logs, so there are no metrics yet."""


class Scrapes:
    """`refused` returns how many requests the metrics endpoint has refused. Without one: 0."""

    def __init__(self, env: Env, broker: Broker, refused: Callable[[], int] = int) -> None:
        self._env = env
        self._broker = broker
        self._refused = refused
        self._gatherer: Gatherer | None = None
        self._took_s = 0.0
        self._turn = asyncio.Lock()

    async def scrape(self) -> tuple[str, bytes]:
        """Returns the content type and the text."""
        services = self._broker.services
        if services is None:
            raise NotWired
        # The first scrape loads Prometheus' library, on a thread. So a broker starts faster, and
        # needs less memory until then.
        await self._env.executor.run(lambda: import_module("penstock.broker.metrics.families"))
        from penstock.broker.metrics.families import (  # noqa: PLC0415 - see above
            CONTENT_TYPE,
            Scraping,
            families,
            render,
        )

        async with self._turn:
            now = self._env.clock.monotonic
            began, slices = now(), Slices(now)
            if self._gatherer is None:
                self._gatherer = Gatherer(services)
            gathered = await self._gatherer.gather(slices)
            parts = []
            scraping = Scraping(self._took_s, self._refused())
            for family in families(
                self._broker, services, gathered, self._gatherer.top_topics, scraping
            ):
                parts.append(render(family))
                await slices.give_way()
            self._took_s = now() - began
        return CONTENT_TYPE, b"".join(parts)

    def close(self) -> None:
        if self._gatherer is not None:
            self._gatherer.close()
