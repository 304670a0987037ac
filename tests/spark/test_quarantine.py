"""Tests the destinations of quarantined rows, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.admin.operations import TopicInfo
from penstock.client.errors import BrokerError, TopicNotFound
from penstock.spark.encoding import Encoder
from penstock.spark.expectations import expect
from penstock.spark.options import SinkOptions, parse_sink
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.quarantine_topics import TopicCheck
from penstock.spark.quarantine import (
    NONE,
    ExpectationInvalid,
    Quarantine,
    define_topic,
    sink_options,
    topics_checked,
)
from penstock.wire.errors import ErrorCode


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quarantine_topic": ""}, "A topic name cannot be empty"),
        ({"quarantine_topic": "bad views"}, "characters other than a-z"),
        ({"quarantine_topic": "x" * 250}, "use at most 249"),
        ({"quarantine_topic": "__consumer_offsets"}, "it is an internal topic"),
        ({"quarantine_topic": "bad", "quarantine_table": "bad"}, "leave out one of them"),
        ({"quarantine_options": {"delivery": "exactly_once"}}, "set quarantine_topic, too"),
        (
            {"quarantine_topic": "bad", "quarantine_options": {"Topic": "worse"}},
            "set quarantine_topic instead",
        ),
    ],
)
def test_a_destination_that_cannot_be_used_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ExpectationInvalid, match=message):
        expect("has_id", "id IS NOT NULL", on_violation="quarantine", **given)


def test_the_expectations_of_a_flow_share_one_quarantine() -> None:
    bad = Quarantine(topic="bad")
    assert bad.joined(NONE, "views") == NONE.joined(bad, "views") == bad.joined(bad, "views") == bad
    with pytest.raises(
        ExpectationInvalid, match="views has two quarantines, the topic bad and the table worse"
    ):
        bad.joined(Quarantine(table="worse"), "views")

    with pytest.raises(
        ExpectationInvalid, match="views names the quarantine topic bad twice, with different quar"
    ):
        bad.joined(Quarantine(topic="bad", options={"delivery": "exactly_once"}), "views")

    def views() -> Any:
        raise AssertionError("is not called")

    inner = expect("has_id", "id > 0", "quarantine", quarantine_topic="bad")(views)
    assert expect("has_page", "page > ''", "quarantine")(inner).quarantine == bad


def test_a_topic_that_gets_no_rows_is_reported() -> None:
    @expect("has_id", "id > 0", on_violation="drop", quarantine_topic="bad")
    def views() -> Any:
        return None

    with pytest.raises(ExpectationInvalid, match="views has a quarantine_topic, but no expect"):
        views()


class FakeSession:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self.conf = settings


BROKER = "kafka.bootstrap.servers"
NUMBER = pa.struct([("a", pa.float64())])
NUMBERS = pa.struct([("list", pa.list_(NUMBER)), ("map", pa.map_(pa.string(), NUMBER))])


def test_the_sink_writes_json_to_the_brokers_of_the_pipeline() -> None:
    """It does not let brokers create the topic: a misspelled name would go unnoticed."""
    session = FakeSession({"spark.penstock.bootstrap": "b:1"})
    options = parse_sink(sink_options(Quarantine(topic="bad"), session))
    assert (options.bootstrap_servers, options.topic) == ("b:1", "bad")
    assert (options.formats.value, options.delivery) == ("json", "at_least_once")
    assert options.client == {"allow_auto_create_topics": "false"}


def test_options_of_the_sink_can_be_given() -> None:
    given = {BROKER: "other:1", "delivery": "exactly_once", "sink": "shop-bad"}
    quarantine = Quarantine(topic="bad", options=given | {"valueFormat": "avro"})
    with_schema = sink_options(quarantine, FakeSession({})) | {"valueSchema": "{}"}
    options = parse_sink(with_schema)
    assert (options.bootstrap_servers, options.formats.value) == ("other:1", "avro")
    assert (options.delivery, options.sink) == ("exactly_once", "shop-bad")


def test_the_sink_writes_numbers_that_json_does_not_have() -> None:
    """Otherwise one NaN would stop the flow of a quarantine for good."""
    quarantine = Quarantine(topic="bad", options={BROKER: "b:1"})
    options = parse_sink(sink_options(quarantine, FakeSession({})))
    rows = [{"a": 0.5}, {"a": float("nan")}, {"a": float("inf")}, {"a": float("-inf")}, {"a": None}]
    column = pa.array([{"list": [row, None], "map": [("k", row)]} for row in rows], NUMBERS)
    encoded = Encoder(options).encode(pa.RecordBatch.from_pydict({"value": column}))
    assert [value.decode() for value in encoded.column("value").to_pylist()] == [
        f'{{"list":[{{"a":{text}}},null],"map":{{"k":{{"a":{text}}}}}}}'
        for text in ("0.5", '"NaN"', '"Infinity"', '"-Infinity"', "null")
    ]


@pytest.fixture
def defined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sinks that are defined."""
    pipelines = pytest.importorskip("pyspark.pipelines", reason="needs Spark Connect")
    sinks: list[str] = []
    monkeypatch.setattr(pipelines, "create_sink", lambda name, *_: sinks.append(name))
    monkeypatch.setattr(pipelines, "append_flow", lambda **_: lambda _function: None)
    return sinks


def define(flow: str, sink: str, broker: str = "b:1") -> None:
    options = {BROKER: broker, "delivery": "exactly_once", "sink": sink}
    rows: Any = None
    define_topic(flow, Quarantine(topic="bad", options=options), rows, FakeSession({}))


def test_two_quarantines_cannot_have_one_sink_name(defined: list[str]) -> None:
    """They would fence each other for ever. In every round they are defined anew."""
    for _ in range(2):
        with topics_checked(lambda *_: None):
            define("views", "shop-bad")
            define("clicks", "shop-bad-clicks")
            define("orders", "shop-bad", broker="other:1")
            with pytest.raises(ExpectationInvalid, match="of views and sales both have the sink "):
                define("sales", "shop-bad")
    assert defined == [f"{flow}_quarantine_topic" for flow in ("views", "clicks", "orders")] * 2


class FakeAdmin:
    def __init__(self, *answers: TopicInfo | BrokerError) -> None:
        self._answers = list(answers)

    @contextmanager
    def opened(self, _options: SinkOptions) -> Iterator[FakeAdmin]:
        yield self

    def describe_topics(self, names: Sequence[str]) -> Mapping[str, TopicInfo | BrokerError]:
        return {name: self._answers.pop(0) for name in names}


OPTIONS = SinkOptions("b:1", "bad")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (TopicNotFound("bad"), "topic bad .* of views does not exist: .*penstock topic create bad"),
        (
            BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            "this user may not see the topic bad .*`penstock acl add .* topic:bad`",
        ),
        (BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION), "the quarantined rows of views: "),
    ],
)
def test_a_topic_that_cannot_be_used_is_reported(answer: BrokerError, message: str) -> None:
    """Each time: it may have been created meanwhile."""
    check = TopicCheck(FakeAdmin(answer, answer).opened)
    for _ in range(2):
        with pytest.raises(PipelineError, match=message):
            check("views", OPTIONS)


def test_a_topic_that_exists_is_asked_for_once() -> None:
    """The fake has only one answer."""
    check = TopicCheck(FakeAdmin(TopicInfo("bad", "id", False, ())).opened)
    check("views", OPTIONS)
    check("clicks", OPTIONS)
