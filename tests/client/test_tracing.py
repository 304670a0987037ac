"""Tests trace spans and their context, from send through headers to the handler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock import aio
from penstock.client import tracing
from penstock.client.errors import DeliveryTimedOut
from penstock.client.interceptors import ProducerInterceptor, ProducerRecord, producer_chain
from penstock.client.model import Headers, Record, RecordMetadata
from penstock.client.tracing import ConsumerTracing, ProducerTracing, processing
from penstock.testing import Broker
from penstock.testing.slowness import patient


class Traced:
    """A tracer provider for one test, so that no test changes the global one."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def finished(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def one(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.finished() if span.name == name]
        return span


@pytest.fixture
def traced() -> Traced:
    return Traced()


def sent_by(traced: Traced, key: object = "k", value: object = "v") -> ProducerRecord[Any, Any]:
    """Returns a record that passed through a traced producer and was acknowledged."""
    interceptor = ProducerTracing(client_id="me", tracer_provider=traced.provider)
    record = interceptor.on_send(ProducerRecord("orders", value, key, (("h", b"1"),)))
    interceptor.on_acknowledgement(record, RecordMetadata("orders", 2, 41, 0), None)
    return record


def received(headers: Headers, offset: int = 41, topic: str = "orders") -> Record[Any, Any]:
    return Record(topic, 2, offset, 0, b"k", b"v", headers)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def test_a_send_span_ends_with_the_acknowledgment(traced: Traced) -> None:
    """Its name and attributes follow OpenTelemetry's conventions."""
    interceptor = ProducerTracing(client_id="me", tracer_provider=traced.provider)
    record = interceptor.on_send(ProducerRecord("orders", "v", "k"))
    assert not traced.finished()
    interceptor.on_acknowledgement(record, RecordMetadata("orders", 2, 41, 0), None)
    span = traced.one("send orders")
    assert span.kind is SpanKind.PRODUCER
    assert attributes(span) == {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.client.id": "me",
        "messaging.kafka.message.key": "k",
        "messaging.destination.partition.id": "2",
        "messaging.kafka.offset": 41,
    }


def test_the_context_is_sent_in_the_headers(traced: Traced) -> None:
    """As W3C's traceparent, in addition to the user's headers. An older traceparent is replaced."""
    record = sent_by(traced)
    headers = dict(record.headers)
    span = traced.one("send orders")
    wanted = f"00-{context(span).trace_id:032x}-{context(span).span_id:016x}-".encode()
    assert (headers["traceparent"] or b"").startswith(wanted)
    assert headers["h"] == b"1"
    again = ProducerTracing(tracer_provider=traced.provider).on_send(record)
    assert [name for name, _ in again.headers].count("traceparent") == 1
    assert dict(again.headers)["traceparent"] != headers["traceparent"]


def test_failures_are_recorded(traced: Traced) -> None:
    """A record that was not acknowledged leaves a span with its error."""
    interceptor = ProducerTracing(tracer_provider=traced.provider)
    record = interceptor.on_send(ProducerRecord("orders", None, b"\xff"))
    interceptor.on_acknowledgement(record, None, DeliveryTimedOut("too late"))
    span = traced.one("send orders")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "DeliveryTimedOut"
    assert attributes(span)["messaging.kafka.message.tombstone"] is True
    assert "messaging.kafka.message.key" not in attributes(span)
    assert [event.name for event in span.events] == ["exception"]


def test_unknown_offsets_are_omitted(traced: Traced) -> None:
    """With acks=0 the offset is unknown."""
    interceptor = ProducerTracing(tracer_provider=traced.provider)
    record = interceptor.on_send(ProducerRecord("orders", "v", "k"))
    interceptor.on_acknowledgement(record, RecordMetadata("orders", 2, -1, 0), None)
    assert "messaging.kafka.offset" not in attributes(traced.one("send orders"))


def test_a_record_is_recognized_after_other_interceptors(traced: Traced) -> None:
    """By the context in its headers, not by object identity."""

    class Copying(ProducerInterceptor):
        def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
            return replace(record, headers=(*record.headers, ("more", b"")))

    chain = producer_chain([ProducerTracing(tracer_provider=traced.provider), Copying()])
    assert chain is not None
    for offset in range(3):
        record = chain.on_send(ProducerRecord("orders", "v", "k"))
        chain.on_acknowledgement(record, RecordMetadata("orders", 0, offset, 0), None)
        chain.on_acknowledgement(record, RecordMetadata("orders", 0, offset, 0), None)
    assert [attributes(span)["messaging.kafka.offset"] for span in traced.finished()] == [0, 1, 2]


def test_unfinished_spans_do_not_accumulate(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a limit, the oldest open span is ended."""
    monkeypatch.setattr(tracing, "_OPEN_SPANS_MAX", 2)
    interceptor = ProducerTracing(tracer_provider=traced.provider)
    for number in range(5):
        interceptor.on_send(ProducerRecord("orders", number, f"k{number}"))
    assert [attributes(span)["messaging.kafka.message.key"] for span in traced.finished()] == [
        "k0",
        "k1",
        "k2",
    ]


def test_a_poll_span_is_linked_to_its_senders(traced: Traced) -> None:
    """One span per topic of a poll. Records without context add no link."""
    headers = [sent_by(traced).headers for _ in range(2)]
    senders = {context(span).span_id for span in traced.finished()}
    records = [
        received(headers[0]),
        received(headers[1], 42),
        received((), 43),
        received((("traceparent", b"nonsense"),), 44),
        received((), 1, "other"),
    ]
    interceptor = ConsumerTracing(group_id="g", client_id="me", tracer_provider=traced.provider)
    assert interceptor.on_consume(records) is records
    span = traced.one("poll orders")
    assert span.kind is SpanKind.CLIENT
    assert span.parent is None
    assert {link.context.span_id for link in span.links} == senders
    assert attributes(span) == {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "poll",
        "messaging.operation.type": "receive",
        "messaging.client.id": "me",
        "messaging.consumer.group.name": "g",
        "messaging.batch.message_count": 4,
    }
    assert not traced.one("poll other").links


def test_an_empty_poll_has_no_span(traced: Traced) -> None:
    """Idle consumers must not fill the trace store."""
    assert ConsumerTracing(tracer_provider=traced.provider).on_consume([]) == []
    assert not traced.finished()


def test_processing_continues_the_senders_trace(traced: Traced) -> None:
    """So the handler's own spans are part of the trace that began with the send."""
    record = received(sent_by(traced).headers)
    tracer = traced.provider.get_tracer("handler")
    with (
        tracer.start_as_current_span("loop"),
        processing(record, group_id="g", tracer_provider=traced.provider),
        tracer.start_as_current_span("inside"),
    ):
        pass
    sender, span, inside = (traced.one(n) for n in ("send orders", "process orders", "inside"))
    assert span.kind is SpanKind.CONSUMER
    assert span.parent is not None
    assert span.parent.span_id == context(sender).span_id
    assert inside.parent is not None
    assert inside.parent.span_id == context(span).span_id
    assert [link.context.span_id for link in span.links] == [context(traced.one("loop")).span_id]
    assert attributes(span)["messaging.kafka.offset"] == 41
    assert attributes(span)["messaging.consumer.group.name"] == "g"


def test_an_error_during_processing_is_recorded(traced: Traced) -> None:
    """Once on the span, and it is raised to the caller."""
    with (
        pytest.raises(KeyError, match="gone"),
        processing(received(()), tracer_provider=traced.provider),
    ):
        raise KeyError("gone")
    span = traced.one("process orders")
    assert span.parent is None
    assert attributes(span)["error.type"] == "KeyError"
    assert span.status.status_code is StatusCode.ERROR
    assert len(span.events) == 1


def test_without_an_sdk_nothing_is_added() -> None:
    """The OpenTelemetry API alone records nothing, and records are sent unchanged."""
    interceptor = ProducerTracing()
    record = interceptor.on_send(ProducerRecord("orders", "v", "k"))
    assert record.headers == ()
    interceptor.on_acknowledgement(record, None, None)
    with processing(received(())) as span:
        assert not span.is_recording()


def test_a_trace_passes_through_a_broker(traced: Traced, live_broker: Broker) -> None:
    """From a producer's send to a consumer's handler is one trace, and the poll is linked to it."""
    topic = live_broker.new_topic()
    provider = traced.provider

    async def through() -> Record[bytes | None, bytes | None]:
        async with aio.Producer(
            live_broker.bootstrap, interceptors=[ProducerTracing(tracer_provider=provider)]
        ) as producer:
            await (await producer.send(topic, b"v", key=b"k"))
        async with aio.Consumer(
            live_broker.bootstrap,
            topics=topic,
            auto_offset_reset="earliest",
            interceptors=[ConsumerTracing(tracer_provider=provider)],
        ) as consumer:
            return (await consumer.poll(timeout_ms=60_000))[0]

    record = asyncio.run(asyncio.wait_for(through(), patient(90)))
    with processing(record, tracer_provider=provider):
        pass
    sender, poll, handler = (traced.one(f"{what} {topic}") for what in ("send", "poll", "process"))
    assert attributes(sender)["messaging.kafka.offset"] == 0
    assert [link.context.span_id for link in poll.links] == [context(sender).span_id]
    assert context(handler).trace_id == context(sender).trace_id
