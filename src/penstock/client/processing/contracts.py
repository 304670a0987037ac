"""The types of the processing API, and what it requires of consumers and producers.

The async `Consumer` and `Producer` satisfy these protocols. A test may pass something smaller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from penstock.client.environment import ClientEnv
from penstock.client.membership.steps import Identity
from penstock.client.model import Headers, OffsetAndMetadata, Record, RecordMetadata
from penstock.client.options import ConsumerOptions
from penstock.topic_partition import TopicPartition

K = TypeVar("K")
V = TypeVar("V")

Ordering = Literal["partition", "key", "none"]
"""The scope within which records are handled one after the other, in log order."""

ErrorAction = Literal["retry", "dead_letter", "skip", "fail"]

Handler = Callable[[Record[K, V]], Awaitable[object] | object]
"""Handles one record. The record is done when this returns, and has failed when this raises."""

OnError = Callable[
    [Record[K, V], Exception, int], ErrorAction | Awaitable[ErrorAction | None] | None
]
"""Called after each failed attempt with the record, the error and the number of attempts so far.
None leaves the decision to the options of the run."""


class PolledConsumer(Protocol[K, V]):
    """What loops over records need from a consumer."""

    @property
    def env(self) -> ClientEnv: ...

    @property
    def options(self) -> ConsumerOptions: ...

    async def poll(
        self, timeout_ms: int = 500, max_records: int | None = None
    ) -> list[Record[K, V]]: ...

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None: ...

    def assignment(self) -> frozenset[TopicPartition]: ...

    def seek(self, topic_partition: TopicPartition, offset: int) -> None: ...

    def hold_auto_commit(self) -> None: ...

    def release_auto_commit(self) -> None: ...


class RunConsumer(PolledConsumer[K, V], Protocol[K, V]):
    """What `run` needs from a consumer."""

    @property
    def deserializes(self) -> bool: ...

    def wakeup(self) -> None: ...

    def pause(self, *topic_partitions: TopicPartition) -> None: ...

    def resume(self, *topic_partitions: TopicPartition) -> None: ...

    def paused(self) -> frozenset[TopicPartition]: ...

    def add_listener(self, listener: object) -> None: ...

    def remove_listener(self, listener: object) -> None: ...


class TransactionalConsumer(PolledConsumer[K, V], Protocol[K, V]):
    """What `exactly_once` needs from a consumer."""

    @property
    def membership(self) -> tuple[str, Identity]: ...

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]: ...

    async def committed(
        self, *topic_partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata) -> None: ...


class DeadLetterProducer(Protocol):
    """Sends records that could not be handled to the dead-letter topic."""

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | Iterable[tuple[str, bytes | None]] = (),
    ) -> Awaitable[RecordMetadata]: ...


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What happened to the records of a run. `Consumer.run` and `exactly_once` return it.

    Example:
        stop = threading.Event()
        summary = consumer.run(lambda record: stop.set(), stop=stop)
        print(summary.processed > 0, summary.retried, summary.dead_lettered, summary.skipped)
        #> True 0 0 0
    """

    processed: int = 0
    """The number of records handled without an error, after retries where necessary."""
    retried: int = 0
    """The number of attempts after the first, over all records."""
    dead_lettered: int = 0
    """The number of records sent to the dead-letter topic."""
    skipped: int = 0
    """The number of records given up because `on_error` returned "skip"."""
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The last offset that this run committed for each partition."""


TopicPartitions = Collection[TopicPartition]
