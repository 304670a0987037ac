"""Checks and begins recomputes of deployed pipelines, for the command line and the console.

`generations` and `pipelines.recompute_scope` decide. This module asks brokers and changes the
catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.client.admin.arguments import When
from penstock.client.admin.offsets import FoundOffset
from penstock.client.admin.operations import TopicInfo
from penstock.client.errors import BrokerError
from penstock.spark.deployments import generations
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_errors import ChangeConflict, is_refusal
from penstock.spark.deployments.generations import RecomputeOrder
from penstock.spark.deployments.model import Deployment, Status, Version
from penstock.spark.deployments.recompute_parts import running_flows, running_parts
from penstock.spark.pipelines.recompute_scope import (
    PipelineParts,
    RecomputeRefused,
    check_scope,
)
from penstock.topic_partition import TopicPartition


class LogReader(Protocol):
    """The methods of `Admin` that are needed."""

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo | BrokerError]: ...
    async def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]: ...


def planned_graph(status: Status | None) -> dict[str, Any]:
    """Returns the graph that Spark has planned for the running version; empty if unknown."""
    graph = None if status is None else status.run.get("graph")
    return graph if isinstance(graph, dict) else {}


def parts_of(version: Version | None, status: Status | None) -> PipelineParts | None:
    """Returns the parts of the running version; None if only a driver can tell."""
    return None if version is None else running_parts(planned_graph(status), version.flows)


def check_recompute(
    deployment: Deployment,
    running: Version | None,
    parts: PipelineParts | None,
    order: RecomputeOrder,
    status: Status | None,
) -> None:
    """Raises `PipelineError` if it is known already that these tables cannot be computed again."""
    generations.check_no_recompute(deployment)
    if running is not None and running.kind != "project":
        raise RecomputeRefused(
            f"{deployment.name} is a script, and chooses itself where it writes, so it cannot be "
            "recomputed: deploy it under another --name with other tables"
        )
    if deployment.master.startswith("sc://"):
        raise RecomputeRefused(
            "tables on a Connect server (sc://) cannot be recomputed beside the running ones: "
            "they would have the same names there"
        )
    if parts is not None:
        flows = () if running is None else running.flows
        check_scope(parts, order.tables, running_flows(flows, planned_graph(status)))


async def deleted_records(admin: LogReader, topics: Sequence[str]) -> dict[str, int]:
    """Returns how many records retention has deleted from each of these topics, if it has. Topics
    that do not exist any more are left out."""
    described = await admin.describe_topics(topics) if topics else {}
    for answer in described.values():
        if isinstance(answer, BrokerError) and is_refusal(answer):
            raise answer
    places = [
        TopicPartition(name, partition.index)
        for name, topic in described.items()
        if not isinstance(topic, Exception)
        for partition in topic.partitions
    ]
    found = await admin.list_offsets(dict.fromkeys(places, "earliest")) if places else {}
    deleted: dict[str, int] = {}
    for place, at in found.items():
        if at is not None and at.offset > 0:
            deleted[place.topic] = deleted.get(place.topic, 0) + at.offset
    return deleted


async def begun(
    catalog: Catalog, name: str, version: int, order: RecomputeOrder, now_ms: int
) -> Deployment:
    """Begins a recompute with the running version. `version` is the one that was checked."""

    def change(old: Deployment) -> Deployment:
        if old.version != version:
            raise ChangeConflict(name)
        return generations.begun(old, version, order, now_ms)

    text = f"{', '.join(order.tables)}, with version {version}"
    return await _changed(catalog, name, change, "recompute", text)


async def cancelled(catalog: Catalog, name: str) -> Deployment:
    """Ends a recompute. Its tables are deleted."""
    return await _changed(catalog, name, generations.cancelled, "recompute-cancelled", "")


async def swap_asked(catalog: Catalog, name: str) -> Deployment:
    """Lets the swap happen as soon as the new tables have caught up."""
    return await _changed(catalog, name, generations.swap_asked, "swap-asked", "")


async def swapped_back(catalog: Catalog, name: str, now_ms: int) -> Deployment:
    """Returns to the tables and the version before the last swap."""

    def change(old: Deployment) -> Deployment:
        return generations.swapped_back(old, now_ms)

    return await _changed(catalog, name, change, "swapped-back", "")


async def _changed(
    catalog: Catalog, name: str, change: Callable[[Deployment], Deployment], what: str, text: str
) -> Deployment:
    await catalog.caught_up()
    change(catalog.deployment(name))  # A refusal comes before a transaction is begun.
    return await catalog.change(name, change, what, text)


# -- progress -------------------------------------------------------------------------------------


def described(deployment: Deployment, reported: Status | None) -> dict[str, Any]:
    """Returns what is known of the generations of the tables."""
    recompute, kept = deployment.recompute, deployment.kept
    progress = {} if reported is None or recompute is None else reported.recompute
    if recompute is not None and progress.get("generation") != recompute.generation:
        progress = {}  # Of an earlier one.
    return {
        "generation": deployment.generation,
        "recompute": None
        if recompute is None
        else {
            "stage": "waiting for a worker",
            "state": "WAITING FOR A WORKER",
            "caught_up": False,
            **progress,
            "generation": recompute.generation,
            "version": recompute.version,
            "tables": recompute.tables,
            "swap": recompute.swap,
            "swap_asked": recompute.asked,
            "began_ms": recompute.began_ms,
        },
        "kept": None
        if kept is None
        else {
            "generation": kept.generation,
            "version": kept.version,
            "until_ms": kept.until_ms,
        },
    }
