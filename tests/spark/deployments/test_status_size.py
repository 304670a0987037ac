"""Tests that the status of a large pipeline fits into a record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.spark.deployments.model import Status, decode
from penstock.spark.deployments.status_size import BYTES_MAX, fitting

SCHEMA = "column STRING, " * 130


def large(tables: int, schema: str = SCHEMA, offsets: int = 0) -> dict[str, Any]:
    """Returns the view of a run with this many flows, and as many offsets in each of them."""
    names = [f"table_{number}" for number in range(tables)]
    began = {"orders": {str(number): 10**12 for number in range(offsets)}}
    return {
        "name": "views",
        "flows": [{"name": name, "error": "", "began": began} for name in names],
        "graph": {
            "nodes": [{"id": f"table:{name}", "kind": "table", "name": name} for name in names],
            "edges": [
                {"from": "topic:orders", "to": f"table:{name}", "schema": schema} for name in names
            ],
        },
    }


def stored(run: dict[str, Any], **more: Any) -> Status:
    """Returns what is read back of a status."""
    data = fitting(Status("views", "RUNNING", 3, 2, run=run, **more))
    assert len(data) <= BYTES_MAX
    found = decode(Status, data)
    assert found is not None
    assert replace(found, run={}, recompute={}) == Status("views", "RUNNING", 3, 2)
    return found


def test_an_ordinary_status_is_stored_as_it_is() -> None:
    assert stored(large(20)).run == large(20)


def test_a_large_graph_loses_its_schemas_first() -> None:
    assert stored(large(600)).run == large(600, schema="")


def test_then_the_graph_is_left_out() -> None:
    run = large(500, schema="", offsets=68)
    found = stored(run).run
    assert found == {**run, "graph": {}}


def test_then_flows_are_left_out_as_a_whole_but_not_those_with_errors() -> None:
    """Backfills are planned with the offsets of a flow, so it never has a part of them."""
    run = large(2_000, schema="", offsets=50)
    run["flows"][-1]["error"] = "no table"
    flows = stored(run).run["flows"]
    assert 100 < len(flows) < 2_000
    assert flows[0] == run["flows"][-1]
    assert all(flow in run["flows"] for flow in flows)


@pytest.mark.parametrize("flows", [10, 3_000])
def test_the_flows_of_a_recompute_count_too(flows: int) -> None:
    recompute = {"stage": "FILLING", "flows": large(flows, offsets=20)["flows"]}
    found = stored(large(600), recompute=recompute).recompute
    assert found["stage"] == "FILLING" and len(found["flows"]) <= flows


def test_an_error_alone_is_not_cut_down_for_ever() -> None:
    """There is nothing to leave out: the status is refused by the producer, and it ends."""
    status = Status("views", "RUNNING", 3, 2, error="x" * BYTES_MAX)
    assert len(fitting(status)) > BYTES_MAX
