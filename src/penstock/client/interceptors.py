"""Interceptors: they observe and change records, for tracing, auditing or enrichment.

Interceptors are called in the order in which they are given, each with the result of the previous
one. A client must not fail because of an interceptor: if one raises an error, the error is logged,
and the record continues as it was before that interceptor. A client without interceptors has no
chain at all, and pays for one comparison per record. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from penstock.client.model import Headers, K, OffsetAndMetadata, Record, RecordMetadata, V
from penstock.topic_partition import TopicPartition

_LOG: Final = logging.getLogger("penstock.client")
T = TypeVar("T")


@dataclass(slots=True)
class ProducerRecord(Generic[K, V]):
    """One record as it was given to `send`, before serialization.

    Interceptors receive and return it. Handlers of `exactly_once` return the records to send.

    Example:
        record = interceptors.ProducerRecord("orders", value=b"tea", key=b"ann")
        print(record.topic, record.key, record.partition)
        #> orders b'ann' None
    """

    topic: str
    value: V
    key: K
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerInterceptor:
    """Base class of producer interceptors; override what you need.

    The methods are called on the path of each record and must be fast. An error in one of them is
    logged, and the record is sent without it.

    Example:
        class AddSource(interceptors.ProducerInterceptor):
            def on_send(self, record):
                record.headers = (*record.headers, ("source", b"web"))
                return record

        with Producer("localhost:9092", interceptors=[AddSource()]) as producer:
            producer.send("orders", b"tea").result()
    """

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        """Called before anything is done with the record. Returns it, changed or not, or another
        record."""
        return record

    def on_acknowledgement(
        self,
        record: ProducerRecord[Any, Any],
        metadata: RecordMetadata | None,
        error: BaseException | None,
    ) -> None:
        """Called when the outcome is known. `record` is what the last interceptor returned."""


class ConsumerInterceptor:
    """Base class of consumer interceptors; override what you need.

    The methods are called inside `poll` and similar calls and must be fast. An error in one of them
    is logged, and the records are returned without it.

    Example:
        class ForAnn(interceptors.ConsumerInterceptor):
            def on_consume(self, records):
                return [record for record in records if record.key == b"ann"]

        with Consumer(
            "localhost:9092", topics="orders", auto_offset_reset="earliest", interceptors=[ForAnn()]
        ) as consumer:
            print([record.value for record in consumer.poll(timeout_ms=10_000)])
        #> [b'tea', b'rice']
    """

    def on_consume(self, records: list[Record[Any, Any]]) -> list[Record[Any, Any]]:
        """Called before records are returned to the caller. Returns the records to return.

        Positions move past all records, whether or not they are in the returned list.
        """
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Called after these offsets were committed."""


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
    """Returns the result of the step, or the item if the step fails or returns another type."""
    try:
        result = step(item)
    except Exception:  # noqa: BLE001 (see the module's docstring)
        _complain(step)
        return item
    if not isinstance(result, kind):
        _LOG.error(
            "interceptor %s returned %s instead of %s: its result is ignored",
            step.__qualname__,
            type(result).__name__,
            kind.__name__,
        )
        return item
    return result


def _complain(step: Callable[..., Any]) -> None:
    _LOG.exception("interceptor %s failed; the client continues without it", step.__qualname__)
