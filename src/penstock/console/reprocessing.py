"""Backfills, recomputes and swaps of deployed pipelines, with the rights of the user.

A plan changes nothing, so a read-only console may make one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.client.address import parse_bootstrap
from penstock.client.times import parse_duration_ms, parse_time_ms
from penstock.console.deployments import Deployments, pipeline_errors
from penstock.console.errors import BadRequest
from penstock.console.link import Link
from penstock.console.watch import Watch
from penstock.spark.deployments import backfill_requests, recompute_requests
from penstock.spark.deployments.backfill_requests import PlannedBackfill
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_errors import rights_named
from penstock.spark.deployments.generations import RecomputeOrder
from penstock.spark.deployments.model import Deployment, Status, Version
from penstock.spark.deployments.recompute_parts import topics_read
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.stream_position import BackfillRequest

_SWAPS: Final = ("when-caught-up", "manual")
_TABLES_MAX: Final = 1_000

Known = tuple[Deployment, Version | None, Status | None]


class Reprocessing:
    def __init__(self, link: Link, watch: Watch, deployments: Deployments) -> None:
        self._link = link
        self._watch = watch
        self._deployments = deployments

    # -- backfills ------------------------------------------------------------------------------

    async def plan_backfill(
        self, name: str, flow: str, since: str, to: str, *, again: bool
    ) -> dict[str, Any]:
        """Returns what a backfill would read, and why it is refused if there is nothing to read."""
        known = self._deployments.known(name)
        with pipeline_errors():
            plan = await self._planned(known, self._request(flow, since, to, again=again))
        refused = ""
        try:
            plan.check()
        except PipelineError as error:
            refused = str(error)
        return {**_figures(plan), "refused": refused}

    async def backfill(
        self, name: str, flow: str, since: str, to: str, *, again: bool
    ) -> dict[str, Any]:
        """Begins a backfill. What it reads is planned again, since some time has passed."""
        self._deployments.known(name)
        with pipeline_errors():
            request = self._request(flow, since, to, again=again)
        async with self._deployments.catalog(f"backfill {flow} of pipeline {name}") as catalog:
            plan = await self._planned(await _known(catalog, name), request)
            plan.check()
            made = await backfill_requests.requested(catalog, name, plan)
        return {"id": made.id, **_figures(plan)}

    async def cancel_backfill(self, name: str, flow: str) -> dict[str, Any]:
        self._deployments.known(name)
        what = f"cancel the backfill of {flow} of pipeline {name}"
        async with self._deployments.catalog(what) as catalog:
            ended = await backfill_requests.cancelled(catalog, name, flow)
        return {"id": ended.id}

    def _request(self, flow: str, since: str, to: str, *, again: bool) -> BackfillRequest:
        now_ms = self._link.env.clock.wall_ms()
        times = []
        for field, text in (("from", since), ("to", to.strip() or "now")):
            try:
                times.append(parse_time_ms(text, now_ms))
            except (ValueError, OverflowError) as error:
                raise BadRequest(f"{field}: {error}") from error
        return backfill_requests.new_request(flow, times[0], times[1], now_ms, again=again)

    async def _planned(self, known: Known, request: BackfillRequest) -> PlannedBackfill:
        flow = backfill_requests.checked_flow(*known, request)
        self._check_address(known[0])
        admin = await self._link.reading()
        with rights_named(f"plan a backfill of {flow.name}", _describing(sorted(flow.topics))):
            return await backfill_requests.planned(admin, flow, request)

    def _check_address(self, deployment: Deployment) -> None:
        """Raises `PipelineError` if the pipeline reads topics of another cluster. The login of the
        user is not sent to an address that a deployment names."""
        here = self._link.config.bootstrap
        address = backfill_requests.broker_address(deployment, here)
        if address == here:
            return
        info = self._watch.picture.info
        brokers = {each.address for each in info.brokers} if info else set()
        try:
            if brokers.union(parse_bootstrap(here)) & {*parse_bootstrap(address)}:
                return
        except ValueError:
            pass  # A profile, or no address: it is not known whether this is the same cluster.
        raise PipelineError(
            f"{deployment.name} reads its topics from {address}, and this console is connected to "
            f"{here}: use penstock pipeline on the command line"
        )

    # -- recomputes -----------------------------------------------------------------------------

    async def plan_recompute(
        self, name: str, tables: Sequence[str], swap: str, keep: str
    ) -> dict[str, Any]:
        """Returns how many records retention has deleted from the topics that would be read."""
        known = self._deployments.known(name)
        with pipeline_errors():
            order = _order(tables, swap, keep)
            return {"tables": order.tables, "deleted": await self._checked(known, order)}

    async def recompute(
        self, name: str, tables: Sequence[str], swap: str, keep: str
    ) -> dict[str, Any]:
        self._deployments.known(name)
        order = _order(tables, swap, keep)
        now_ms = self._link.env.clock.wall_ms()
        what = f"recompute {', '.join(order.tables)} of pipeline {name}"
        async with self._deployments.catalog(what) as catalog:
            known = await _known(catalog, name)
            await self._checked(known, order)
            version = known[0].version
            made = await recompute_requests.begun(catalog, name, version, order, now_ms)
        return {"name": name, "version": made.version}

    async def cancel_recompute(self, name: str) -> dict[str, Any]:
        self._deployments.known(name)
        what = f"cancel the recompute of pipeline {name}"
        async with self._deployments.catalog(what) as catalog:
            await recompute_requests.cancelled(catalog, name)
        return {"name": name}

    async def swap(self, name: str) -> dict[str, Any]:
        """Swaps the tables as soon as the new ones have caught up."""
        self._deployments.known(name)
        async with self._deployments.catalog(f"swap the tables of pipeline {name}") as catalog:
            await recompute_requests.swap_asked(catalog, name)
        return {"name": name}

    async def swap_back(self, name: str) -> dict[str, Any]:
        """Returns to the tables and the version before the last swap."""
        self._deployments.known(name)
        now_ms = self._link.env.clock.wall_ms()
        what = f"swap the tables of pipeline {name} back"
        async with self._deployments.catalog(what) as catalog:
            made = await recompute_requests.swapped_back(catalog, name, now_ms)
        return {"name": name, "version": made.version}

    async def _checked(self, known: Known, order: RecomputeOrder) -> dict[str, int]:
        deployment, version, status = known
        parts = recompute_requests.parts_of(version, status)
        recompute_requests.check_recompute(deployment, version, parts, order, status)
        self._check_address(deployment)
        topics = topics_read(recompute_requests.planned_graph(status))
        admin = await self._link.reading()
        with rights_named(f"recompute {deployment.name}", _describing(topics)):
            return await recompute_requests.deleted_records(admin, topics)


async def _known(catalog: Catalog, name: str) -> Known:
    await catalog.caught_up()
    deployment = catalog.deployment(name)
    version = catalog.versions.get((name, deployment.version))
    return deployment, version, catalog.statuses.get(name)


def _describing(topics: Sequence[str]) -> str:
    return f"Describe on {', '.join(topics) or 'its topics'}"


def _figures(plan: PlannedBackfill) -> dict[str, Any]:
    found = plan.found
    return {
        "flow": plan.flow.name,
        "from_ms": plan.request.from_ms,
        "to_ms": plan.request.to_ms,
        "again": plan.request.again,
        "partitions": len(found.ranges),
        "records": found.records,
        "repeated": found.repeated,
        "left_out": found.left_out,
        "deleted": found.deleted,
        "oldest_ms": found.oldest_ms,
    }


def _order(tables: Sequence[str], swap: str, keep: str) -> RecomputeOrder:
    named = tuple(sorted({each.strip() for each in tables if each.strip()}))
    if not named:
        raise BadRequest("name the tables to recompute")
    if len(named) > _TABLES_MAX:
        raise BadRequest(f"name at most {_TABLES_MAX:,} tables")
    if swap not in _SWAPS:
        raise BadRequest(f"swap must be one of {', '.join(_SWAPS)}, not {swap!r}")
    try:
        keep_ms = parse_duration_ms(keep)
    except ValueError as error:
        raise BadRequest(f"keep: {error}") from error
    return RecomputeOrder(named, "manual" if swap == "manual" else "when-caught-up", keep_ms)
