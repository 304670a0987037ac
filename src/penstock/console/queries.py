"""Reads the reports of Spark streaming queries (`penstock.spark.watch`).

Spark jobs that use `penstock.spark.watch` write reports to a topic. The topic is compacted and
small, so it is read from the beginning. The last report of each query is kept.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any, Final

from penstock.client.errors import ClientError
from penstock.console.link import Link
from penstock.console.progress import Progress
from penstock.console.watch import Watch
from penstock.spark.reports import TOPIC, Report, decode
from penstock.topic_partition import TopicPartition

SILENT_MS: Final = 120_000
"""A running query counts as silent after this. An idle one reports every ten seconds by default."""
_KEPT_MAX: Final = 1_000
_POLL_MS: Final = 1_000
_REST_S: Final = 2.0
_log = logging.getLogger(__name__)


class Queries:
    def __init__(self, link: Link, watch: Watch, progress: Progress) -> None:
        self._link = link
        self._progress = progress
        self._watch = watch
        self._reports: dict[str, Report] = {}

    async def run(self) -> None:
        """Follows the topic of reports. Ends only by cancellation."""
        while True:
            try:
                if self._partitions():
                    await self._follow()
            except ClientError as error:
                _log.debug("cannot read the reports of streaming queries: %s; retrying", error)
            await self._link.env.clock.sleep(_REST_S)

    def _partitions(self) -> int:
        topic = self._watch.picture.by_name.get(TOPIC)
        return 0 if topic is None else len(topic.partitions)

    async def _follow(self) -> None:
        """Reads reports as long as the topic exists."""
        async with self._link.consumer() as consumer:
            consumer.assign([TopicPartition(TOPIC, index) for index in range(self._partitions())])
            while self._partitions():
                for record in await consumer.poll(timeout_ms=_POLL_MS):
                    self.apply(record.key, record.value)
        self._reports.clear()

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        name = (key or b"").decode(errors="replace")
        if value is None:
            self._reports.pop(name, None)
            return
        report = decode(value)
        if report is None or report.id != name:
            return
        self._reports[name] = report
        if report.state == "RUNNING":
            self._progress.add(
                name,
                report.run_id,
                report.updated_ms,
                self._link.env.clock.wall_ms(),
                rows=report.rows,
                lag=report.lag,
                batch_ms=None if report.batch is None else report.batch_ms,
            )
        if len(self._reports) > _KEPT_MAX:
            del self._reports[min(self._reports, key=lambda each: self._reports[each].updated_ms)]

    def listed(self) -> list[dict[str, Any]]:
        """Returns the running queries first, then the others; the latest report first."""
        now_ms = self._link.env.clock.wall_ms()
        rows = []
        for report in self._reports.values():
            silent = report.state == "RUNNING" and now_ms - report.updated_ms > SILENT_MS
            rows.append({**asdict(report), "state": "SILENT" if silent else report.state})
        return sorted(rows, key=lambda row: (row["state"] != "RUNNING", -row["updated_ms"]))
