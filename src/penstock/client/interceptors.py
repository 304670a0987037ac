"""Looking at records on their way, and changing them: tracing, auditing, enrichment.

Interceptors are called in the order they are given, each with what the one before it returned. A
client must not fail because somebody's counting does: what an interceptor raises is logged, and
the record goes on as it was before that interceptor. A client without interceptors has no chain at
all, and pays one comparison per record. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from penstock.client.model import (
    Headers,
    K,
    OffsetAndMetadata,
    Record,
    RecordMetadata,
    TopicPartition,
    V,
)

_LOG: Final = logging.getLogger("penstock.client")
T = TypeVar("T")


@dataclass(slots=True)
class ProducerRecord(Generic[K, V]):
    """One record as it was given to `send`, before it is serialized."""

    topic: str
    value: V
    key: K
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerInterceptor:
    """Override what you need. Calls come from whoever sends, and must be quick."""

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        """Before anything is done with the record; return it, changed or not, or another."""
        return record

    def on_acknowledgement(
        self,
        record: ProducerRecord[Any, Any],
        metadata: RecordMetadata | None,
        error: BaseException | None,
    ) -> None:
        """When the record's fate is known; `record` is what the last interceptor returned."""


class ConsumerInterceptor:
    """Override what you need. Calls come from `poll` and its like, and must be quick."""

    def on_consume(self, records: list[Record[Any, Any]]) -> list[Record[Any, Any]]:
        """Before records are returned to the caller. Positions move past all of them, whether or
        not they are in the list that comes back."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """After these offsets were committed."""


class ProducerChain:
    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        self._interceptors = tuple(interceptors)

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        for interceptor in self._interceptors:
            record = _passed(interceptor.on_send, record, ProducerRecord)
        return record

    def on_acknowledgement(
        self,
        record: ProducerRecord[Any, Any],
        metadata: RecordMetadata | None,
        error: BaseException | None,
    ) -> None:
        for interceptor in self._interceptors:
            try:
                interceptor.on_acknowledgement(record, metadata, error)
            except Exception:  # noqa: BLE001 (see the module's docstring)
                _complain(interceptor.on_acknowledgement)


class ConsumerChain:
    def __init__(self, interceptors: Sequence[ConsumerInterceptor]) -> None:
        self._interceptors = tuple(interceptors)

    def on_consume(self, records: list[Record[Any, Any]]) -> list[Record[Any, Any]]:
        for interceptor in self._interceptors:
            records = _passed(interceptor.on_consume, records, list)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for interceptor in self._interceptors:
            try:
                interceptor.on_commit(offsets)
            except Exception:  # noqa: BLE001 (see the module's docstring)
                _complain(interceptor.on_commit)


def producer_chain(interceptors: Sequence[ProducerInterceptor]) -> ProducerChain | None:
    return ProducerChain(interceptors) if interceptors else None


def consumer_chain(interceptors: Sequence[ConsumerInterceptor]) -> ConsumerChain | None:
    return ConsumerChain(interceptors) if interceptors else None


def _passed(step: Callable[[T], T], item: T, kind: type[Any]) -> T:
    """What the step makes of the item, or the item when it fails or returns something else."""
    try:
        result = step(item)
    except Exception:  # noqa: BLE001 (see the module's docstring)
        _complain(step)
        return item
    if not isinstance(result, kind):
        _LOG.error(
            "%s returned %s instead of %s: it is ignored",
            step.__qualname__,
            type(result).__name__,
            kind.__name__,
        )
        return item
    return result


def _complain(step: Callable[..., Any]) -> None:
    _LOG.exception("%s failed; the client goes on without it", step.__qualname__)
