"""Reports the streaming queries of a Spark session to the console: `watch(spark)`.

A Spark listener collects its events into a report for each query and sends the report to a topic of
the cluster. Consoles read that topic, on any machine. Reporting never disturbs a query: a report
that cannot be sent is logged and dropped, and the next report is complete again.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.client.blocking.admin import Admin
from penstock.client.blocking.producer import Producer
from penstock.client.errors import BrokerError, ClientError
from penstock.ports import Clock
from penstock.runtime import SystemClock
from penstock.spark.reports import TOPIC, TOPIC_SETTINGS, Report
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_BOOTSTRAP_VARIABLE: Final = "PENSTOCK_BOOTSTRAP"
_CLOSE_S: Final = 5.0
_BLOCK_MS: Final = 2_000
"""Spark calls its listeners one after the other, so none may take long."""
_log = logging.getLogger(__name__)


def watch(spark: SparkSession, bootstrap: str = "") -> Watch:
    """Reports every streaming query of the session to the cluster from now on.

    The console shows the reports. The default address is PENSTOCK_BOOTSTRAP, or else
    localhost:9092. The topic for the reports is created if it does not exist; `ConnectFailed` or
    `BrokerError` is raised if that fails. Reporting ends with the session, with `close()`, or with
    the block of a `with`. It never disturbs a query.

    Example:
        with penstock.spark.watch(spark, "localhost:9092"):
            query = spark.readStream.format("rate").load().writeStream.format("noop").start()
            query.stop()
    """
    address = bootstrap or os.environ.get(_BOOTSTRAP_VARIABLE) or "localhost:9092"
    with Admin(address) as admin:
        try:
            admin.create_topic(TOPIC, 1, configs=TOPIC_SETTINGS)
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
    producer = Producer(address, client_id="penstock-spark-watch", max_block_ms=_BLOCK_MS)
    producer.start()
    return Watch(spark, producer, SystemClock())


class Watch:
    def __init__(self, spark: SparkSession, producer: Producer[Any, Any], clock: Clock) -> None:
        from pyspark.sql.streaming.listener import (  # noqa: PLC0415 -- reports need no Spark
            StreamingQueryListener,
        )

        self._spark = spark
        self._producer = producer
        self._clock = clock
        self._application = str(spark.conf.get("spark.app.name", "") or "")
        self._reports: dict[str, Report] = {}
        self._turn = threading.Lock()
        """Spark may send events from several threads."""
        telling = self

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 -- Spark's
                telling.on_started(str(event.id), str(event.runId), event.name or "")

            def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 -- Spark's
                telling.on_progress(json.loads(event.progress.json))

            def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 -- Spark's
                telling.on_idle(str(event.id), str(event.runId))

            def onQueryTerminated(  # noqa: N802 -- Spark's
                self, event: QueryTerminatedEvent
            ) -> None:
                telling.on_terminated(str(event.id), str(event.runId), event.exception)

        self._listener = Listener()
        spark.streams.addListener(self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops reporting. Sends the reports that are still buffered."""
        self._spark.streams.removeListener(self._listener)
        self._producer.close(_CLOSE_S)

    # -- events from Spark ----------------------------------------------------------------------

    def on_started(self, query: str, run: str, name: str) -> None:
        with self._turn:
            self._tell(self._report(query, run, name))

    def on_progress(self, progress: dict[str, Any]) -> None:
        with self._turn:
            report = self._report(
                str(progress.get("id")), str(progress.get("runId")), str(progress.get("name") or "")
            )
            report.on_progress(progress, self._clock.wall_ms())
            self._tell(report)

    def on_idle(self, query: str, run: str) -> None:
        with self._turn:
            report = self._report(query, run, "")
            report.on_idle(self._clock.wall_ms())
            self._tell(report)

    def on_terminated(self, query: str, run: str, error: str | None) -> None:
        with self._turn:
            report = self._report(query, run, "")
            report.on_end(error, self._clock.wall_ms())
            self._tell(report)
            del self._reports[query]

    def _report(self, query: str, run: str, name: str) -> Report:
        """Returns the report of this run, a new one if there is none yet: the query may have begun
        before `watch`."""
        known = self._reports.get(query)
        if known is None or known.run_id != run:
            now_ms = self._clock.wall_ms()
            known = self._reports[query] = Report(
                query, run, name, self._application, socket.gethostname(),
                started_ms=now_ms, updated_ms=now_ms,
            )  # fmt: skip
        return known

    def _tell(self, report: Report) -> None:
        try:
            self._producer.send(TOPIC, report.encode(), key=report.id.encode())
        except ClientError as error:
            _log.warning(
                "cannot report on query %s to the console: %s; the query continues",
                report.id,
                error,
            )
