"""Routers that use a record's contents, the time, or the load of the partitions. Pure."""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from penstock.client.errors import OptionError
from penstock.client.model import Headers
from penstock.client.routers.base import Router
from penstock.client.routers.default import DefaultRouter, Sticky, choose_adaptively
from penstock.client.routers.partition_view import PartitionView, checked

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Any


class RoundRobinRouter(Router):
    """Sends each record to the next available partition, regardless of its key.

    Use it to spread few records evenly. Batches are small, so it costs throughput.

    Example:
        with Producer("localhost:9092", router=routers.RoundRobinRouter()) as producer:
            sent = [producer.send("payments", b"10").result() for _ in range(3)]
        print(sorted(metadata.partition for metadata in sent))
        #> [0, 1, 2]
    """

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def route(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        view: PartitionView,
    ) -> int:
        turn = self._turns(topic, 1, view)
        candidates = view.candidates
        return candidates[turn % len(candidates)]

    def route_columns(self, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415 (only tables need it)

        candidates = view.candidates
        first = self._turns(topic, len(rows), view) % len(candidates)
        turns = pa.array([*candidates[first:], *candidates[:first]], pa.int32())
        rounds = -(-len(rows) // len(candidates))
        return pa.concat_arrays([turns] * rounds).slice(0, len(rows)) if rounds else turns[:0]

    def _turns(self, topic: str, count: int, view: PartitionView) -> int:
        """Reserves `count` turns and returns the first. A topic starts at a random turn, not always
        0."""
        turn = self._next.get(topic)
        if turn is None:
            turn = view.below(view.count)
        self._next[topic] = turn + count
        return turn


class Crc32Router(Router):
    """Routes a key by its CRC-32, as librdkafka does by default (`consistent_random`).

    Use it to share a topic with producers of confluent-kafka. Records without a key or with an
    empty key stick to a partition for a batch at a time. With `hash_empty_keys` they go to
    partition 0, the CRC of nothing, as in librdkafka's `consistent`.

    Example:
        with Producer("localhost:9092", router=routers.Crc32Router()) as producer:
            print(producer.send("payments", b"10", key=b"ann").result().partition)
        #> 0
    """

    def __init__(self, *, hash_empty_keys: bool = False) -> None:
        self.hash_empty_keys = hash_empty_keys
        self._sticky = Sticky(choose_adaptively)

    def route(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        view: PartitionView,
    ) -> int:
        if key or self.hash_empty_keys:
            return crc32(key or b"") % view.count
        return self._sticky.place(topic, size, view)

    def route_columns(self, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
        from penstock.client.routers import columns  # noqa: PLC0415 (imports pyarrow)

        placed = columns.Placed(rows)
        placed.by_hash(columns.CRC32, view, empty_is_null=not self.hash_empty_keys)
        if self.hash_empty_keys:
            placed.rest_to(0)
        placed.by_runs(self._sticky.choose, view)
        return placed.finish()


class KeyRangeRouter(Router):
    """Routes by ranges of keys: keys below the first boundary go to partition 0, and so on.

    `boundaries` must ascend, or `OptionError` is raised. n boundaries make n + 1 ranges, and the
    topic needs as many partitions. Records without a key go to partition 0.

    Example:
        with Producer("localhost:9092", router=routers.KeyRangeRouter(["h", "p"])) as producer:
            for key in (b"ann", b"kim", b"zoe"):
                print(key, producer.send("payments", b"10", key=key).result().partition)
        #> b'ann' 0
        #> b'kim' 1
        #> b'zoe' 2
    """

    def __init__(self, boundaries: Sequence[bytes | str]) -> None:
        self._boundaries = [
            boundary.encode() if isinstance(boundary, str) else boundary for boundary in boundaries
        ]
        pairs = zip(self._boundaries, self._boundaries[1:], strict=False)
        if not self._boundaries or any(low >= high for low, high in pairs):
            raise OptionError(f"boundaries are {list(boundaries)!r}: give keys in ascending order")

    def route(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        view: PartitionView,
    ) -> int:
        return 0 if key is None else bisect_right(self._boundaries, key)

    def route_columns(self, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415 (only tables need it)
        import pyarrow.compute as pc  # noqa: PLC0415 -- only when used

        from penstock.client.routers import columns  # noqa: PLC0415 (imports pyarrow)

        answer = pa.repeat(pa.scalar(0, pa.int32()), len(rows))
        if "key" not in rows.schema.names or pa.types.is_null(rows.column("key").type):
            return answer
        keys = columns.binary(rows.column("key"))
        for boundary in self._boundaries:
            above = pc.greater_equal(keys, pa.scalar(boundary, keys.type)).fill_null(False)
            answer = pc.add(answer, above.cast(pa.int32()))
        return answer


class GeographicRouter(Router):
    """Routes by a header: each region has one or more partitions, and the key selects one of them.

    Records of other regions are routed by `fallback`, by default `DefaultRouter`.

    Example:
        router = routers.GeographicRouter({"eu": [0, 1], "us": 2}, header="region")
        with Producer("localhost:9092", router=router) as producer:
            delivery = producer.send("payments", b"10", headers=[("region", b"us")])
            print(delivery.result().partition)
        #> 2
    """

    def __init__(
        self,
        regions: Mapping[str, int | Sequence[int]],
        *,
        header: str = "region",
        fallback: Router | None = None,
    ) -> None:
        self.header = header
        self._fallback = fallback or DefaultRouter()
        self._regions = {
            region.encode(): (given,) if isinstance(given, int) else tuple(given)
            for region, given in regions.items()
        }
        for region, partitions in regions.items():
            if not self._regions[region.encode()]:
                raise OptionError(
                    f"region {region} has no partitions ({partitions!r}): give it at least one"
                )
        self._within = DefaultRouter()

    def route(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        view: PartitionView,
    ) -> int:
        region = next((value for name, value in reversed(headers) if name == self.header), None)
        partitions = self._regions.get(region) if region is not None else None
        if partitions is None:
            return self._fallback.route(topic, key, headers, timestamp_ms, size, view)
        if len(partitions) == 1:
            return partitions[0]
        return partitions[self._member(partitions, region, topic, key, size, view)]

    def _member(
        self,
        partitions: tuple[int, ...],
        region: bytes | None,
        topic: str,
        key: bytes | None,
        size: int,
        view: PartitionView,
    ) -> int:
        """Selects one of a region's partitions, by routing as if they were a topic."""
        leading = set(view.available)
        inner = PartitionView(
            count=len(partitions),
            available=tuple(n for n, partition in enumerate(partitions) if partition in leading),
            queued_bytes=lambda number: view.queued_bytes(partitions[number]),
            below=view.below,
            batch_size=view.batch_size,
        )
        return self._within.route(f"{topic} {region!r}", key, (), 0, size, inner)


class LoadAwareRouter(Router):
    """Routes each batch to the less loaded of two randomly picked partitions.

    Picking from two is nearly as good as comparing all (`choices=None`), and does not send every
    producer to the same idle partition. Keys are ignored: use it where the order of records with
    the same key does not matter.

    Example:
        with Producer("localhost:9092", router=routers.LoadAwareRouter()) as producer:
            print(producer.send("payments", b"10").result().partition in range(3))
        #> True
    """

    def __init__(self, choices: int | None = 2) -> None:
        if choices is not None and choices < 1:
            raise OptionError(f"choices is {choices}: give at least 1, or None for all partitions")
        self.choices = choices
        self._sticky = Sticky(self._least)

    def route(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        view: PartitionView,
    ) -> int:
        return self._sticky.place(topic, size, view)

    def route_columns(self, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
        from penstock.client.routers import columns  # noqa: PLC0415 (imports pyarrow)

        placed = columns.Placed(rows)
        placed.by_runs(self._sticky.choose, view)
        return placed.finish()

    def _least(self, view: PartitionView, sent: Sequence[int]) -> int:
        candidates = list(view.candidates)
        if self.choices is not None:
            # Without repetition, so that two choices are two partitions.
            for picked in range(min(self.choices, len(candidates))):
                other = picked + view.below(len(candidates) - picked)
                candidates[picked], candidates[other] = candidates[other], candidates[picked]
            del candidates[self.choices :]
        return min(candidates, key=lambda partition: view.queued_bytes(partition) + sent[partition])


class TimeWindowRouter(Router):
    """Sends all records of a time window to one partition, and those of the next window to the next
    partition.

    Example:
        with Producer("localhost:9092", router=routers.TimeWindowRouter(60_000)) as producer:
            for minute in (0, 1, 4):
                delivery = producer.send("payments", b"10", timestamp_ms=minute * 60_000)
                print(delivery.result().partition)
        #> 0
        #> 1
        #> 1
    """

    def __init__(self, window_ms: int) -> None:
        if window_ms < 1:
            raise OptionError(f"window_ms is {window_ms}: give at least 1")
        self.window_ms = window_ms

    def route(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        view: PartitionView,
    ) -> int:
        return max(timestamp_ms, 0) // self.window_ms % view.count

    def route_columns(self, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415 (only tables need it)
        import pyarrow.compute as pc  # noqa: PLC0415 -- only when used

        from penstock.client.routers import columns  # noqa: PLC0415 (imports pyarrow)

        when = pa.array(columns.times(rows), pa.int64())
        windows = pc.divide(pc.max_element_wise(when, 0), self.window_ms)
        rounds = pc.multiply(pc.divide(windows, view.count), view.count)
        return pc.subtract(windows, rounds).cast(pa.int32())


class CallableRouter(Router):
    """Makes any function a router: `(topic, key, count)`, or all arguments of `Router.route`.

    A producer does this itself: `Producer(router=by_length)`. Use this class to combine a function
    with other routers, such as the `fallback` of `GeographicRouter`.

    Example:
        def by_length(topic: str, key: bytes | None, partitions: int) -> int:
            return len(key or b"") % partitions

        with Producer("localhost:9092", router=routers.CallableRouter(by_length)) as producer:
            print(producer.send("payments", b"10", key=b"anna").result().partition)
        #> 1
    """

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function
        self._takes_all = _takes_all(function)

    def route(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        view: PartitionView,
    ) -> int:
        if self._takes_all:
            answer = self._function(topic, key, headers, timestamp_ms, size, view)
        else:
            answer = self._function(topic, key, view.count)
        return checked(self, answer, view)


def _takes_all(function: Callable[..., int]) -> bool:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some C functions have no signature
        return False
    for arguments in (3, 6):
        try:
            signature.bind(*range(arguments))
        except TypeError:
            continue
        return arguments == 6
    raise OptionError(
        f"router: {function!r} takes {signature}; "
        "give a function (topic, key, count) or (topic, key, headers, timestamp_ms, size, view)"
    )
