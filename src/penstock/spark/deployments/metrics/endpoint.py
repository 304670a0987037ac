"""The HTTP endpoint of a worker: metrics and health checks, protected as those of a broker."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module

from penstock.broker.config import ConfigError
from penstock.broker.metrics.endpoint import Endpoint
from penstock.broker.metrics.endpoint_security import EndpointSecurity
from penstock.broker.metrics.pages import Page, Resource
from penstock.broker.metrics.token_guard import TokenGuard
from penstock.ports import Clock, Executor, Network
from penstock.spark.deployments.metrics.figures import WorkerSample
from penstock.spark.pipelines.errors import PipelineError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Where a worker serves its metrics. The names are those of a broker's settings."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    metrics_token_file: str = ""
    metrics_keystore: str = ""
    moves: bool = False
    """Whether another port is taken if this one is in use."""

    @property
    def metrics(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def metrics_address(self) -> tuple[str, int]:
        return self.host, self.port


@dataclass(frozen=True, slots=True)
class MetricsEnv:
    network: Network
    clock: Clock
    executor: Executor
    handshakes: Executor | None = None


class Observed:
    """What the endpoint asks of a worker."""

    def __init__(self, sample: Callable[[], WorkerSample], is_ready: Callable[[], bool]) -> None:
        self.sample = sample
        self.is_ready = is_ready


class WorkerEndpoint:
    def __init__(self, env: MetricsEnv, options: MetricsOptions, observed: Observed) -> None:
        self._env = env
        self._options = options
        self._observed = observed
        self._endpoint = Endpoint(
            {
                "/metrics": Resource(self._metrics),
                "/health/live": Resource(self._live, is_open=True),
                "/health/ready": Resource(self._ready, is_open=True),
            },
            TokenGuard(),
        )
        self._security = EndpointSecurity(env, options, self._endpoint)
        self.url = ""

    async def start(self) -> None:
        """Raises `PipelineError` if it cannot listen, or may not without a token."""
        try:
            network = await self._security.load()
        except ConfigError as error:
            raise PipelineError(str(error)) from error
        host, port = await self._listen(network)
        self.url = f"{self._security.scheme}://{host}:{port}"

    async def _listen(self, network: Network) -> tuple[str, int]:
        options = self._options
        try:
            return await self._endpoint.start(network, options.host, options.port)
        except OSError as error:
            if not options.moves or error.errno != errno.EADDRINUSE:
                raise PipelineError(
                    f"cannot listen on {options.metrics} for metrics ({error.strerror}): choose "
                    "another port with --metrics-port"
                ) from error
        return await self._endpoint.start(network, options.host, 0)

    async def run(self) -> None:
        """Reads the token and the certificate again and again, until cancelled."""
        await self._security.run()

    async def close(self) -> None:
        await self._endpoint.close()

    async def _metrics(self, _is_trusted: bool) -> Page:
        # The first scrape loads Prometheus' library, on a thread.
        module = "penstock.spark.deployments.metrics.families"
        await self._env.executor.run(lambda: import_module(module))
        from penstock.broker.metrics.exposition import CONTENT_TYPE  # noqa: PLC0415 - see above
        from penstock.spark.deployments.metrics.families import (  # noqa: PLC0415 - see above
            rendered,
        )

        return Page(
            HTTPStatus.OK,
            CONTENT_TYPE,
            rendered(self._observed.sample(), self._endpoint.refused),
        )

    async def _live(self, _is_trusted: bool) -> Page:
        return _json(HTTPStatus.OK, {"live": True})

    async def _ready(self, _is_trusted: bool) -> Page:
        ready = self._observed.is_ready()
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(status, {"ready": ready})


def _json(status: HTTPStatus, value: object) -> Page:
    return Page(status, "application/json", f"{json.dumps(value)}\n".encode())


@asynccontextmanager
async def serving(
    env: MetricsEnv, options: MetricsOptions | None, observed: Observed
) -> AsyncIterator[str]:
    """Serves metrics inside the block. Yields the URL; empty without options."""
    if options is None:
        yield ""
        return
    endpoint = WorkerEndpoint(env, options, observed)
    await endpoint.start()
    _log.info("metrics and health at %s", endpoint.url)
    renewing = asyncio.create_task(endpoint.run(), name="renews the token of metrics")
    try:
        yield endpoint.url
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await endpoint.close()
