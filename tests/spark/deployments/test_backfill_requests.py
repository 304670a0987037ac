"""Tests what plans of backfills ask brokers, and how far requests are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from penstock.client.admin.arguments import When
from penstock.client.admin.offsets import FoundOffset
from penstock.spark.deployments.backfill_plan import FlowToFill
from penstock.spark.deployments.backfill_requests import (
    broker_address,
    checked_flow,
    listed,
    new_request,
    planned,
)
from penstock.spark.deployments.model import BackfillStatus, Deployment, Status, Version
from penstock.spark.pipelines.errors import PipelineError
from penstock.topic_partition import TopicPartition

PLACE = TopicPartition("a", 0)
FLOW = FlowToFill("copy", ["copy"], {"a": 1}, {PLACE: 60}, {})


class Offsets:
    """The answers of a broker. A time for which there is no record has no answer."""

    def __init__(self, known: Mapping[When, int]) -> None:
        self.known = known

    async def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]:
        return {
            place: FoundOffset(self.known[when], 5_000, -1) if when in self.known else None
            for place, when in times.items()
        }


def test_a_plan_has_the_offsets_of_the_brokers() -> None:
    """Without a record after the end of the range, it ends at the end of the log."""
    offsets = Offsets({"earliest": 20, "latest": 100, 1_000: 20})
    request = new_request("copy", 1_000, 9_000, 9_500, again=False)
    plan = asyncio.run(planned(offsets, FLOW, request))
    plan.check()
    assert plan.request.ranges == {"a": {"0": [[20, 60]]}}
    assert plan.request.sources == ["copy"]
    found = plan.found
    assert (found.records, found.left_out, found.deleted, found.oldest_ms) == (40, 40, 20, 5_000)


def test_a_range_without_records_is_refused() -> None:
    request = new_request("copy", 1_000, 9_000, 9_500, again=False)
    plan = asyncio.run(planned(Offsets({"latest": 100}), FLOW, request))
    with pytest.raises(PipelineError, match="no records in this range"):
        plan.check()


@pytest.mark.parametrize(("since", "to"), [(-1, 5), (5, 5), (6, 5), (0, 10**15)])
def test_a_range_that_no_broker_knows_is_refused(since: int, to: int) -> None:
    """Brokers take negative times for names, such as the end of the log."""
    with pytest.raises(PipelineError, match="the range must begin in 1970 or later"):
        new_request("copy", since, to, 9, again=False)


def test_a_deployment_without_its_version_is_refused() -> None:
    request = new_request("copy", 1, 2, 3, again=False)
    with pytest.raises(PipelineError, match="p has no version 4: deploy it again"):
        checked_flow(Deployment("p", 1, 4), None, None, request)


def test_the_address_of_the_brokers_may_be_set() -> None:
    assert broker_address(Deployment("p", 1, 1), "here:1") == "here:1"
    elsewhere = Deployment("p", 1, 1, settings={"spark.penstock.bootstrap": "there:2"})
    assert broker_address(elsewhere, "here:1") == "there:2"


def test_backfills_are_listed_with_their_progress() -> None:
    offsets = Offsets({"earliest": 0, "latest": 100, 1_000: 0})
    request = new_request("copy", 1_000, 9_000, 9_500, again=False)
    plan = asyncio.run(planned(offsets, FLOW, request))
    deployment = Deployment("p", 1, 1, backfills=[plan.request])
    (shown,) = listed(deployment, None)
    assert (shown["state"], shown["done"], shown["total"]) == ("REQUESTED", 0, 60)
    rate = {"name": "copy", "backfill": {"id": 0, "per_s": 3.0, "left_s": 4.0}}
    status = Status(
        "p", "RUNNING", 1, 1,
        run={"flows": [rate]}, backfills=[BackfillStatus("copy", 0, "RUNNING", 7, 60)],
    )  # fmt: skip
    (shown,) = listed(deployment, status)
    assert (shown["state"], shown["done"], shown["per_s"]) == ("RUNNING", 7, 3.0)


@pytest.mark.parametrize("count", [10**9, 100_001, 0, -1])
def test_a_status_with_senseless_numbers_of_partitions_is_refused(count: int) -> None:
    """A list of a billion partitions would fill the memory of the console."""
    request = new_request("copy", 1, 2, 3, again=False)
    version = Version("p", 1, "script", "x.py", "0" * 64, 1, flows={"copy": ""})
    view = {"name": "copy", "topics": {"a": count}, "began": {}, "backfilled": {}}
    status = Status("p", "RUNNING", 1, 1, run={"flows": [view]})
    with pytest.raises(PipelineError, match="but a backfill reads 1 to 100,000"):
        checked_flow(Deployment("p", 1, 1), version, status, request)
