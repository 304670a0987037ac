"""Tells the topics that a flow reads as streams to which flow they belong.

A backfill is for one flow, but Spark tells a source nothing about its query. So the name of the
flow is added to the options of its sources, while the flow is defined. A source in a view has the
name of the view. An option `flow` that the project itself gives is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.spark.pipelines.explain import short_name

OPTION: Final = "flow"
_FORMAT: Final = "penstock"


class NamingClient:
    """A Connect client that names the sources of the flows which it defines."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def execute_command(self, command: Any, *args: Any, **more: Any) -> Any:
        if command.HasField("pipeline_command"):
            pipeline = command.pipeline_command
            if pipeline.HasField("define_flow"):
                name_sources(pipeline.define_flow, short_name(pipeline.define_flow.flow_name))
        return self._client.execute_command(command, *args, **more)


def name_sources(plan: Any, flow: str) -> None:
    """Adds the name to the options of all streams of topics in a plan."""
    for message in _messages(plan):
        if message.DESCRIPTOR.name != "Read" or not message.is_streaming:
            continue
        source = message.data_source
        if source.format.lower() == _FORMAT and OPTION not in map(str.lower, source.options):
            source.options[OPTION] = flow


def _messages(message: Any) -> Iterator[Any]:
    """Yields all messages in a message. Not recursive: a plan may be deep."""
    waiting = [message]
    while waiting:
        current = waiting.pop()
        yield current
        for field, value in current.ListFields():
            if field.message_type is None or field.message_type.GetOptions().map_entry:
                continue
            waiting.extend([value] if hasattr(value, "ListFields") else list(value))
