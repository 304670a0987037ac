"""The default router: chooses exactly the partitions that Java's client chooses. Pure.

A key always goes to the partition that its hash determines, in every client. Records without a key
may go anywhere and are cheapest to send together: they stick to one partition until a batch's worth
of bytes was sent there, and then move to another (KIP-794). The next partition is random. With
`adaptive`, partitions with less queued data are more likely, so a partition with a slow broker gets
less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.client.model import Headers
from penstock.client.routers.base import Router
from penstock.client.routers.partition_view import Choose, PartitionView
from penstock.records.hashing import partition_of

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Any


def choose_uniformly(view: PartitionView, sent: Sequence[int]) -> int:
    candidates = view.candidates
    return candidates[view.below(len(candidates))]


def choose_adaptively(view: PartitionView, sent: Sequence[int]) -> int:
    """Chooses at random; partitions with less queued data are more likely."""
    candidates = view.candidates
    if len(candidates) == 1:
        return candidates[0]
    waiting = [view.queued_bytes(partition) + sent[partition] for partition in candidates]
    most = max(waiting)
    if most == min(waiting):
        return candidates[view.below(len(candidates))]
    # The fullest partition keeps the weight of one batch, so that it is tried sometimes and can
    # show that it is fast again.
    weights = [most - bytes_waiting + max(view.batch_size, 1) for bytes_waiting in waiting]
    point = view.below(sum(weights))
    for partition, weight in zip(candidates, weights, strict=True):
        point -= weight
        if point < 0:
            return partition
    raise AssertionError("a point below the sum of all weights lies within one of them")


class _Stay:
    """The partition that a topic's records go to now, and how many more bytes may go there."""

    __slots__ = ("partition", "room")

    def __init__(self) -> None:
        self.partition = -1
        self.room = 0


class Sticky:
    """Sends records to one partition until a batch's worth was sent there, then chooses another."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self._topics: dict[str, _Stay] = {}

    def place(self, topic: str, size: int, view: PartitionView) -> int:
        stay = self._topics.get(topic)
        if stay is None:
            stay = self._topics[topic] = _Stay()
        if stay.room <= 0 or stay.partition >= view.count:
            stay.partition = self.choose(view, [0] * view.count)
            stay.room = max(view.batch_size, 1)
        stay.room -= size
        return stay.partition


class DefaultRouter(Router):
    """Routes keys by Java's hash, and records without a key to one partition per batch.

    Producers without `router` use it. `ignore_keys` treats all records as if they had no key.
    `adaptive` prefers partitions with less queued data.

    Example:
        with Producer("localhost:9092", router=routers.DefaultRouter()) as producer:
            first = producer.send("payments", b"10", key=b"ann").result()
            second = producer.send("payments", b"20", key=b"ann").result()
        print(first.partition == second.partition)
        #> True
    """

    def __init__(self, *, ignore_keys: bool = False, adaptive: bool = True) -> None:
        self.ignore_keys = ignore_keys
        self._sticky = Sticky(choose_adaptively if adaptive else choose_uniformly)

    def route(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        view: PartitionView,
    ) -> int:
        if key is not None and not self.ignore_keys:
            return partition_of(key, view.count)
        return self._sticky.place(topic, size, view)

    def route_columns(self, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
        from penstock.client.routers import columns  # noqa: PLC0415 (imports pyarrow)

        placed = columns.Placed(rows)
        if not self.ignore_keys:
            placed.by_hash(columns.MURMUR2, view)
        placed.by_runs(self._sticky.choose, view)
        return placed.finish()
