"""Tests that interceptors see and change records, and cannot break the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock.client.interceptors import (
    ConsumerInterceptor,
    ProducerInterceptor,
    ProducerRecord,
    consumer_chain,
    producer_chain,
)
from penstock.client.model import OffsetAndMetadata, Record, RecordMetadata
from penstock.topic_partition import TopicPartition

RECORD = ProducerRecord("t", "value", "key")
METADATA = RecordMetadata("t", 0, 5, 7)


class Appending(ProducerInterceptor):
    def __init__(self, text: str) -> None:
        self.text = text
        self.acknowledged: list[Any] = []

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        return replace(record, value=record.value + self.text)

    def on_acknowledgement(
        self,
        record: ProducerRecord[Any, Any],
        metadata: RecordMetadata | None,
        error: BaseException | None,
    ) -> None:
        self.acknowledged.append((record, metadata, error))


class Failing(ProducerInterceptor, ConsumerInterceptor):
    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        raise RuntimeError("no send")

    def on_acknowledgement(
        self,
        record: ProducerRecord[Any, Any],
        metadata: RecordMetadata | None,
        error: BaseException | None,
    ) -> None:
        raise RuntimeError("no acknowledgement")

    def on_consume(self, records: list[Record[Any, Any]]) -> list[Record[Any, Any]]:
        raise RuntimeError("no consume")

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        raise RuntimeError("no commit")


class Forgetful(ProducerInterceptor):
    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        return None  # type: ignore[return-value]


class Dropping(ConsumerInterceptor):
    def __init__(self) -> None:
        self.committed: list[Mapping[TopicPartition, OffsetAndMetadata]] = []

    def on_consume(self, records: list[Record[Any, Any]]) -> list[Record[Any, Any]]:
        return records[1:]

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed.append(offsets)


def test_without_interceptors_there_is_no_chain() -> None:
    assert producer_chain(()) is None
    assert consumer_chain(()) is None


def test_each_interceptor_gets_the_result_of_the_one_before() -> None:
    """All of them receive the outcome."""
    first, second = Appending("1"), Appending("2")
    chain = producer_chain([first, second])
    assert chain is not None
    sent = chain.on_send(RECORD)
    assert sent.value == "value12"
    assert RECORD.value == "value"
    chain.on_acknowledgement(sent, METADATA, None)
    assert first.acknowledged == second.acknowledged == [(sent, METADATA, None)]


def test_failing_interceptors_are_logged_and_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """The interceptors after them still run."""
    last = Appending("!")
    chain = producer_chain([Failing(), Forgetful(), last])
    assert chain is not None
    sent = chain.on_send(RECORD)
    assert sent.value == "value!"
    chain.on_acknowledgement(sent, None, ValueError("x"))
    assert len(last.acknowledged) == 1
    assert "Failing.on_send failed" in caplog.text
    assert "RuntimeError: no send" in caplog.text
    assert "Failing.on_acknowledgement failed" in caplog.text
    assert "Forgetful.on_send returned NoneType instead of ProducerRecord" in caplog.text


def test_consumer_interceptors_work_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """They may withhold records from the caller; failing ones change nothing."""
    last = Dropping()
    chain = consumer_chain([Failing(), last])
    assert chain is not None
    records: list[Record[Any, Any]] = [Record("t", 0, number, 0, b"", b"") for number in range(3)]
    assert chain.on_consume(records) == records[1:]
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(3)}
    chain.on_commit(offsets)
    assert last.committed == [offsets]
    assert "Failing.on_consume failed" in caplog.text
    assert "Failing.on_commit failed" in caplog.text


def test_an_interceptor_may_override_nothing() -> None:
    sending, reading = (
        producer_chain([ProducerInterceptor()]),
        consumer_chain([ConsumerInterceptor()]),
    )
    assert sending is not None
    assert reading is not None
    assert sending.on_send(RECORD) is RECORD
    sending.on_acknowledgement(RECORD, METADATA, None)
    assert reading.on_consume([]) == []
    reading.on_commit({})
