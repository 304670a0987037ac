"""The interface of routers, which choose the partition of records sent without one. Pure.

A router sees the topic's partitions through a `PartitionView`, which also provides randomness. It
holds no clock, no random generator and no connection, so its choices can be replayed. One router
serves all topics of a producer, so it must keep its state per topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.model import Headers
from penstock.client.routers.partition_view import PartitionView, checked

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Any


class Router:
    """Base class of routers. Subclass it and implement `route`; pass an object as `router=`.

    `route_columns` calls `route` for each row of a table unless it is overridden. If the result is
    negative or beyond the topic's partitions, the send fails with `RoutingError`.

    Example:
        class LargeRecordsApart(routers.Router):
            def route(self, topic, key, headers, timestamp_ms, size, view):
                return view.count - 1 if size > 1_000 else view.below(view.count - 1)

        with Producer("localhost:9092", router=LargeRecordsApart()) as producer:
            print(producer.send("payments", bytes(2_000)).result().partition)
        #> 2
    """

    def route(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        view: PartitionView,
    ) -> int:
        """Returns the partition of a record. `size` is its approximate size in a batch."""
        raise NotImplementedError

    def route_columns(self, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
        """Returns the partition of each row, as int32."""
        from penstock.client.routers import columns  # noqa: PLC0415 (imports pyarrow)

        def route(key: bytes | None, headers: Headers, timestamp_ms: int, size: int) -> int:
            return checked(self, self.route(topic, key, headers, timestamp_ms, size, view), view)

        return columns.row_by_row(route, rows)
