"""Tests the HTTP endpoint of a worker on real sockets, with a real HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.broker.metrics.token_guard import TOKEN_VARIABLE
from penstock.net.sockets import SocketNetwork
from penstock.runtime import SystemClock, Threads
from penstock.security.certificates import Subject, new_authority, new_server
from penstock.spark.deployments.metrics.endpoint import (
    MetricsEnv,
    MetricsOptions,
    Observed,
    serving,
)
from penstock.spark.pipelines.errors import PipelineError
from penstock.testing.slowness import patient
from spark.deployments.metrics.samples import pipeline, worker

TOKEN = "0123456789abcdef-metrics"
Answer = tuple[int, str]


@pytest.fixture(autouse=True)
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def serve(
    options: MetricsOptions | None,
    main: Callable[[str], Awaitable[Any]],
    *,
    is_ready: bool = True,
) -> Any:
    async def run() -> Any:
        threads = Threads(2)
        env = MetricsEnv(SocketNetwork(), SystemClock(), threads)
        observed = Observed(lambda: worker(pipeline()), lambda: is_ready)
        try:
            async with asyncio.timeout(patient(120)), serving(env, options, observed) as url:
                return await main(url)
        finally:
            threads.close()

    return asyncio.run(run())


async def get(
    url: str, path: str, token: str = "", context: ssl.SSLContext | None = None
) -> Answer:
    def work() -> Answer:
        at = urlsplit(url)
        assert at.hostname is not None
        connection: http.client.HTTPConnection
        if at.scheme == "https":
            connection = http.client.HTTPSConnection(at.hostname, at.port, context=context)
        else:
            connection = http.client.HTTPConnection(at.hostname, at.port)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        found = answer.status, answer.read().decode()
        connection.close()
        return found

    return await asyncio.to_thread(work)


def test_it_serves_metrics_and_health() -> None:
    async def main(url: str) -> list[Answer]:
        return [await get(url, path) for path in ("/metrics", "/health/live", "/health/ready")]

    metrics, live, ready = serve(MetricsOptions(), main)
    assert metrics[0] == 200
    assert 'penstock_pipeline_lag_records{flow="clicks",pipeline="views"} 12.0' in metrics[1]
    assert live == (200, '{"live": true}\n') and ready == (200, '{"ready": true}\n')


def test_a_worker_without_a_lease_is_not_ready() -> None:
    async def main(url: str) -> Answer:
        return await get(url, "/health/ready")

    assert serve(MetricsOptions(), main, is_ready=False) == (503, '{"ready": false}\n')


def test_metrics_need_the_token_and_health_checks_do_not(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)

    async def main(url: str) -> list[int]:
        asked = [("/metrics", ""), ("/metrics", "wrong"), ("/metrics", TOKEN), ("/health/live", "")]
        return [(await get(url, path, token))[0] for path, token in asked]

    assert serve(MetricsOptions(metrics_token_file=str(file)), main) == [401, 401, 200, 200]


def test_other_machines_need_a_token() -> None:
    async def main(url: str) -> None:
        raise AssertionError("it listens without a token")

    with pytest.raises(PipelineError, match="--metrics-token-file"):
        serve(MetricsOptions("0.0.0.0"), main)


def test_it_can_use_tls(tmp_path: Path) -> None:
    now_ms, bytes_of = time.time_ns() // 1_000_000, random.Random(17).randbytes
    authority = new_authority(Subject("authority"), now_ms, bytes_of)
    issued = new_server(authority, Subject("worker"), ("127.0.0.1",), now_ms, bytes_of)
    keystore = tmp_path / "metrics.pem"
    keystore.write_text(issued.certificate + issued.key)

    async def main(url: str) -> Answer:
        context = ssl.create_default_context(cadata=authority.certificate)
        return await get(url, "/health/live", context=context)

    assert serve(MetricsOptions(metrics_keystore=str(keystore)), main)[0] == 200


def test_a_port_that_is_in_use_is_an_error_unless_it_may_move() -> None:
    async def main(url: str) -> None:
        port = urlsplit(url).port
        assert port is not None
        env = MetricsEnv(SocketNetwork(), SystemClock(), Threads(1))
        observed = Observed(worker, lambda: True)
        with pytest.raises(PipelineError, match="--metrics-port"):
            async with serving(env, MetricsOptions(port=port), observed):
                pass
        async with serving(env, MetricsOptions(port=port, moves=True), observed) as other:
            assert urlsplit(other).port not in (None, port)

    serve(MetricsOptions(), main)


def test_without_options_nothing_is_served() -> None:
    async def main(url: str) -> str:
        return url

    assert serve(None, main) == ""
