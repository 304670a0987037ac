"""Sends OpenLineage events: to an HTTP endpoint, a file or a topic.

Pipelines never wait for it. Events wait in a queue with a limit. An event that does not fit, or
that cannot be sent after some attempts, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.client.environment import ClientEnv
from penstock.client.producing.producer import Producer
from penstock.ports import Clock, Executor
from penstock.spark.deployments.lineage.run_events import LineageEvent
from penstock.spark.pipelines.errors import PipelineError

API_KEY_VARIABLE: Final = "OPENLINEAGE_API_KEY"
"""The name that the clients of OpenLineage use."""
QUEUE_MAX: Final = 1_000
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 1.0
_HTTP_S: Final = 10.0
_CLOSE_S: Final = 3.0
_DEFAULT_PATH: Final = "/api/v1/lineage"
_TOPIC: Final = "topic:"
_log = logging.getLogger(__name__)

Send = Callable[[bytes], Awaitable[None]]


class NotSent(Exception):
    """An event was not accepted."""


class Emitter:
    def __init__(self, send: Send, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_MAX)
        self.sent = 0
        self.dropped = 0
        self._unfinished = 0
        """Events that wait or are being sent."""
        self._failing = False

    def emit(self, events: Iterable[LineageEvent]) -> None:
        """Sends events later. Never blocks."""
        for event in events:
            try:
                self._waiting.put_nowait(json.dumps(event, separators=(",", ":")).encode())
            except asyncio.QueueFull:
                self.dropped += 1
            else:
                self._unfinished += 1

    async def run(self) -> None:
        """Sends events until cancelled."""
        while True:
            await self._deliver(await self._waiting.get())
            self._unfinished -= 1
            self._waiting.task_done()

    async def drain(self) -> None:
        """Waits until everything is sent, if that is quick. `run` must still run."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._waiting.join()
        except TimeoutError:
            self.dropped += self._unfinished
            self._unfinished = 0

    async def _deliver(self, data: bytes) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                await self._send(data)
            except Exception as error:  # noqa: BLE001 (lineage must go on after any of them)
                if attempt + 1 < _ATTEMPTS:
                    await self._clock.sleep(_PAUSE_S)
                    continue
                self.dropped += 1
                if not self._failing:
                    self._failing = True
                    _log.warning("cannot send OpenLineage events: %s; dropping them", error)
            else:
                self.sent += 1
                self._failing = False
                return


def checked(target: str) -> str:
    """Returns the target. Raises `PipelineError` if it is not one."""
    if target.startswith(_TOPIC):
        if target == _TOPIC:
            raise PipelineError("--openlineage names no topic: write topic:NAME")
        return target
    at = urlsplit(target)
    if at.scheme in ("http", "https"):
        try:
            _ = at.port
        except ValueError:
            raise PipelineError(f"--openlineage: {at.netloc} has no valid port") from None
        if not at.hostname or at.username or at.password:
            raise PipelineError(
                "--openlineage needs a URL with a host and without a password: set "
                f"{API_KEY_VARIABLE} if the endpoint needs a key"
            )
        return target
    if at.scheme not in ("", "file"):
        raise PipelineError(
            f"--openlineage does not support {at.scheme}: write an http or https URL, topic:NAME, "
            "or a file"
        )
    return target


async def _nothing() -> None: ...


def sender(
    target: str, bootstrap: str, env: ClientEnv, executor: Executor
) -> tuple[Send, Callable[[], Awaitable[None]]]:
    """Returns a function that sends one event, and one that ends the connection."""
    if target.startswith(_TOPIC):
        to_topic = _TopicSender(target.removeprefix(_TOPIC), bootstrap, env)
        return to_topic.send, to_topic.close
    if target.startswith(("http://", "https://")):
        key = os.environ.get(API_KEY_VARIABLE, "").strip()
        return lambda data: executor.run(lambda: _post(target, key, data)), _nothing
    path = urlsplit(target).path if target.startswith("file:") else target
    return lambda data: executor.run(lambda: _append(path, data)), _nothing


def _post(url: str, key: str, data: bytes) -> None:
    """Redirects are not followed: they would send the key elsewhere."""
    at = urlsplit(url)
    assert at.hostname is not None
    connection: http.client.HTTPConnection
    if at.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            at.hostname, at.port, timeout=_HTTP_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(at.hostname, at.port, timeout=_HTTP_S)
    path = at.path if at.path not in ("", "/") else _DEFAULT_PATH
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request("POST", f"{path}?{at.query}" if at.query else path, data, headers)
        status = connection.getresponse().status
    finally:
        connection.close()
    if not 200 <= status < 300:
        raise NotSent(f"{at.hostname} answered with {status}")


def _append(path: str, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data + b"\n")


class _TopicSender:
    def __init__(self, topic: str, bootstrap: str, env: ClientEnv) -> None:
        self._topic = topic
        self._bootstrap = bootstrap
        self._env = env
        self._producer: Producer[Any, Any] | None = None

    async def send(self, data: bytes) -> None:
        if self._producer is None:
            producer: Producer[Any, Any] = Producer(self._bootstrap, env=self._env)
            await producer.start()
            self._producer = producer
        run = json.loads(data)["run"]["runId"]
        await (await self._producer.send(self._topic, data, key=run.encode()))

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close(_CLOSE_S)
