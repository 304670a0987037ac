"""A topic's partitions as routers see them. Pure.

This module imports no router and no pyarrow, so that the routers and the code that routes columns
can both use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.client.errors import ClientError


class RoutingError(ClientError):
    """A router chose a partition that the topic does not have: correct the router.

    Example:
        with Producer("localhost:9092", router=lambda topic, key, count: 7) as producer:
            try:
                producer.send("orders", b"tea")
            except errors.RoutingError as error:
                print(error)
        #> CallableRouter returned partition 7, but the topic has partitions 0 to 0
    """


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A topic's partitions as the producer currently knows them. `Router.route` receives it.

    Example:
        view = routers.PartitionView(
            count=3, available=(0, 2), queued_bytes=lambda partition: 0,
            below=lambda bound: 0, batch_size=16_384,
        )
        print(view.candidates)
        #> (0, 2)
    """

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


Choose = Callable[[PartitionView, Sequence[int]], int]
"""Chooses a partition for the next batch. The sequence holds the bytes just sent to each partition,
in addition to those that the view reports."""


def checked(router: object, partition: int, view: PartitionView) -> int:
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
