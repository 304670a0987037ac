"""Deployed pipelines: state, history and logs; start, stop, restart, roll back and delete.

Everything is read from the topics of `penstock.spark.deployments` with the rights of the user, and
changed with the rights of the user. A topic that does not exist costs nothing: whether it does is
known from the snapshot of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from typing import Any, Final

from penstock.client.errors import ClientError
from penstock.console.deployment_records import (
    DeploymentRecords,
    backfills_of,
    flows_of,
    graph_of,
    recompute_of,
)
from penstock.console.errors import BadRequest, Conflict, NotAllowed, NotFound
from penstock.console.link import Link
from penstock.console.problems import Problem
from penstock.console.progress import Progress
from penstock.console.watch import Watch, is_denied
from penstock.spark.deployments import topics
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_errors import (
    AccessRefused,
    ChangeConflict,
    NoSuchDeployment,
)
from penstock.spark.deployments.catalog_view import CatalogView
from penstock.spark.deployments.deploy_plan import compared_rollback, decided_rollback
from penstock.spark.deployments.model import Deployment, LogChunk, Status, Version, decode
from penstock.spark.deployments.rollback import asked_rollback
from penstock.spark.pipelines.errors import PipelineError
from penstock.topic_partition import TopicPartition

_POLL_MS: Final = 1_000
_REST_S: Final = 2.0
_DENIED_REST_S: Final = 30.0
"""How long to wait after the brokers refused to let the user read a topic."""
_HISTORY_READ: Final = 20_000
"""How many of the last records of the history are read."""
_LOGS_READ: Final = 50_000
"""How many of the last lines of all pipelines are searched for those of one."""
_LOGS_S: Final = 15.0
"""How long a page waits for the last lines. Later ones follow as new ones."""
_DAY_MS: Final = 86_400_000
_WITH_ROWS: Final = frozenset({"RUNNING", "WAITING FOR ITS TIME", "STOPPING"})
"""The states in which a driver may be there to read rows."""
_STARTS: Final = frozenset({"started", "restarted"})
_LINES_SHOWN: Final = 2_000
_EVENTS_SHOWN: Final = 200
_FOLLOWED: Final = (topics.DEFINITIONS, topics.STATUS, topics.HISTORY)
_log = logging.getLogger(__name__)


class Deployments:
    def __init__(self, link: Link, watch: Watch, progress: Progress) -> None:
        self._link = link
        self._watch = watch
        self._progress = progress
        self._records = DeploymentRecords()
        self._rates: dict[str, dict[str, float]] = {}
        self._denied: set[str] = set()
        self._changed = asyncio.Event()

    # -- reading --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follows the topics. Ends only by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            for topic in _FOLLOWED:
                tasks.create_task(self._follow_always(topic))

    async def _follow_always(self, topic: str) -> None:
        while True:
            rest_s = _REST_S
            try:
                if self.exists(topic):
                    await self._follow(topic)
            except ClientError as error:
                if is_denied(error):
                    self._denied.add(topic)
                    rest_s = _DENIED_REST_S
                _log.debug("cannot read %s: %s; retrying", topic, error)
            await self._link.env.clock.sleep(rest_s)

    def exists(self, topic: str) -> bool:
        return topic in self._watch.picture.by_name

    async def _follow(self, topic: str) -> None:
        """Reads records as long as the topic exists."""
        place = TopicPartition(topic, 0)
        async with self._link.consumer(committed_only=True) as consumer:
            consumer.assign([place])
            if topic == topics.HISTORY:
                end = (await consumer.end_offsets([place]))[place]
                begin = (await consumer.beginning_offsets([place]))[place]
                consumer.seek(place, max(begin, end - _HISTORY_READ))
            self._records.forget(topic)
            while self.exists(topic):
                for record in await consumer.poll(timeout_ms=_POLL_MS):
                    self._apply(topic, record.key, record.value)
                self._denied.discard(topic)
        self._records.forget(topic)

    def _apply(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        status = self._records.apply(topic, key, value)
        if status is not None:
            self._measure(status)
        self._changed.set()
        self._changed = asyncio.Event()

    def _measure(self, status: Status) -> None:
        """Records the progress of a status for the charts."""
        if status.state != "RUNNING":
            self._rates.pop(status.name, None)
            return
        rates = self._rates.setdefault(status.name, {})
        for flow in flows_of(status):
            if not flow["streaming"]:
                continue
            rate = self._progress.add(
                flow["name"],
                f"{status.worker} {status.version}",
                status.updated_ms,
                self._link.env.clock.wall_ms(),
                rows=flow["rows"],
                lag=flow["lag"],
                batch_ms=None if flow["batch"] is None else flow["batch_ms"],
                more={each: flow[each] for each in ("lag_s", "state_rows", "skew")},
                scope=("pipeline", status.name),
            )
            if rate is not None:
                rates[flow["name"]] = rate

    def is_deployed(self, name: str) -> bool:
        return name in self._records.view.deployments

    def listed(self) -> dict[str, Any]:
        now_ms = self._link.env.clock.wall_ms()
        records = self._records
        workers = [
            {**asdict(worker), "silent": state == "gone"}
            for worker, state in records.view.shown_workers(now_ms)
        ]
        return {
            "deployments": [
                records.row(name, now_ms, self._rates.get(name, {}))
                for name in sorted(records.view.deployments)
            ],
            "workers": workers,
            "hidden": self.hidden(),
        }

    def problems(self) -> list[Problem]:
        """Returns the problems of deployed pipelines, for the overview."""
        return self._records.problems(self._link.env.clock.wall_ms())

    def hidden(self) -> str:
        """Returns a sentence about what the user may not see."""
        if not self._denied:
            return ""
        names = ", ".join(sorted(self._denied))
        return f"You may not read {names}: ask an administrator for Read to see the pipelines."

    def described(self, name: str) -> dict[str, Any]:
        records, now_ms = self._records, self._link.env.clock.wall_ms()
        deployment = self._deployment(name)
        status = records.view.statuses.get(name)
        rates = self._rates.get(name, {})
        good = 0 if status is None else status.good_version
        worker = None if status is None else records.view.workers.get(status.worker)
        flows = [] if status is None else flows_of(status)
        return {
            **records.row(name, now_ms, rates),
            "deployment": {
                "revision": deployment.revision,
                "master": deployment.master,
                # Settings may have passwords, so only their names are shown.
                "settings": sorted(deployment.settings),
                "secrets": deployment.secrets,
                "storage": deployment.storage,
                "memory_mb": deployment.memory_mb,
                "auto_rollback": deployment.auto_rollback,
                "changed_ms": deployment.changed_ms,
                "changed_by": deployment.changed_by,
            },
            "versions": [
                {
                    "number": version.number,
                    "kind": version.kind,
                    "entry": version.entry,
                    "archive_size": version.archive_size,
                    "deployed_ms": version.deployed_ms,
                    "deployed_by": version.deployed_by,
                    "note": version.note,
                    "current": version.number == deployment.version,
                    "good": version.number == good,
                    "changes": self._changes(deployment, version.number),
                }
                for key, version in sorted(records.view.versions.items(), reverse=True)
                if key[0] == name
            ],
            "flows": [{**flow, "rows_per_s": rates.get(flow["name"])} for flow in flows],
            "backfills": backfills_of(deployment, status),
            **recompute_of(
                deployment, records.view.versions.get((name, deployment.version)), status
            ),
            "graph": self._graph(status),
            "events": [
                asdict(event)
                for event in list(records.events.get(name, ()))[: -_EVENTS_SHOWN - 1 : -1]
            ],
            "restarts": self._starts(name, now_ms - _DAY_MS),
            "worker_status": None if worker is None else asdict(worker),
            "hidden": self.hidden(),
        }

    def graph(self, name: str) -> dict[str, Any]:
        """Returns the graph of the last run."""
        self._deployment(name)
        return self._graph(self._records.view.statuses.get(name))

    def check_runs(self, name: str) -> None:
        """Raises `NotFound` if the pipeline has no driver that could read rows."""
        state, _ = self._records.state(name, self._link.env.clock.wall_ms())
        if state not in _WITH_ROWS:
            raise NotFound(
                f"{name} is not running ({state.lower()}): rows can be shown only while it runs"
            )

    def _graph(self, status: Status | None) -> dict[str, Any]:
        """Returns the graph of the last run, with the rates of the topics."""
        none: dict[str, Any] = {"nodes": [], "edges": [], "complete": True}
        found = none if status is None else graph_of(status)
        rates = self._watch.picture.topic_rates
        for node in found["nodes"]:
            node["records_per_s"] = rates.get(node["name"]) if node["kind"] == "topic" else None
        return found

    def _starts(self, name: str, since_ms: int) -> int:
        """Returns how often a worker has started it."""
        events = self._records.events.get(name, ())
        return sum(
            event.what in _STARTS and bool(event.worker) and event.at_ms >= since_ms
            for event in events
        )

    def known(self, name: str) -> tuple[Deployment, Version | None, Status | None]:
        """Returns the deployment, the version that it runs, and its last status."""
        deployment, view = self._deployment(name), self._records.view
        return deployment, view.versions.get((name, deployment.version)), view.statuses.get(name)

    def known_all(self) -> CatalogView:
        """Returns all deployments that the user sees, as they were read last."""
        return self._records.view

    def live_workers(self) -> int:
        return len(self._records.view.live_workers(self._link.env.clock.wall_ms()))

    def _deployment(self, name: str) -> Deployment:
        found = self._records.view.deployments.get(name)
        if found is None:
            raise NotFound(
                self.hidden()
                or f"there is no deployed pipeline {name}: see them with penstock pipeline list"
            )
        return found

    # -- logs -----------------------------------------------------------------------------------

    async def logs(self, name: str) -> AsyncIterator[dict[str, Any]]:
        """Yields the last lines that drivers of a pipeline have printed, then those that follow,
        until the caller stops."""
        self._deployment(name)
        if not self.exists(topics.LOGS):
            raise NotFound("no worker has written any lines yet")
        place = TopicPartition(topics.LOGS, 0)
        async with self._link.consumer() as consumer:
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            begin = (await consumer.beginning_offsets([place]))[place]
            start = max(begin, end - _LOGS_READ)
            consumer.seek(place, start)
            found: list[dict[str, Any]] = []
            at = start
            deadline = self._link.env.clock.monotonic() + _LOGS_S
            while at < end and self._link.env.clock.monotonic() < deadline:
                records = await consumer.poll(timeout_ms=_POLL_MS)
                found += [line for record in records for line in _lines(record.value, name)]
                del found[:-_LINES_SHOWN]
                at = consumer.known_position(place) or at
            yield {"lines": found, "partial": start > begin}
            while True:
                records = await consumer.poll(timeout_ms=_POLL_MS)
                yield {"lines": [line for each in records for line in _lines(each.value, name)]}

    # -- changing -------------------------------------------------------------------------------

    async def start(self, name: str) -> dict[str, Any]:
        """A pipeline that should run, but has failed or completed, is started again."""
        self._deployment(name)
        status = self._records.view.statuses.get(name)
        has_ended = status is not None and status.state in ("FAILED", "COMPLETED")

        def change(now: Deployment) -> Deployment:
            restarts = now.restarts + (has_ended and now.wanted == "RUNNING")
            return replace(now, wanted="RUNNING", restarts=restarts)

        return await self._change(name, change, "started")

    async def stop(self, name: str) -> dict[str, Any]:
        return await self._change(name, lambda now: replace(now, wanted="STOPPED"), "stopped")

    async def restart(self, name: str) -> dict[str, Any]:
        def change(now: Deployment) -> Deployment:
            return replace(now, wanted="RUNNING", restarts=now.restarts + 1)

        return await self._change(name, change, "restarted")

    async def roll_back(
        self, name: str, version: int, reset: Sequence[str], keep: Sequence[str]
    ) -> dict[str, Any]:
        """Makes an earlier version the current one. `reset` and `keep` say what happens to flows
        that cannot keep their checkpoints without a decision."""
        deployment = self._deployment(name)
        if (name, version) not in self._records.view.versions:
            raise NotFound(f"{name} has no version {version}: choose one that its page lists")
        if version == deployment.version:
            raise BadRequest(f"{name} is at version {version} already")
        with pipeline_errors():
            decision = decided_rollback(self._records.view, deployment, version, reset, keep)
        change, text = asked_rollback(deployment, version, self._link.env.clock.wall_ms())
        return await self._change(name, change, "rolled-back", text, decision.reset, decision.keep)

    def _changes(self, current: Deployment, version: int) -> list[dict[str, Any]]:
        """Returns what a return to the version does to the checkpoints of its flows. `pending`: the
        flow begins again, as was asked for earlier and is not done yet."""
        found = compared_rollback(self._records.view, current, version)
        return [
            {**asdict(each), "pending": each.flow in found.pending and each.outcome != "removed"}
            for each in found.changes
        ]

    async def _change(
        self,
        name: str,
        change: Callable[[Deployment], Deployment],
        what: str,
        text: str = "",
        reset: Sequence[str] = (),
        keep: Sequence[str] = (),
    ) -> dict[str, Any]:
        self._deployment(name)
        async with self.catalog(f"pipeline {name} is {what} {text}".rstrip()) as catalog:
            await catalog.change(name, change, what, text, reset=reset, keep=keep)
        return {"name": name}

    async def delete(self, name: str, typed: str) -> dict[str, Any]:
        self._deployment(name)
        self._link.allow(f"delete pipeline {name}")
        if typed != name:
            raise BadRequest(f"type the pipeline's name, {name}, to delete it and its versions")
        async with self.catalog(f"delete pipeline {name}") as catalog:
            await catalog.delete(name)
        return {"name": name}

    @asynccontextmanager
    async def catalog(self, what: str, *, create: bool = False) -> AsyncIterator[Catalog]:
        """Opens the catalog for a change with the rights of the user. With `create`, its topics
        are created if they are missing."""
        with pipeline_errors():
            async with self._link.catalog(what, create=create) as catalog:
                yield catalog


@contextmanager
def pipeline_errors() -> Iterator[None]:
    """Turns errors of pipelines into errors of requests."""
    try:
        yield
    except AccessRefused as error:
        raise NotAllowed(str(error)) from error
    except ChangeConflict as error:
        raise Conflict(str(error)) from error
    except NoSuchDeployment as error:
        raise NotFound(str(error)) from error
    except PipelineError as error:
        raise BadRequest(str(error)) from error


def _lines(value: bytes | None, name: str) -> list[dict[str, Any]]:
    """Returns the lines of a record of the log, if they are of this pipeline."""
    chunk = decode(LogChunk, value)
    if chunk is None or chunk.name != name:
        return []
    return [{"at_ms": chunk.at_ms, "version": chunk.version, "text": line} for line in chunk.lines]
