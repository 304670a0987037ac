"""`watch(spark)`: the streaming queries of a session, shown in the console wherever that runs.

A listener of Spark's folds its events into a report for each query and sends it to a topic of the
cluster, where consoles read it. It never disturbs a query: what cannot be sent is logged and left
out, and the next report is complete again.
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
"""Spark's listeners wait for each other: none may take long."""
_log = logging.getLogger(__name__)


def watch(spark: SparkSession, bootstrap: str = "") -> Watch:
    """Tell the cluster of every streaming query of the session, from now on.

        penstock.spark.watch(spark, "localhost:9092")

    Without an address it is PENSTOCK_BOOTSTRAP, or localhost:9092. The topic that reports go to is
    made where it is missing. Ends with the session, or with `close()`.
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
        """Events come from threads of Spark's choosing."""
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
        """Tell nothing more; what was told is sent."""
        self._spark.streams.removeListener(self._listener)
        self._producer.close(_CLOSE_S)

    # -- what Spark tells -----------------------------------------------------------------------

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
        """That of this run; a query may have begun before anybody listened."""
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
            _log.warning("the console is not told of query %s: %s", report.id, error)
