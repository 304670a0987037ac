"""Reads from Spark what a recompute has to know of a pipeline, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.spark.pipelines.explain import short_name
from penstock.spark.pipelines.graph import TOPIC_FORMATS
from penstock.spark.pipelines.jvm import connect_session, items
from penstock.spark.pipelines.recompute_scope import PipelineParts, Source, has_watermark

_LEAVES_MAX: Final = 200


def pipeline_parts(classic: Any, session: Any, graph_id: str) -> PipelineParts:
    """Returns the tables, views, sinks and sources of a graph that is defined. Spark analyzes the
    flows for it, so a mistake in their code is raised here."""
    holder = connect_session(classic, session)
    defined = holder.dataflowGraphRegistry().getDataflowGraphOrThrow(graph_id)
    tables = {_name(table): bool(table.isStreamingTable()) for table in items(defined.tables())}
    sinks = {_name(sink) for sink in items(defined.sinks())}
    flows = {
        short_name(flow.identifier().unquotedString()): short_name(
            flow.destinationIdentifier().unquotedString()
        )
        for flow in items(defined.flows())
    }
    resolved = [*items(defined.toDataflowGraph().resolve(False).resolvedFlows())]
    return PipelineParts(
        streaming_tables=[name for name, streaming in tables.items() if streaming],
        views=[name for name, streaming in tables.items() if not streaming],
        sink_flows=[flow for flow, target in flows.items() if target in sinks],
        sources=[source for flow in resolved for source in _sources(flow)],
        watermarks=[
            short_name(flow.identifier().unquotedString())
            for flow in resolved
            if has_watermark(str(flow.df().queryExecution().analyzed().toString()))
        ],
    )


def table_identifiers(classic: Any, session: Any, graph_id: str) -> list[str]:
    """Returns Spark's identifiers of all tables and materialized views."""
    holder = connect_session(classic, session)
    defined = holder.dataflowGraphRegistry().getDataflowGraphOrThrow(graph_id)
    return [str(table.identifier().unquotedString()) for table in items(defined.tables())]


def _name(element: Any) -> str:
    return short_name(element.identifier().unquotedString())


def _sources(flow: Any) -> Iterator[Source]:
    """Yields the topics that a flow reads as streams."""
    leaves = flow.df().queryExecution().analyzed().collectLeaves()
    for leaf in items(leaves, _LEAVES_MAX):
        is_stream = leaf.getClass().getSimpleName() == "StreamingRelationV2"
        if is_stream and leaf.sourceName() in TOPIC_FORMATS:
            options = leaf.extraOptions()
            given = {str(name): str(options.get(name)) for name in options.keySet()}
            yield Source(short_name(flow.identifier().unquotedString()), given)
