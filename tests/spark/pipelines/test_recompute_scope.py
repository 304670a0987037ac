"""Tests which tables can be computed again, and what is known of a pipeline without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.spark.deployments.flow_fingerprints import project_flows
from penstock.spark.deployments.flow_sources import ProjectCode
from penstock.spark.deployments.generations import RecomputeOrder
from penstock.spark.deployments.model import Deployment, Status, Version
from penstock.spark.deployments.recompute_parts import (
    project_parts,
    running_flows,
    running_parts,
    topics_read,
)
from penstock.spark.deployments.recompute_requests import check_recompute
from penstock.spark.pipelines.recompute_scope import (
    PipelineParts,
    RecomputeRefused,
    Source,
    check_scope,
)

EARLIEST = {"subscribe": "views", "startingOffsets": "earliest"}
CODE = """
from pyspark import pipelines as dp

dp.create_sink("out", "penstock", {"topic": "alerts"})
dp.create_streaming_table("all_views")


@dp.table
def page_views():
    return spark.readStream.format("penstock").option("subscribe", "views").load()


@dp.append_flow(target="all_views")
def old_views():
    return spark.readStream.format("penstock").option("subscribe", "old").load()


@dp.materialized_view
def per_page():
    return spark.read.table("page_views")


@dp.append_flow(target="out")
def alerts():
    return spark.readStream.table("page_views")
"""
GRAPH: dict[str, Any] = {
    "nodes": [
        {"id": "topic:views", "kind": "topic", "name": "views"},
        {"id": "topic:alerts", "kind": "topic", "name": "alerts"},
        {"id": "table:page_views", "kind": "table", "name": "page_views", "flow": "page_views"},
        {"id": "table:all_views", "kind": "table", "name": "all_views"},
        {"id": "table:per_page", "kind": "table", "name": "per_page", "flow": "per_page"},
        {"id": "table:elsewhere", "kind": "table", "name": "elsewhere"},
        {"id": "flow:old_views", "kind": "flow", "name": "old_views", "flow": "old_views"},
        {"id": "flow:alerts", "kind": "flow", "name": "alerts", "flow": "alerts"},
        {"id": "sink:out", "kind": "sink", "name": "out"},
    ],
    "edges": [
        {"from": "topic:views", "to": "table:page_views"},
        {"from": "flow:old_views", "to": "table:all_views"},
        {"from": "table:page_views", "to": "table:per_page"},
        {"from": "table:elsewhere", "to": "table:per_page"},
        {"from": "flow:alerts", "to": "sink:out"},
        {"from": "sink:out", "to": "topic:alerts"},
    ],
}
PARTS = PipelineParts(["all_views", "page_views"], ["per_page"], ["alerts"])


def refusal(
    parts: PipelineParts, named: Sequence[str], running: Sequence[str] = ("page_views",)
) -> str:
    with pytest.raises(RecomputeRefused) as refused:
        check_scope(parts, named, running)
    return str(refused.value)


def test_all_streaming_tables_must_be_named() -> None:
    text = refusal(PARTS, ["page_views"])
    assert "add the tables all_views" in text
    assert "Name all_views,page_views," in text
    check_scope(PARTS, ["page_views", "all_views"], ["page_views"])
    check_scope(PARTS, ["page_views", "all_views", "per_page"], ["page_views"])


def test_a_table_must_exist() -> None:
    text = refusal(PARTS, ["pageviews"])
    assert text == "there is no table pageviews: the tables are all_views, page_views, per_page"


def test_records_are_not_written_to_a_topic_again() -> None:
    text = refusal(PARTS, ["page_views", "all_views"], ["page_views", "alerts"])
    assert text.startswith("alerts writes to a topic, and would write its records again")


@pytest.mark.parametrize(
    "options",
    [
        EARLIEST,
        {"subscribe": "views", "startingoffsets": '{"views": {"0": 7}}'},
        {"subscribe": "views", "startingTimestamp": "1700000000000"},
        {"subscribe": "views", "startingOffsetsByTimestamp": '{"views": {"0": 1}}'},
    ],
)
def test_a_source_says_where_to_begin(options: dict[str, str]) -> None:
    check_scope(PipelineParts(["a"], [], [], [Source("a", options)]), ["a"], [])


@pytest.mark.parametrize(
    "options", [{"subscribe": "views"}, {"subscribe": "views", "startingOffsets": "latest"}]
)
def test_a_table_is_not_replaced_by_an_empty_one(options: dict[str, str]) -> None:
    text = refusal(PipelineParts(["a"], [], [], [Source("a", options)]), ["a"])
    assert "set startingOffsets to earliest" in text


def test_bad_records_are_not_sent_again() -> None:
    options = {**EARLIEST, "badRecords": "deadletter", "deadLetterTopic": "bad"}
    text = refusal(PipelineParts(["a"], [], [], [Source("a", options)]), ["a"])
    assert "sends bad records to the topic bad" in text


def test_the_parts_of_a_project_by_its_code() -> None:
    assert project_parts({"a.py": CODE}, ["a.py"]) == PARTS


def test_a_quarantine_is_a_table_or_writes_to_a_topic() -> None:
    kept = '@expect("id", "id > 0", on_violation="quarantine")\n'
    code = CODE.replace("def page_views", kept + "def page_views")
    parts = project_parts({"a.py": code}, ["a.py"])
    assert parts is not None
    assert parts.streaming_tables == ["all_views", "page_views", "page_views_quarantine"]
    sent = code.replace('="quarantine"', '="quarantine", quarantine_topic="bad"')
    parts = project_parts({"a.py": sent}, ["a.py"])
    assert parts is not None
    assert parts.streaming_tables == ["all_views", "page_views"]
    assert parts.sink_flows == ["alerts", "page_views_quarantine"]


EXPECTED = """
from penstock.spark import expect
from penstock.spark import expect as other
from rules import checked, quality

KIND = "quarantine"
BAD = "bad"
ALSO = KIND
OPTIONS = {"on_violation": KIND, "quarantine_topic": "bad"}
MORE = dict(on_violation="quarantine", quarantine_topic="bad")
mine = expect("id", "id > 0", KIND, quarantine_topic=BAD)
renamed = other


DECORATORS
def seen():
    return spark.readStream.format("penstock").option("subscribe", "views").load()
"""
RULES = """
import penstock.spark
from penstock.spark import expect as demand

quality = penstock.spark.expect("id", "id > 0", "quarantine", quarantine_topic="bad")


def checked(function):
    return demand("id", "id > 0", "quarantine", quarantine_topic="bad")(function)
"""


def expected_code(decorators: str) -> ProjectCode:
    code = EXPECTED.replace("DECORATORS", decorators)
    # A decorator that is not used would be reported, too.
    rules = RULES if "checked" in decorators else RULES.partition("def checked")[0]
    for unused in ("mine", "quality"):
        if f"@{unused}" not in decorators:
            code, rules = (
                text.replace(f"{unused} = ", f"{unused} = 1 #") for text in (code, rules)
            )
    return ProjectCode({"a.py": code, "rules.py": rules})


def flow_names(code: ProjectCode) -> list[str]:
    return [flow.name for flow in code.flows(["a.py"])]


@pytest.mark.parametrize(
    "decorators",
    [
        '@dp.table\n@expect("id", "id > 0", "quarantine", quarantine_topic="bad")',
        '@dp.temporary_view\n@expect("id", "id > 0", "quarantine", quarantine_topic="bad")',
        "@dp.table\n@quality",
        "@dp.table\n@mine",
        '@dp.table\n@expect("id", "id > 0", on_violation=ALSO, quarantine_topic=BAD)',
        '@dp.table\n@other("id", "id > 0", "quarantine", quarantine_topic="bad")',
        '@dp.table\n@renamed("id", "id > 0", "quarantine", quarantine_topic="bad")',
        '@dp.table\n@expect("id", "id > 0", **OPTIONS)',
        '@dp.table\n@expect("id", "id > 0", **MORE)',
    ],
)
def test_the_flow_of_a_quarantine_is_found(decorators: str) -> None:
    code = expected_code(decorators)
    assert "seen_quarantine" in flow_names(code)
    assert "seen_quarantine_topic" in code.sinks
    assert code.unnamed == []


@pytest.mark.parametrize(
    ("decorators", "named"),
    [
        ('@dp.table\n@expect("id", "id > 0", on_violation=chosen())', "seen"),
        ('@dp.table\n@expect("id", "id > 0", **chosen())', "seen"),
        ("@dp.table\n@expect(*chosen())", "seen"),
        ("@dp.table\n@checked", "checked"),
        ("@dp.table\n@partial(expect, 'id')('id > 0', 'quarantine')", "seen"),
    ],
)
def test_an_expectation_that_is_not_understood_is_reported(decorators: str, named: str) -> None:
    code = expected_code(decorators)
    assert "seen_quarantine" not in flow_names(code)
    assert named in code.unnamed


def test_an_expectation_that_keeps_its_rows_here_is_no_quarantine() -> None:
    code = expected_code('@dp.table\n@expect("id", "id > 0")\n@other("a", "a > 0", "drop")')
    assert (flow_names(code), code.unnamed) == (["seen"], [])


def test_flows_to_topics_that_only_the_graph_shows_are_running_flows() -> None:
    """Otherwise they would count as new, and start again from the beginning after the swap."""
    assert running_flows(["page_views"], GRAPH, {}, None) == ["alerts", "page_views"]
    deployment = Deployment("shop", 1, 1, first_version=1)
    version = Version("shop", 1, "project", "spark-pipeline.yml", "h", 1, flows={"page_views": ""})
    status = Status("shop", "RUNNING", 1, 1, run={"graph": GRAPH})
    order = RecomputeOrder(("page_views", "all_views"), "manual", 1)
    with pytest.raises(RecomputeRefused, match="alerts writes to a topic"):
        check_recompute(deployment, version, PARTS, order, status)
    check_recompute(deployment, version, PARTS, order, None)


def test_computed_names_are_left_to_spark() -> None:
    code = CODE + "\nfor n in 'ab':\n    @dp.table(name=n)\n    def made():\n        return 1\n"
    assert project_parts({"a.py": code}, ["a.py"]) is None


def test_the_parts_of_a_pipeline_by_its_graph() -> None:
    flows, _ = project_flows({"a.py": CODE}, ["a.py"], "home")
    assert running_parts(GRAPH, flows) == PARTS
    assert topics_read(GRAPH) == ["views"], "not those that are written"


@pytest.mark.parametrize("graph", [{}, {"nodes": [1]}, {"nodes": [{}], "edges": []}])
def test_a_graph_that_is_not_known(graph: dict[str, Any]) -> None:
    assert running_parts(graph, {}) is None
    assert topics_read(graph) == []
