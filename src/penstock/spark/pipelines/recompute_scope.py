"""Checks whether the tables of a pipeline can be computed again beside the running one. Pure.

A recompute has a storage of its own, so it computes all streaming tables of the pipeline. Each must
be named, because it reads its topics from the beginning, and what retention has deleted there will
be missing. Materialized views are computed in every round anyway. Refused are

- a streaming table that is not named;
- a flow of the running version that writes to a topic: its records would be written again, and a
  topic cannot be swapped. A flow that is new begins after the swap;
- a source that does not begin at the beginning: the new table would be empty;
- a source that sends bad records to a topic: they would be sent again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.spark.pipelines.errors import PipelineError

_WATERMARK: Final = "EventTimeWatermark"
"""The name of the node in Spark's plans, also as a part of other names."""


class RecomputeRefused(PipelineError):
    """The tables cannot be computed again, and another attempt has the same result."""


@dataclass(frozen=True, slots=True)
class Source:
    """A topic source that a flow reads as a stream."""

    flow: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """What is known of a pipeline. All names are short: without catalog and database."""

    streaming_tables: Collection[str]
    views: Collection[str]
    """Materialized views."""
    sink_flows: Collection[str]
    sources: Sequence[Source] = field(default_factory=list)
    watermarks: Sequence[str] = field(default_factory=list)
    """Flows whose plan has a watermark."""


def check_scope(
    parts: PipelineParts, named: Collection[str], running_flows: Collection[str]
) -> None:
    """Raises `RecomputeRefused`.

    Args:
        parts: the pipeline that computes the tables.
        named: the tables that the user has named.
        running_flows: the flows of the version that runs.
    """
    known = {*parts.streaming_tables, *parts.views}
    if unknown := sorted(set(named) - known):
        raise RecomputeRefused(
            f"there is no table {unknown[0]}: the tables are {', '.join(sorted(known)) or 'none'}"
        )
    if missing := sorted(set(parts.streaming_tables) - set(named)):
        everything = ",".join(sorted({*named, *missing}))
        raise RecomputeRefused(
            f"add the tables {', '.join(missing)}: all streaming tables of a pipeline are "
            f"recomputed together. Name {everything}, or move these tables to a pipeline of their "
            "own"
        )
    if again := sorted(set(parts.sink_flows) & set(running_flows)):
        raise RecomputeRefused(
            f"{', '.join(again)} writes to a topic, and would write its records again. Move it to "
            "a pipeline of its own, or give it a new name and a new topic: then it starts after "
            "the swap"
        )
    for source in parts.sources:
        _check_source(source)


def batch_limit(parts: PipelineParts, limit: str) -> str:
    """Returns the limit of a micro-batch for sources without one; empty: no limit.

    A limit divides the records by their offsets and not by their time. The first batches may have
    all old records of one partition and few of another. The watermark then follows the first one,
    and Spark drops the rows of the other one as late. Without a limit, one batch has all of them.
    """
    return "" if parts.watermarks else limit


def has_watermark(plan: str) -> bool:
    """Returns whether the text of an analyzed plan has a watermark. A column or a literal of this
    name counts, too: without the limit nothing is lost."""
    return _WATERMARK in plan


def _check_source(source: Source) -> None:
    given = {name.lower(): value for name, value in source.options.items()}
    start = given.get("startingoffsets", "latest").strip()
    by_time = given.get("startingtimestamp") or given.get("startingoffsetsbytimestamp")
    if not by_time and start.lower() == "latest":
        raise RecomputeRefused(
            f"{source.flow} reads its topic from the end (startingOffsets is latest), so the new "
            "table would be empty: set startingOffsets to earliest"
        )
    if topic := given.get("deadlettertopic"):
        raise RecomputeRefused(
            f"{source.flow} sends bad records to the topic {topic}, and would send them again: use "
            "badRecords=column in the version that recomputes the tables"
        )
