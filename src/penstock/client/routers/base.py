"""The interface of routers, which choose the partition of records sent without one. Pure.

A router sees the topic's partitions through a `PartitionView`, which also provides randomness. It
holds no clock, no random generator and no connection, so its choices can be replayed. One router
serves all topics of a producer, so it must keep its state per topic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.client.errors import ClientError
from penstock.client.model import Headers

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Any


class RoutingError(ClientError):
    """A router chose a partition that the topic does not have."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A topic's partitions as the producer currently knows them."""

    count: int
    available: tuple[int, ...]
    """The partitions that have a leader. Records with a key go to their own partition nevertheless,
    and wait there."""
    queued_bytes: Callable[[int], int]
    """Returns the number of bytes that wait in the producer for a partition."""
    below: Callable[[int], int]
    """Returns a random integer in [0, bound)."""
    batch_size: int
    """How many bytes of records without a key go to one partition before the next one is chosen."""

    @property
    def candidates(self) -> tuple[int, ...]:
        """The partitions to choose from for a record without a key: all of them if none has a
        leader."""
        return self.available or tuple(range(self.count))


class Router:
    """Base class of routers. Subclass it and implement `route`.

    `route_columns` calls `route` for each row unless it is overridden. `size` is the approximate
    size of the record in a batch. If the result is negative or beyond the topic's partitions, the
    send fails with `RoutingError`.
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
        """Returns the partition of a record."""
        raise NotImplementedError

    def route_columns(self, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
        """Returns the partition of each row, as int32."""
        from penstock.client.routers import columns  # noqa: PLC0415 (imports pyarrow)

        return columns.row_by_row(self, topic, rows, view)


def checked(router: Router, partition: int, view: PartitionView) -> int:
    """Returns the partition if the topic has it, and raises `RoutingError` otherwise."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise RoutingError(
            f"{type(router).__name__} returned {partition!r}: a partition must be a whole number"
        )
    if not 0 <= partition < view.count:
        raise RoutingError(
            f"{type(router).__name__} returned partition {partition}, "
            f"but the topic has partitions 0 to {view.count - 1}"
        )
    return partition
