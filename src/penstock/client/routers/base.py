"""What a router is told, and what it answers. Pure.

A router chooses the partition of a record that names none. It sees the topic's partitions through
a `PartitionView`, which also lends it randomness: a router holds no clock, no generator and no
connection, and its choices can be replayed. One router serves all topics of a producer, so what it
remembers it remembers by topic.
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
    """A router named a partition that the topic does not have."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A topic's partitions as the producer knows them now."""

    count: int
    available: tuple[int, ...]
    """Those with a leader. Keys go where they belong all the same, and wait."""
    queued_bytes: Callable[[int], int]
    """What waits in the producer for a partition."""
    below: Callable[[int], int]
    """A random whole number in [0, bound)."""
    batch_size: int
    """How many bytes without a key go to one partition before the next is chosen."""

    @property
    def candidates(self) -> tuple[int, ...]:
        """Where a record may go that belongs nowhere: with no leader at all, anywhere."""
        return self.available or tuple(range(self.count))


class Router:
    """Subclass and write `route`; `route_columns` then asks it row by row.

    `size` is about what the record takes in a batch. A negative answer or one that the topic has
    no partition for fails the send with `RoutingError`.
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
        raise NotImplementedError

    def route_columns(self, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
        """The partition of each row, as int32."""
        from penstock.client.routers import columns  # noqa: PLC0415 (imports pyarrow)

        return columns.row_by_row(self, topic, rows, view)


def checked(router: Router, partition: int, view: PartitionView) -> int:
    """The partition, if the topic has it."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise RoutingError(
            f"{type(router).__name__} answered {partition!r}: a partition is a whole number"
        )
    if not 0 <= partition < view.count:
        raise RoutingError(
            f"{type(router).__name__} answered partition {partition}, "
            f"but the topic has 0 to {view.count - 1}"
        )
    return partition
