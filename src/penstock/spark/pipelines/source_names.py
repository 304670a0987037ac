"""Adds options to the topics that a flow reads as streams, while the flow is defined.

`flow` is the name of the flow. A backfill is for one flow, but Spark tells a source nothing about
its query. A source in a view has the name of the view.

`maxBytesPerTrigger` is added in a recompute. It reads topics from the beginning, and a source
without a limit would read all of them as one micro-batch: its state and shuffles would have to fit
on the machine of the running pipeline, and a crash would repeat everything.

Options that the project itself gives are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.spark.pipelines.explain import short_name

OPTION: Final = "flow"
LIMIT: Final = "maxBytesPerTrigger"
_LIMITS: Final = frozenset({"maxbytespertrigger", "maxoffsetspertrigger"})
_FORMAT: Final = "penstock"


class NamingClient:
    """A Connect client that names the sources of the flows which it defines, and limits them."""

    def __init__(self, client: Any, limit: str = "") -> None:
        """`limit`: the size of a micro-batch for sources without a limit; empty: any size."""
        self._client = client
        self._limit = limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def execute_command(self, command: Any, *args: Any, **more: Any) -> Any:
        if command.HasField("pipeline_command"):
            pipeline = command.pipeline_command
            if pipeline.HasField("define_flow"):
                name_sources(pipeline.define_flow, short_name(pipeline.define_flow.flow_name))
                if self._limit:
                    limit_sources(pipeline.define_flow, self._limit)
        return self._client.execute_command(command, *args, **more)


def name_sources(plan: Any, flow: str) -> None:
    """Adds the name to the options of all streams of topics in a plan."""
    for source in _topic_streams(plan):
        if OPTION not in map(str.lower, source.options):
            source.options[OPTION] = flow


def limit_sources(plan: Any, size: str) -> None:
    """Adds the limit to the options of all streams of topics in a plan that have none."""
    for source in _topic_streams(plan):
        if _LIMITS.isdisjoint(map(str.lower, source.options)):
            source.options[LIMIT] = size


def _topic_streams(plan: Any) -> Iterator[Any]:
    for message in _messages(plan):
        is_stream = message.DESCRIPTOR.name == "Read" and message.is_streaming
        if is_stream and message.data_source.format.lower() == _FORMAT:
            yield message.data_source


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
