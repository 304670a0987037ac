"""Tests how sources learn the name of their flow."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("grpc", reason='pipelines need PySpark: pip install "penstock[spark]"')

import pyspark.sql.connect.proto as messages

from penstock.spark.pipelines.source_names import NamingClient


class Client:
    """Keeps the commands that it is given."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.host = "here"

    def execute_command(self, command: Any) -> None:
        self.commands.append(command)


def read(form: str = "penstock", *, streaming: bool = True, **options: str) -> Any:
    source = messages.Read.DataSource(format=form, options=options)
    return messages.Relation(read=messages.Read(data_source=source, is_streaming=streaming))


def options_of(relation: Any) -> dict[str, str]:
    return dict(relation.read.data_source.options)


def defined(relation: Any, limit: str = "") -> Any:
    command = messages.Command()
    flow = command.pipeline_command.define_flow
    flow.flow_name = "spark_catalog.default.copied"
    flow.relation_flow_details.relation.CopyFrom(relation)
    client = Client()
    NamingClient(client, limit).execute_command(command)
    return client.commands[0].pipeline_command.define_flow.relation_flow_details.relation


def test_all_streams_of_topics_in_a_flow_have_its_name() -> None:
    plan = messages.Relation()
    plan.filter.input.set_op.left_input.CopyFrom(read(subscribe="a"))
    plan.filter.input.set_op.right_input.CopyFrom(read(subscribe="b"))
    union = defined(plan).filter.input.set_op
    assert options_of(union.left_input) == {"subscribe": "a", "flow": "copied"}
    assert options_of(union.right_input) == {"subscribe": "b", "flow": "copied"}


@pytest.mark.parametrize(
    "relation",
    [read("rate"), read(streaming=False), read(Flow="mine")],
    ids=["another format", "a batch", "named by the project"],
)
def test_other_sources_are_left_alone(relation: Any) -> None:
    assert defined(relation) == relation


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, "256m"),
        ({"maxBytesPerTrigger": "1m"}, "1m"),
        ({"maxbytespertrigger": "1m"}, None),
        ({"maxOffsetsPerTrigger": "9"}, None),
    ],
)
def test_a_recompute_limits_sources_without_a_limit(
    given: dict[str, str], limit: str | None
) -> None:
    """Otherwise all records since the beginning would be one micro-batch."""
    relation = read(subscribe="a")
    relation.read.data_source.options.update(given)
    found = options_of(defined(relation, "256m"))
    assert found.get("maxBytesPerTrigger") == limit
    assert options_of(defined(read(subscribe="a"))) == {"subscribe": "a", "flow": "copied"}


def test_a_recompute_leaves_other_sources_alone() -> None:
    for relation in (read("rate"), read(streaming=False)):
        assert defined(relation, "256m") == relation


def test_other_commands_and_attributes_are_passed_on() -> None:
    client = Client()
    naming = NamingClient(client)
    command = messages.Command()
    naming.execute_command(command)
    assert client.commands == [command]
    assert naming.host == "here"
