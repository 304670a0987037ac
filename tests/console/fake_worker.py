"""Writes the records of deployed pipelines as the commands and a worker would, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock import Admin, Consumer
from penstock.client.errors import BrokerError, TopicNotFound
from penstock.runtime import SystemClock
from penstock.spark.deployments import topics
from penstock.spark.deployments.model import (
    Deployment,
    Event,
    LogChunk,
    Status,
    Version,
    WorkerStatus,
    decode,
    encode,
)
from penstock.wire.errors import ErrorCode

Write = Callable[..., Any]
"""`write(topic, value, key=...)` writes a record."""
NODES = [
    {"id": "topic:page-views", "kind": "topic", "name": "page-views"},
    {
        "id": "table:page_views", "kind": "table", "name": "page_views", "flow": "page_views",
        "file": "transformations/page_views.py", "line": 9,
    },
    {"id": "table:page_counts", "kind": "table", "name": "page_counts", "flow": "page_counts"},
    {"id": "flow:send_long", "kind": "flow", "name": "send_long", "flow": "send_long"},
    {"id": "sink:long_views", "kind": "sink", "name": "long_views", "format": "penstock"},
    {"id": "topic:long-views", "kind": "topic", "name": "long-views"},
]  # fmt: skip
EDGES = [
    {"from": "topic:page-views", "to": "table:page_views", "schema": "key BINARY,value BINARY"},
    {"from": "table:page_views", "to": "table:page_counts", "schema": "user STRING,page STRING"},
    {"from": "table:page_views", "to": "flow:send_long", "schema": "user STRING,page STRING"},
    {"from": "flow:send_long", "to": "sink:long_views", "schema": "key STRING,value STRING"},
    {"from": "sink:long_views", "to": "topic:long-views"},
]


def create_topics(admin: Admin) -> None:
    for name, settings in topics.SETTINGS.items():
        try:
            admin.create_topic(name, partitions=1, replication_factor=1, configs=settings)
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


def flow(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "status": "RUNNING", "rows": 1_200, "streaming": True, "rows_per_s": 80.4,
        "lag": 17, "lag_s": 2.5, "batch": 3, "batch_rows": 100, "batch_ms": 1_500,
        "state_rows": 40, "state_bytes": 2_048, "watermark": "2026-01-01T10:00:00.000Z",
        "violations": {"known": 2}, "error": "", "skew": 3.5, "task_skew": 6.0, **more,
    }  # fmt: skip


def definition(bootstrap: str, name: str) -> Deployment | None:
    """Returns the last committed definition of a deployment. The first deploy creates the topic."""
    with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        try:
            rows = consumer.read_table(topics.DEFINITIONS).to_pylist()
        except TopicNotFound:
            return None
    found = [row["value"] for row in rows if row["key"] == topics.deployment_key(name)]
    return decode(Deployment, found[-1]) if found else None


def history(bootstrap: str, name: str) -> list[Event]:
    with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        rows = consumer.read_table(topics.HISTORY).to_pylist()
    events = [decode(Event, row["value"]) for row in rows]
    return [event for event in events if event is not None and event.name == name]


class FakeWorker:
    """Keeps one deployment as a worker would see it."""

    def __init__(self, write: Write, name: str, worker: str = "w1") -> None:
        self.name = name
        self.worker = worker
        self._write = write
        self._clock = SystemClock()
        self.started_ms = self.now_ms()

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def deploy(self, version: int = 1, flows: dict[str, str] | None = None, **fields: Any) -> None:
        """Writes a version and makes it the current one."""
        found = Version(
            self.name, version, "project", "spark-pipeline.yml", f"{version:064x}", 2_048,
            flows=flows or {},
            deployed_ms=self.now_ms(), deployed_by="ann", note=f"note {version}",
        )  # fmt: skip
        self._write(topics.DEFINITIONS, encode(found), key=topics.version_key(self.name, version))
        self.define(Deployment(self.name, version, version, **fields))
        self.tell("deployed", f"version {version}", version=version, by="ann")

    def define(self, deployment: Deployment) -> None:
        """Writes the deployment as it is to be."""
        self._write(topics.DEFINITIONS, encode(deployment), key=topics.deployment_key(self.name))

    def report(self, state: str = "RUNNING", **fields: Any) -> None:
        """Writes the status of the pipeline and of the worker."""
        now_ms = self.now_ms()
        run = {"name": self.name, "round": 7, "flows": [flow("page_views")], "error": ""}
        run |= {"graph": {"nodes": NODES, "edges": EDGES}, **fields.pop("run", {})}
        status = {
            "revision": 1, "version": 1, "worker": self.worker, "host": "box", "since_ms": now_ms,
            "updated_ms": now_ms, "good_version": 1, "run": run, **fields,
        }  # fmt: skip
        found = Status(self.name, state, **status)  # type: ignore[arg-type]
        self._write(topics.STATUS, encode(found), key=topics.status_key(self.name))
        self.beat()

    def beat(self, **fields: Any) -> None:
        """Writes the status of the worker. It counts as silent after half a minute without one; a
        test on a busy machine may take longer, so the status is from an hour later."""
        later_ms = self.now_ms() + 3_600_000
        found = {"updated_ms": later_ms, "pipelines": [self.name], "spark": "4.3.0", **fields}
        status = WorkerStatus(self.worker, "box", "s1", self.started_ms, **found)
        self._write(topics.STATUS, encode(status), key=topics.worker_key(self.worker))

    def tell(self, what: str, text: str = "", **fields: Any) -> None:
        event = Event(self.name, self.now_ms(), what, text, **fields)
        self._write(topics.HISTORY, encode(event), key=self.name.encode())

    def log(self, lines: Sequence[str], version: int = 1) -> None:
        chunk = LogChunk(self.name, version, self.now_ms(), list(lines))
        self._write(topics.LOGS, encode(chunk), key=self.name.encode())
