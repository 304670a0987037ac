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
from penstock.spark.deployments.previews import Asking, Preview, PreviewAnswer, table_named
from penstock.spark.pipelines.graph import UNKNOWN_TOPICS
from penstock.topic_partition import TopicPartition

_WAIT_S: Final = 20.0
_POLL_MS: Final = 500
_AT_A_TIME_MAX: Final = 4
NO_ANSWER: Final = (
    "no worker has answered: rows are shown while the pipeline runs, by workers of this version"
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
        await self._check_rights(sources(graph, node))
        if not self._exists(topics.PREVIEWS):
            raise NotFound(
                f"the topic {topics.PREVIEWS} does not exist, or you may not describe it: a worker "
                "creates it when it starts"
            )
        if self._asking >= _AT_A_TIME_MAX:
            raise BadRequest("you wait for other previews already: try again in a moment")
        self._asking += 1
        try:
            found = await self._ask(name, node)
        finally:
            self._asking -= 1
        if found.error:
            raise NotFound(found.error)
        return asdict(found)

    async def _check_rights(self, read: frozenset[str]) -> None:
        missing = sorted(read - await self._link.readable(read)) if read else []
        if missing:
            raise NotAllowed(
                f"you have no right to read {', '.join(missing)}, from which the rows are made"
            )

    async def _ask(self, name: str, node: str) -> Preview:
        env = self._link.env
        asking = Asking(env.random.bytes)
        place = TopicPartition(topics.PREVIEWS, 0)
        async with self._link.consumer() as consumer:
            consumer.assign([place])
            consumer.seek(place, (await consumer.end_offsets([place]))[place])
            request = asking.request(name, node, env.clock.wall_ms())
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


def sources(graph: Graph, node: str) -> frozenset[str]:
    """Returns the topics from which the rows of a node are made, directly or by other nodes."""
    return frozenset(name for kind, name in _before(graph, node) if kind == "topic")


def unknown_sources(graph: Graph, node: str) -> str:
    """Returns why the topics from which a node is made are not all known; empty if they are."""
    if not graph["complete"]:
        return "the graph of the pipeline is too large"
    for kind, name in _before(graph, node):
        if kind == "pattern":
            return f"it reads all topics that match {name}; name the topics with subscribe"
        if kind == "source" and name.startswith(UNKNOWN_TOPICS):
            return f"the topics of a source are not known ({name})"
    return ""


def _before(graph: Graph, node: str) -> list[tuple[str, str]]:
    """Returns the kinds and names of a node and of all nodes from which it is made, sorted."""
    kinds = {each["id"]: (each["kind"], each["name"]) for each in graph["nodes"]}
    seen, left = {node}, [node]
    while left:
        at = left.pop()
        for edge in graph["edges"]:
            if edge["to"] == at and edge["from"] not in seen:
                seen.add(edge["from"])
                left.append(edge["from"])
    return sorted(kinds[each] for each in seen)
