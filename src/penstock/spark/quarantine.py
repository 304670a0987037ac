"""Where the rows of a flow go that it quarantines: a table of the pipeline, or a topic.

A flow of a declarative pipeline has one target. So the quarantined rows have a flow of their own,
NAME_quarantine, which reads the source once more and has its own checkpoint. Accepted and
quarantined rows are therefore never written in one transaction: each of the two flows has the
guarantees of its own target. A table of files is written exactly once. A topic is written at least
once, or exactly once with the options `delivery` and `sink`, as any other sink.

A record of a quarantine topic has the row as its value, with the column `violations`, and the name
of the flow in the header `penstock.flow`.

Spark reports a missing topic only when a task writes the first row. That may be months later, or
never, if brokers create topics by themselves. So the driver of a pipeline checks the topic when the
flow is defined (`topics_checked`). Tests of pipelines have no brokers and do not check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.options import SinkOptions

FLOW_HEADER: Final = "penstock.flow"
_BOOTSTRAP_SETTING: Final = "spark.penstock.bootstrap"
_BOOTSTRAP_OPTION: Final = "kafka.bootstrap.servers"
_FORMAT: Final = "penstock"

Check = Callable[[str, "SinkOptions"], None]
"""Called with the name of a flow and the options of the sink for its quarantine."""
_check: ContextVar[Check | None] = ContextVar("penstock quarantine check", default=None)
_SinkNames = dict[tuple[str, str], str]
"""Brokers and the name of a sink with exactly once -> the flow whose quarantine has it."""
_sink_names: ContextVar[_SinkNames | None] = ContextVar("penstock quarantine sinks", default=None)


class ExpectationInvalid(ValueError):
    """An expectation cannot be used as it is written."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The destination that an expectation names. All expectations of a flow share one."""

    table: str | None = None
    topic: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.table is not None and self.topic is not None:
            raise ExpectationInvalid(
                "quarantine_table and quarantine_topic are both given: a flow has one quarantine, "
                "so leave out one of them"
            )
        if self.topic is None:
            if self.options:
                raise ExpectationInvalid(
                    "quarantine_options are those of a topic: set quarantine_topic, too"
                )
            return
        if problem := _problem(self.topic):
            raise ExpectationInvalid(f"quarantine_topic={self.topic!r} cannot be used: {problem}")
        if "topic" in map(str.lower, self.options):
            raise ExpectationInvalid(
                "quarantine_options has the option topic: set quarantine_topic instead"
            )

    def joined(self, other: Quarantine, flow: str) -> Quarantine:
        """Returns the destination that two expectations of a flow name together."""
        if NONE in (self, other) or self == other:
            return other if self == NONE else self
        if self.topic is not None and self.topic == other.topic:
            raise ExpectationInvalid(
                f"{flow} names the quarantine topic {self.topic} twice, with different "
                "quarantine_options: name it in one expectation only"
            )
        raise ExpectationInvalid(
            f"{flow} has two quarantines, {self._described()} and {other._described()}: all "
            "expectations of a flow share one, so name it in one of them"
        )

    def _described(self) -> str:
        return f"the table {self.table}" if self.topic is None else f"the topic {self.topic}"


NONE: Final = Quarantine()
"""No destination is named: the table NAME_quarantine."""


def _problem(topic: str) -> str:
    """Returns why a topic cannot have this name; empty if it can."""
    # The validation of the brokers is slow to import, and few pipelines need it.
    from penstock.metadata.model import INTERNAL_TOPICS  # noqa: PLC0415 -- see above
    from penstock.metadata.topics import validate_topic_name  # noqa: PLC0415 -- see above
    from penstock.wire.errors import KafkaError  # noqa: PLC0415 -- see above

    if topic in INTERNAL_TOPICS:
        return "it is an internal topic of the cluster"
    try:
        validate_topic_name(topic)
    except KafkaError as error:
        return str(error)
    return ""


def define_topic(
    flow: str, quarantine: Quarantine, rows: Callable[[], DataFrame], session: Any
) -> None:
    """Defines the sink and the flow of a quarantine topic, in the pipeline that is being defined.

    Args:
        flow: the flow whose rows are quarantined.
        quarantine: the topic.
        rows: returns a stream of the quarantined rows, with the reasons.
        session: the Spark session of the pipeline.
    """
    from pyspark import pipelines  # noqa: PLC0415 -- scripts may not have Spark Connect

    from penstock.client.errors import OptionError  # noqa: PLC0415 -- see `_problem`
    from penstock.spark.options import parse_sink  # noqa: PLC0415 -- see `_problem`

    given = sink_options(quarantine, session)
    try:
        options = parse_sink(given)
    except OptionError as error:
        raise ExpectationInvalid(
            f"the quarantine topic of {flow} cannot be used: {error}"
        ) from None
    _take_name(flow, options)
    if (check := _check.get()) is not None:
        check(flow, options)
    sink = f"{flow}_quarantine_topic"
    pipelines.create_sink(sink, _FORMAT, given)
    pipelines.append_flow(target=sink, name=f"{flow}_quarantine")(lambda: as_records(flow, rows()))


def _take_name(flow: str, options: SinkOptions) -> None:
    """Raises `ExpectationInvalid` if the quarantine of another flow has the same sink name. Their
    transactions would have the same ids, so the two would fence each other again and again."""
    names = _sink_names.get()
    if names is None or not options.sink:
        return
    other = names.setdefault((options.bootstrap_servers, options.sink), flow)
    if other != flow:
        raise ExpectationInvalid(
            f"the quarantines of {other} and {flow} both have the sink {options.sink}, so each "
            "would fence the transactions of the other: give each of them its own name in "
            "quarantine_options"
        )


def sink_options(quarantine: Quarantine, session: Any) -> dict[str, str]:
    """Returns the options of the sink. The brokers are those of the pipeline unless the options
    name others."""
    from penstock.spark.options import QUARANTINE_OPTION  # noqa: PLC0415 -- see `_problem`

    given = {name: str(value) for name, value in quarantine.options.items()}
    names = {name.lower() for name in given}
    if not names & {_BOOTSTRAP_OPTION, "profile"}:
        given |= {_BOOTSTRAP_OPTION: session.conf.get(_BOOTSTRAP_SETTING, "")}
    if "valueformat" not in names:
        given |= {"valueFormat": "json"}
    if "kafka.allow.auto.create.topics" not in names:
        given |= {"kafka.allow.auto.create.topics": "false"}
    return given | {"topic": str(quarantine.topic), QUARANTINE_OPTION: "true"}


def as_records(flow: str, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf  # noqa: PLC0415 -- slow to import

    name = sf.struct(sf.lit(FLOW_HEADER).alias("key"), sf.lit(flow).cast("binary").alias("value"))
    return rows.select(sf.struct("*").alias("value"), sf.array(name).alias("headers"))


@contextmanager
def topics_checked(check: Check) -> Iterator[None]:
    """Calls `check` for every quarantine topic of the flows that are defined in the block. No two
    of them may have the same sink name."""
    token, names = _check.set(check), _sink_names.set({})
    try:
        yield
    finally:
        _sink_names.reset(names)
        _check.reset(token)
