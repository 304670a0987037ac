"""OpenTelemetry tracing through record headers (extra `penstock[otel]`).

    Producer(interceptors=[ProducerTracing()])
    Consumer(interceptors=[ConsumerTracing()])

A producer's span lasts from `send` to the acknowledgement. Its context is sent in the header
`traceparent` (W3C Trace Context), or in whatever the global propagator writes. A consumer makes one
span for each poll that returned records, linked to the spans of those records: a poll has many
parents, so it is not a child of any of them. Code that handles a record wraps it in
`processing(record)`, which is part of the sender's trace:

    for record in consumer:
        with tracing.processing(record):
            handle(record)

Names and attributes follow the semantic conventions for messaging and Kafka. The timestamps come
from OpenTelemetry's clock, because they must be consistent with the spans of other libraries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

from penstock.client.interceptors import ConsumerInterceptor, ProducerInterceptor, ProducerRecord
from penstock.client.model import Headers, Record, RecordMetadata

try:
    from opentelemetry import context as otel_context
    from opentelemetry import propagate, trace
    from opentelemetry.propagators.textmap import Getter, Setter
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
except ImportError as error:
    raise ImportError("tracing needs OpenTelemetry: pip install 'penstock[otel]'") from error

_OPEN_SPANS_MAX: Final = 100_000
"""The limit on open spans. Spans of records whose outcome never becomes known must not fill
memory."""
_LINKS_MAX: Final = 128
"""The number of links that a span keeps by default. Only the first records are linked."""

_HeaderList = list[tuple[str, bytes | None]]


class _HeaderSetter(Setter[_HeaderList]):
    def set(self, carrier: _HeaderList, key: str, value: str) -> None:
        carrier[:] = [header for header in carrier if header[0] != key]
        carrier.append((key, value.encode()))


class _HeaderGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        found = [value for name, value in carrier if name.lower() == key and value is not None]
        return [value.decode("utf-8", "replace") for value in found] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


_SETTER: Final = _HeaderSetter()
_GETTER: Final = _HeaderGetter()


class ProducerTracing(ProducerInterceptor):
    """Makes a span for each record sent. Put it last, so that it sees the final record.

    The span lasts from `send` to the acknowledgement. Its context is sent in the record's headers.

    Example:
        with Producer("localhost:9092", interceptors=[tracing.ProducerTracing()]) as producer:
            producer.send("orders", b"tea").result()
    """

    def __init__(
        self, *, client_id: str = "penstock", tracer_provider: TracerProvider | None = None
    ) -> None:
        self._tracer = _tracer(tracer_provider)
        self._client_id = client_id
        self._open: OrderedDict[Headers, Span] = OrderedDict()
        # A sync producer sends on its callers' threads and gets the outcome on its own thread.
        self._lock = Lock()

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        attributes: dict[str, str | int | bool] = {
            **_common(record.topic, "send", "send"),
            "messaging.client.id": self._client_id,
            **_message(record.key, record.value),
        }
        span = self._tracer.start_span(
            f"send {record.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        headers = list(record.headers)
        propagate.inject(headers, trace.set_span_in_context(span), _SETTER)
        traced = ProducerRecord(
            record.topic,
            record.value,
            record.key,
            tuple(headers),
            record.partition,
            record.timestamp_ms,
        )
        if span.is_recording():
            self._remember(_context_headers(traced.headers), span)
        return traced

    def on_acknowledgement(
        self,
        record: ProducerRecord[Any, Any],
        metadata: RecordMetadata | None,
        error: BaseException | None,
    ) -> None:
        with self._lock:
            span = self._open.pop(_context_headers(record.headers), None)
        if span is None:
            return
        if metadata is not None:
            span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
            if metadata.offset >= 0:
                span.set_attribute("messaging.kafka.offset", metadata.offset)
        if error is not None:
            _fail(span, error)
        span.end()

    def _remember(self, context: Headers, span: Span) -> None:
        with self._lock:
            self._open[context] = span
            forgotten = None
            if len(self._open) > _OPEN_SPANS_MAX:
                forgotten = self._open.popitem(last=False)[1]
        if forgotten is not None:
            forgotten.end()


class ConsumerTracing(ConsumerInterceptor):
    """Makes a span for each poll that returned records, linked to the spans of their senders.

    Example:
        with Consumer(
            "localhost:9092",
            topics="orders",
            auto_offset_reset="earliest",
            interceptors=[tracing.ConsumerTracing()],
        ) as consumer:
            print(len(consumer.poll(timeout_ms=10_000)))
        #> 3
    """

    def __init__(
        self,
        *,
        group_id: str | None = None,
        client_id: str = "penstock",
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._tracer = _tracer(tracer_provider)
        self._fixed = {"messaging.client.id": client_id}
        if group_id is not None:
            self._fixed["messaging.consumer.group.name"] = group_id

    def on_consume(self, records: list[Record[Any, Any]]) -> list[Record[Any, Any]]:
        for topic, part in _by_topic(records).items():
            links = [link for record in part[:_LINKS_MAX] for link in links_of(record)]
            span = self._tracer.start_span(
                f"poll {topic}",
                kind=SpanKind.CLIENT,
                links=links,
                attributes={
                    **_common(topic, "poll", "receive"),
                    **self._fixed,
                    "messaging.batch.message_count": len(part),
                },
            )
            span.end()
        return records


@contextmanager
def processing(
    record: Record[Any, Any],
    *,
    group_id: str | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Iterator[Span]:
    """Opens a span around the handling of one record and makes it the current span.

    It continues the trace of the record's sender, and is linked to the span it was opened in. An
    error in the block is recorded in the span and raised again.

    Example:
        for record in consumer.poll(timeout_ms=10_000):
            with tracing.processing(record, group_id="billing"):
                print(record.value)
        #> b'tea'
        #> b'milk'
        #> b'rice'
    """
    attributes: dict[str, str | int | bool] = {
        **_common(record.topic, "process", "process"),
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
        **_message(record.key, record.value),
    }
    if group_id is not None:
        attributes["messaging.consumer.group.name"] = group_id
    around = trace.get_current_span().get_span_context()
    with _tracer(tracer_provider).start_as_current_span(
        f"process {record.topic}",
        context=context_of(record),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(around)] if around.is_valid else [],
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            _fail(span, error)
            raise


def context_of(record: Record[Any, Any]) -> otel_context.Context:
    """Returns the context in the record's headers, or an empty one.

    Use it to start a span of your own that continues the sender's trace.

    Example:
        from opentelemetry import trace

        record = consumer.poll(timeout_ms=10_000)[0]
        with trace.get_tracer("billing").start_as_current_span(
            "bill an order", context=tracing.context_of(record)
        ):
            print(record.value)
        #> b'tea'
    """
    return propagate.extract(record.headers, otel_context.Context(), _GETTER)


def links_of(record: Record[Any, Any]) -> list[Link]:
    """Returns a link to the span that sent the record, if its headers name one.

    Use it for a span that handles many records and so cannot be part of one trace.

    Example:
        from opentelemetry import trace

        records = consumer.poll(timeout_ms=10_000)
        links = [link for record in records for link in tracing.links_of(record)]
        with trace.get_tracer("billing").start_as_current_span("bill all", links=links):
            print(len(links), "of these records have a trace")
        #> 0 of these records have a trace
    """
    sender = trace.get_current_span(context_of(record)).get_span_context()
    return [Link(sender)] if sender.is_valid else []


def _tracer(provider: TracerProvider | None) -> Tracer:
    return trace.get_tracer("penstock", tracer_provider=provider)


def _common(topic: str, name: str, kind: str) -> dict[str, str]:
    return {
        "messaging.system": "kafka",
        "messaging.destination.name": topic,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _message(key: Any, value: Any) -> Mapping[str, str | bool]:
    attributes: dict[str, str | bool] = {}
    text = _key_text(key)
    if text is not None:
        attributes["messaging.kafka.message.key"] = text
    if value is None:
        attributes["messaging.kafka.message.tombstone"] = True
    return attributes


def _key_text(key: Any) -> str | None:
    """Returns the key as text. Other keys are omitted, because the conventions require readable
    ones."""
    if isinstance(key, bytes):
        try:
            return key.decode()
        except UnicodeDecodeError:
            return None
    return str(key) if isinstance(key, str | int) else None


def _context_headers(headers: Headers) -> Headers:
    """Returns the headers that propagators write.

    They identify a record when its acknowledgement arrives, even if a later interceptor has
    replaced the record.
    """
    names = propagate.get_global_textmap().fields
    return tuple(header for header in headers if header[0] in names)


def _by_topic(records: list[Record[Any, Any]]) -> dict[str, list[Record[Any, Any]]]:
    topics: dict[str, list[Record[Any, Any]]] = {}
    for record in records:
        topics.setdefault(record.topic, []).append(record)
    return topics


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
