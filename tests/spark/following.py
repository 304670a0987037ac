"""Runs a streaming query and collects its rows, batch by batch."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.testing.slowness import patient
from spark.direct import Deadline

END_S = 300.0


class Row(NamedTuple):
    topic: str
    partition: int
    offset: int


class Followed:
    """Collects with `foreachBatch`. A batch that is run again replaces its earlier rows."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}

    def take(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("topic", "partition", "offset").collect()
        self.batches[batch_id] = [Row(*row) for row in rows]

    @property
    def rows(self) -> list[Row]:
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]

    def offsets(self, topic: str, partition: int = 0) -> list[int]:
        return [row.offset for row in self.rows if row[:2] == (topic, partition)]

    def start(
        self, frame: DataFrame, checkpoint: str, *, interval: str | None = None
    ) -> StreamingQuery:
        """Starts a query that reads everything available and ends, or with an interval
        one that runs until stopped."""
        writer = frame.writeStream.option("checkpointLocation", checkpoint)
        kind: dict[str, Any] = {"processingTime": interval} if interval else {"availableNow": True}
        query: StreamingQuery = writer.foreachBatch(self.take).trigger(**kind).start()
        return query

    def run(self, frame: DataFrame, checkpoint: str) -> StreamingQuery:
        """Runs a query to its end; raises its error."""
        query = self.start(frame, checkpoint)
        if not query.awaitTermination(int(patient(END_S))):
            query.stop()
            raise AssertionError(f"the query did not end: {query.lastProgress}")
        return query

    def wait_for(self, count: int, query: StreamingQuery) -> None:
        deadline = Deadline(END_S)
        while len(self.rows) < count:
            if not query.isActive:
                raise AssertionError(f"the query ended by itself: {query.exception()}")
            deadline.check(f"row {count} (there are {len(self.rows)})")
