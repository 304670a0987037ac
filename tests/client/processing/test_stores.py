"""Tests offset stores in the user's database."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from client.processing.fake_consumer import FakeConsumer, log_of
from penstock.client.errors import CommitFailed, OptionError
from penstock.client.processing.stores import Span, SqlOffsets, StoreListener, spans
from penstock.topic_partition import TopicPartition

A = TopicPartition("t", 0)
B = TopicPartition("t", 1)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "offsets.db")
    yield connection
    connection.close()


def test_spans_of_records_by_partition() -> None:
    """For each partition the first offset and the next one to read, with or without gaps."""
    records = [*log_of(A, 10)[2:5], *log_of(B, 9)[7:8], log_of(A, 10)[8]]
    assert spans(records) == {A: Span(2, 9), B: Span(7, 8)}
    assert spans([]) == {}


def test_saved_offsets_are_loaded(database: sqlite3.Connection) -> None:
    """Only for the given group and partitions; a partition without an offset is omitted."""
    offsets = SqlOffsets(database, "g")
    with database:
        offsets.save(log_of(A, 3))
        offsets.save(log_of(A, 5)[3:])
    assert offsets.load([A, B]) == {A: 5}
    assert offsets.load([B]) == {}
    assert SqlOffsets(database, "other").load([A]) == {}


def test_saving_is_part_of_the_transaction(database: sqlite3.Connection) -> None:
    """A rollback discards the saved offsets."""
    offsets = SqlOffsets(database, "g")
    with pytest.raises(ZeroDivisionError), database:
        offsets.save(log_of(A, 3))
        raise ZeroDivisionError
    assert offsets.load([A]) == {}


def test_a_consumer_that_is_behind_is_refused(database: sqlite3.Connection) -> None:
    """A consumer that lost a partition without noticing cannot write its records a second time."""
    offsets = SqlOffsets(database, "g")
    with database:
        offsets.save(log_of(A, 5))
    with pytest.raises(CommitFailed, match="has already stored offset 4 of t-0"), database:
        offsets.save([*log_of(A, 8)[4:], *log_of(B, 1)])
    assert offsets.load([A, B]) == {A: 5}
    with database:
        offsets.save(log_of(A, 9)[6:])
    assert offsets.load([A]) == {A: 9}


def test_table_names_are_checked(database: sqlite3.Connection) -> None:
    """The name becomes part of the SQL statement, so only plain names are allowed."""
    with pytest.raises(OptionError, match="not a table name"):
        SqlOffsets(database, "g", table="offsets; DROP TABLE orders")
    SqlOffsets(database, "g", table="main.offsets").load([A])


def test_assigned_partitions_start_at_their_stored_offsets(database: sqlite3.Connection) -> None:
    """Partitions without a stored offset start where the consumer would start them."""
    offsets = SqlOffsets(database, "g")
    with database:
        offsets.save(log_of(A, 5))
    consumer = FakeConsumer({A: log_of(A, 9), B: log_of(B, 9)})
    consumer.positions[B] = 2
    asyncio.run(StoreListener(consumer, offsets).on_assigned([A, B]))
    assert consumer.positions == {A: 5, B: 2}


def test_a_store_may_be_async() -> None:
    """So databases with async drivers can be used."""

    class Store:
        async def load(
            self, topic_partitions: Collection[TopicPartition]
        ) -> Mapping[TopicPartition, int]:
            return dict.fromkeys(topic_partitions, 7)

    consumer = FakeConsumer({A: log_of(A, 9)})
    asyncio.run(StoreListener(consumer, Store()).on_assigned([A]))
    assert consumer.positions == {A: 7}
