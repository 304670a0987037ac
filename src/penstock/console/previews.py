"""Rows of the nodes in the graph of a deployed pipeline.

    topic      its newest records
    sink       the newest records of the topics that it writes
    table      rows of its newest file
    flow       what it writes: a table or a sink
    view       none: Spark computes it as a part of each flow that reads it
    source     none: it is outside of the cluster, or its topics are not known

Records are read with the rights of the user. For rows of a table, the console asks the worker that
runs the pipeline, through a topic (`penstock.spark.deployments`). They are made from the records of
topics, so only a user who may read all of those topics gets them. Nobody gets rows if the graph
says that these topics are not all known: a source with a pattern may also read topics that this
user cannot see. The graph cannot say it of everything: docs/PIPELINES.md (Rights) has the
exceptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from penstock.console.errors import BadRequest, NotAllowed, NotFound
from penstock.console.link import Link
from penstock.console.messages import Messages, Query
from penstock.console.shown import Format
from penstock.spark.deployments import topics
from penstock.spark.deployments.model import decode, encode
from penstock.spark.deployments.previews import (
    ROWS_MAX,
    Asking,
    Preview,
    PreviewAnswer,
    sources,
    table_named,
    unknown_sources,
)
from penstock.spark.pipelines.graph import TOPIC_FORMATS
from penstock.topic_partition import TopicPartition

TOPICS_MAX: Final = 5
"""A sink rarely writes more than one topic."""
_WAIT_S: Final = 20.0
_POLL_MS: Final = 500
_AT_A_TIME_MAX: Final = 4
NO_ANSWER: Final = (
    "no worker answered. Rows can be shown only while the pipeline runs, on a worker of the "
    "console's version"
)

_RECORD_COLUMNS: Final = (
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "long"),
    ("time (UTC)", "timestamp"),
    ("key", ""),
    ("value", ""),
)
_WITHOUT_ROWS: Final = {
    "view": "Spark computes a view as a part of each flow that reads it: look at the tables that "
    "are made from it",
    "pattern": "it stands for all topics that match it: look at one of them",
    "source": "it is not in the cluster: look at the tables that are made from it",
}
Graph = Mapping[str, Any]


class Previews:
    """`graph` returns the graph of a pipeline's last run. `check_runs` raises `NotFound` if it has
    no driver that could read rows."""

    def __init__(
        self,
        link: Link,
        messages: Messages,
        graph: Callable[[str], Graph],
        check_runs: Callable[[str], None],
        exists: Callable[[str], bool],
    ) -> None:
        self._link = link
        self._messages = messages
        self._graph = graph
        self._check_runs = check_runs
        self._exists = exists
        self._asking = 0

    async def rows(self, name: str, node: str) -> dict[str, Any]:
        graph = self._graph(name)
        shown = _shown_by(graph, node)
        if isinstance(shown, frozenset):
            return await self._records(shown)
        self._check_runs(name)
        return {**await self._table(graph, name, shown), "of": f"table {table_named(graph, shown)}"}

    async def _records(self, names: frozenset[str]) -> dict[str, Any]:
        """Returns the newest records of topics, the newest first."""
        readable = await self._link.readable(names)
        if missing := sorted(names - readable):
            raise NotAllowed(f"you may not read {', '.join(missing)}, or it does not exist yet")
        query = Query(None, "newest", 0, ROWS_MAX, lambda _: True, False, Format())
        found = [
            (record["timestamp"], topic, record)
            for topic in sorted(names)
            for record in (await self._messages.browse(topic, query))["records"]
        ]
        found.sort(key=lambda each: each[0], reverse=True)
        return {
            "of": f"topic {', '.join(sorted(names))}",
            "columns": _RECORD_COLUMNS,
            "rows": [_cells(topic, record) for _, topic, record in found[:ROWS_MAX]],
            "error": "",
        }

    async def _table(self, graph: Graph, name: str, node: str) -> dict[str, Any]:
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


def _shown_by(graph: Graph, node: str) -> str | frozenset[str]:
    """Returns the id of the table whose rows are shown for a node, or the topics whose records
    are."""
    found = {each["id"]: each for each in graph["nodes"]}
    after: dict[str, list[str]] = {}
    for edge in graph["edges"]:
        after.setdefault(edge["from"], []).append(edge["to"])
    if found.get(node, {}).get("kind") == "flow":
        node = next(iter(after.get(node, ())), node)
    if node not in found:
        raise BadRequest(f"{node} is not in the graph of the pipeline: load the page again")
    kind, name = found[node]["kind"], found[node]["name"]
    match kind:
        case "table":
            return node
        case "topic":
            return frozenset((name,))
        case "sink":
            written = [found[each] for each in after.get(node, ())]
            topics_written = [each["name"] for each in written if each["kind"] == "topic"]
            if not topics_written:
                form = found[node].get("format")
                if not form or form in TOPIC_FORMATS:
                    raise BadRequest(
                        f"it is not known which topics {name} writes: a sink of a script does not "
                        "say it, nor one whose records name their topics. Look at these topics"
                    )
                raise BadRequest(
                    f"{name} writes to no topic (format {form}): look where it writes to"
                )
            return frozenset(topics_written[:TOPICS_MAX])
    raise BadRequest(f"{kind} {name}: {_WITHOUT_ROWS.get(kind, 'it writes nothing yet')}")


def _cells(topic: str, record: Mapping[str, Any]) -> list[str | None]:
    """Returns the row of a record of the messages page."""
    shown = [
        None if part["kind"] == "null" else part["text"] + "\N{HORIZONTAL ELLIPSIS}" * part["cut"]
        for part in (record["key"], record["value"])
    ]
    at = _time(record["timestamp"])
    return [topic, str(record["partition"]), str(record["offset"]), at, *shown]


def _time(at_ms: int) -> str:
    """Clients choose the timestamps of records, also such as no calendar has."""
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    return at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
