"""Rows of the tables of deployed pipelines.

The console asks the worker that runs the pipeline, through a topic (`penstock.spark.deployments`).
The rows of a table are made from the records of topics, so only a user who may read all of those
topics gets them. Nobody gets rows if it is not known which topics these are: a source with a
pattern may also read topics that this user cannot see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from penstock.console.errors import BadRequest, NotAllowed, NotFound
from penstock.console.link import Link
from penstock.spark.deployments import topics
from penstock.spark.deployments.model import decode, encode
from penstock.spark.deployments.previews import (
    Asking,
    Preview,
    PreviewAnswer,
    sources,
    table_named,
    unknown_sources,
)
from penstock.topic_partition import TopicPartition

_WAIT_S: Final = 20.0
_POLL_MS: Final = 500
_AT_A_TIME_MAX: Final = 4
NO_ANSWER: Final = (
    "no worker answered. Rows can be shown only while the pipeline runs, on a worker of the "
    "console's version"
)

Graph = Mapping[str, Any]


class Previews:
    """`graph` returns the graph of a pipeline's last run, or raises `NotFound`."""

    def __init__(
        self, link: Link, graph: Callable[[str], Graph], exists: Callable[[str], bool]
    ) -> None:
        self._link = link
        self._graph = graph
        self._exists = exists
        self._asking = 0

    async def rows(self, name: str, node: str) -> dict[str, Any]:
        graph = self._graph(name)
        if not table_named(graph, node):
            raise BadRequest(f"{node} is not a table of {name}: choose a table in its graph")
        if unknown := unknown_sources(graph, node):
            raise NotAllowed(
                f"the console cannot check that you may read all topics from which {node} is made: "
                f"{unknown}"
            )
        readable = sources(graph, node)
        await self._check_rights(readable)
        if not self._exists(topics.PREVIEWS):
            raise NotFound(
                f"the topic {topics.PREVIEWS} does not exist, or you may not describe it: a worker "
                "creates it when it starts"
            )
        if self._asking >= _AT_A_TIME_MAX:
            raise BadRequest("you are already waiting for other previews: try again in a moment")
        self._asking += 1
        try:
            found = await self._ask(name, node, readable)
        finally:
            self._asking -= 1
        if found.error:
            raise NotFound(found.error)
        return asdict(found)

    async def _check_rights(self, read: frozenset[str]) -> None:
        missing = sorted(read - await self._link.readable(read)) if read else []
        if missing:
            raise NotAllowed(
                f"you may not read {', '.join(missing)}, which these rows are made from: ask an "
                "administrator for Read"
            )

    async def _ask(self, name: str, node: str, readable: frozenset[str]) -> Preview:
        env = self._link.env
        asking = Asking(env.random.bytes)
        place = TopicPartition(topics.PREVIEWS, 0)
        async with self._link.consumer() as consumer:
            consumer.assign([place])
            consumer.seek(place, (await consumer.end_offsets([place]))[place])
            request = asking.request(name, node, env.clock.wall_ms(), readable)
            await self._link.ask_preview(topics.preview_request_key(name), encode(request))
            try:
                async with asyncio.timeout(_WAIT_S):
                    while True:
                        for record in await consumer.poll(timeout_ms=_POLL_MS):
                            answer = decode(PreviewAnswer, record.value)
                            found = None if answer is None else asking.opened(answer)
                            if found is not None:
                                return found
            except TimeoutError:
                raise NotFound(NO_ANSWER) from None
