"""Prepares the arguments of `send`: calls interceptors, serializes, checks headers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.client.errors import ClientError, SerializationFailed
from penstock.client.interceptors import ProducerChain, ProducerRecord
from penstock.client.model import Headers, RecordMetadata
from penstock.client.producing.batch_outcome import DeliveryCallback


class Intercepted:
    """A record as the interceptors left it, and the delivery callback that reports its outcome to
    them."""

    __slots__ = ("_chain", "_on_delivery", "_record")

    def __init__(
        self,
        chain: ProducerChain,
        topic: str,
        value: Any,
        key: Any,
        headers: Iterable[tuple[str, bytes | None]],
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: DeliveryCallback | None,
    ) -> None:
        self._chain = chain
        self._on_delivery = on_delivery
        self._record: ProducerRecord[Any, Any] = chain.on_send(
            ProducerRecord(topic, value, key, tuple(headers), partition, timestamp_ms)
        )

    def fields(self) -> tuple[str, Any, Any, Headers, int | None, int | None]:
        """Returns topic, value, key, headers, partition and timestamp."""
        record = self._record
        return (
            record.topic,
            record.value,
            record.key,
            record.headers,
            record.partition,
            record.timestamp_ms,
        )

    def on_refused(self, error: ClientError) -> None:
        """Reports a record that was refused before it reached the buffer."""
        self._chain.on_acknowledgement(self._record, None, error)

    def __call__(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        self._chain.on_acknowledgement(self._record, metadata, error)
        if self._on_delivery is not None:
            self._on_delivery(metadata, error)


def serialized(
    serialize: Callable[[Any], bytes | None], given: Any, what: str, topic: str
) -> bytes | None:
    try:
        return serialize(given)
    except Exception as error:
        raise SerializationFailed(
            f"the {what} of a record for topic {topic} cannot be serialized: {error!r}"
        ) from error


def as_bytes(given: Any, what: str) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise SerializationFailed(
        f"the {what} is {type(given).__name__}, not bytes: encode it first, or, for keys and "
        "values, give the producer a key_serializer or value_serializer"
    )


def checked_headers(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    checked_ones = []
    for header in headers:
        name, content = header
        if not isinstance(name, str):
            raise SerializationFailed(f"header {header!r}: its name must be a string")
        if content is not None and type(content) is not bytes:
            content = as_bytes(content, f"content of header {name}")
        checked_ones.append((name, content))
    return tuple(checked_ones)
