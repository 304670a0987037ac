"""What processing asks of a consumer and of a producer, and what its callers meet: types only.

The async `Consumer` and `Producer` fit these as they are; a test may hand in something smaller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from penstock.client.environment import ClientEnv
from penstock.client.model import Headers, Record, RecordMetadata, TopicPartition
from penstock.client.options import ConsumerOptions

K = TypeVar("K")
V = TypeVar("V")

Ordering = Literal["partition", "key", "none"]
"""Within what records are handled one after the other, in the order of the log."""

ErrorAction = Literal["retry", "dead_letter", "skip", "fail"]

Handler = Callable[[Record[K, V]], Awaitable[object] | object]
"""Handles one record; it is done when this returns, and has failed when this raises."""

OnError = Callable[
    [Record[K, V], Exception, int], ErrorAction | Awaitable[ErrorAction | None] | None
]
"""Asked after each failed attempt with the record, the error and the number of attempts so far.
None leaves the decision to the options of the run."""


class PolledConsumer(Protocol[K, V]):
    """A consumer as far as loops over its records need it."""

    @property
    def env(self) -> ClientEnv: ...

    @property
    def options(self) -> ConsumerOptions: ...

    async def poll(
        self, timeout_ms: int = 500, max_records: int | None = None
    ) -> list[Record[K, V]]: ...

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None: ...

    def assignment(self) -> frozenset[TopicPartition]: ...

    def seek(self, place: TopicPartition, offset: int) -> None: ...

    def hold_auto_commit(self) -> None: ...

    def release_auto_commit(self) -> None: ...


class RunConsumer(PolledConsumer[K, V], Protocol[K, V]):
    """A consumer as far as `run` needs it."""

    @property
    def deserializes(self) -> bool: ...

    def wakeup(self) -> None: ...

    def pause(self, *places: TopicPartition) -> None: ...

    def resume(self, *places: TopicPartition) -> None: ...

    def paused(self) -> frozenset[TopicPartition]: ...

    def add_listener(self, listener: object) -> None: ...

    def remove_listener(self, listener: object) -> None: ...


class DeadLetterProducer(Protocol):
    """What sends records that cannot be handled to where somebody will look at them."""

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
    """What became of the records that a run was given."""

    processed: int = 0
    """Handled without an error, retries included."""
    retried: int = 0
    """Attempts after the first, over all records."""
    dead_lettered: int = 0
    skipped: int = 0
    """Given up because `on_error` said so."""
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The last offset that this run committed for each partition."""


Places = Collection[TopicPartition]
