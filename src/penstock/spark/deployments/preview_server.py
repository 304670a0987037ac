"""Answers requests for rows of tables, on a worker.

Nothing here disturbs pipelines: few requests are answered at a time, each has a deadline, and a
cluster without the topic, or without the rights to it, has no previews.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from penstock.client.admin.admin import Admin
from penstock.client.consumer import Consumer
from penstock.client.environment import ClientEnv
from penstock.client.errors import BrokerError, ClientError
from penstock.client.producing.producer import Producer
from penstock.spark.deployments import topics
from penstock.spark.deployments.model import decode, encode
from penstock.spark.deployments.previews import (
    ANSWER_S,
    REQUEST_S,
    Preview,
    PreviewRequest,
    preview_of,
    sealed,
)
from penstock.topic_partition import TopicPartition

_log = logging.getLogger(__name__)
AT_A_TIME_MAX: Final = 4
_ANSWERS_MAX: Final = 16
"""With more open answers, refusals included, requests are left out."""
_POLL_MS: Final = 1_000
_REST_S: Final = 10.0
_REPLICAS: Final = 3
BUSY: Final = "its worker is busy with other previews: try again in a moment"

Ask = Callable[[PreviewRequest], Awaitable[Preview] | None]
"""Returns None if this worker does not run the pipeline."""


class PreviewServer:
    def __init__(self, bootstrap: str, env: ClientEnv, ask: Ask) -> None:
        self._bootstrap = bootstrap
        self._env = env
        self._ask = ask
        self._answers: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answers until cancelled."""
        try:
            while True:
                try:
                    await self._create()
                    await self._follow()
                except ClientError as error:
                    _log.debug("cannot serve previews: %s; trying again", error)
                except Exception:  # noqa: BLE001 (previews go on after any error)
                    _log.exception("previews failed; trying again")
                await self._env.clock.sleep(_REST_S)
        finally:
            for task in self._answers:
                task.cancel()
            await asyncio.gather(*self._answers, return_exceptions=True)

    async def _create(self) -> None:
        async with Admin(self._bootstrap, env=self._env) as admin:
            replicas = min(_REPLICAS, len((await admin.describe_cluster()).brokers))
            try:
                await admin.create_topic(
                    topics.PREVIEWS, 1, replicas, configs=topics.PREVIEWS_SETTINGS
                )
            except BrokerError as error:
                # Without the right to create it, it may be there.
                _log.debug("cannot create %s: %s", topics.PREVIEWS, error)

    async def _follow(self) -> None:
        place = TopicPartition(topics.PREVIEWS, 0)
        async with (
            Consumer(
                self._bootstrap,
                env=self._env,
                enable_auto_commit=False,
                auto_offset_reset="latest",
                allow_auto_create_topics=False,
            ) as consumer,
            Producer(self._bootstrap, env=self._env, allow_auto_create_topics=False) as producer,
        ):
            consumer.assign([place])
            while True:
                for record in await consumer.poll(timeout_ms=_POLL_MS):
                    if (record.key or b"").startswith(topics.PREVIEW_REQUEST):
                        self._on_request(decode(PreviewRequest, record.value), producer)

    def _on_request(self, request: PreviewRequest | None, producer: Producer[Any, Any]) -> None:
        now_ms = self._env.clock.wall_ms()
        if request is None or abs(now_ms - request.at_ms) > REQUEST_S * 1000:
            return
        if len(self._answers) >= _ANSWERS_MAX:
            return  # Too many to say even that.
        asked = self._ask(request)
        if asked is None:
            return
        if len(self._answers) >= AT_A_TIME_MAX:
            if isinstance(asked, Coroutine):
                asked.close()
            asked = _refused()
        task = asyncio.create_task(self._answer(request, asked, producer), name="preview")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(
        self, request: PreviewRequest, asked: Awaitable[Preview], producer: Producer[Any, Any]
    ) -> None:
        try:
            async with asyncio.timeout(ANSWER_S + 2):
                preview = await asked
        except TimeoutError:
            preview = Preview(error=f"Spark did not answer within {ANSWER_S:.0f} s: try again")
        answer = sealed(request, preview, self._env.clock.wall_ms(), self._env.random.bytes)
        if answer is None:
            return
        try:
            key = topics.preview_answer_key(request.id)
            await (await producer.send(topics.PREVIEWS, encode(answer), key=key, partition=0))
        except ClientError as error:
            _log.debug("cannot answer a request for a preview: %s", error)


async def _refused() -> Preview:
    return Preview(error=BUSY)


class PreviewDesk:
    """Requests that the driver of a pipeline has not answered yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Preview]] = {}

    async def ask(
        self, send: Callable[[Mapping[str, Any]], None], request: PreviewRequest, table: str
    ) -> Preview:
        waiting: asyncio.Future[Preview] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = waiting
        asked = {"id": request.id, "table": table, "limit": request.limit, "within_s": ANSWER_S}
        send({"preview": asked})
        try:
            return await waiting
        finally:
            self._waiting.pop(request.id, None)

    def answer(self, event: Mapping[str, Any]) -> None:
        """Takes an event of the driver."""
        waiting = self._waiting.get(str(event.get("id")))
        if waiting is not None and not waiting.done():
            waiting.set_result(preview_of(event))

    def close(self, why: str) -> None:
        """The driver has ended."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(Preview(error=why))
