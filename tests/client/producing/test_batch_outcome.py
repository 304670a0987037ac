"""Tests that a batch has one outcome, reported once, however often the batch is split."""

from __future__ import annotations

import threading
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.errors import ClientError, Closed
from penstock.client.model import RecordMetadata
from penstock.client.producing.batch_outcome import BatchOutcome
from penstock.client.producing.deliveries import Delivery
from penstock.topic_partition import TopicPartition

TOPIC_PARTITION = TopicPartition("topic", 3)


def test_every_record_of_a_batch_has_its_own_offset() -> None:
    """The batch's base offset plus the record's index; -1 if the batch has no offset."""
    outcome = BatchOutcome(TOPIC_PARTITION)
    deliveries = [Delivery(outcome, index, 100 + index) for index in range(3)]
    assert "on its way" in repr(deliveries[0])
    outcome.succeed(50, 3)
    assert deliveries[2].outcome() == RecordMetadata("topic", 3, 52, 102)
    assert "done" in repr(deliveries[0])
    unknown = BatchOutcome(TOPIC_PARTITION)
    unknown.succeed(-1, 3)
    assert Delivery(unknown, 2, 7).outcome() == RecordMetadata("topic", 3, -1, 7)


def test_log_append_time_replaces_the_timestamp_of_the_record() -> None:
    outcome = BatchOutcome(TOPIC_PARTITION)
    outcome.succeed(0, 1, append_time_ms=999)
    assert Delivery(outcome, 0, 5).outcome().timestamp == 999


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_callbacks_survive_splits(data: st.DataObject) -> None:
    """A callback added before, between or after splits gets the outcome of the
    part that has its record."""
    count = data.draw(st.integers(2, 30))
    root = BatchOutcome(TOPIC_PARTITION)
    told: dict[int, list[Any]] = {index: [] for index in range(count)}
    over: list[str] = []
    root.watch_batch(lambda: over.append("before"))

    def ask(index: int) -> None:
        root.watch_record(index, 0, lambda *fate: told[index].append(fate))

    open_parts = [(0, count, root)]
    settled: dict[int, int | ClientError] = {}
    for index in range(0, count, 3):
        ask(index)
    while open_parts:
        first, size, outcome = open_parts.pop(
            data.draw(st.integers(0, len(open_parts) - 1), label="which")
        )
        if size > 1 and data.draw(st.booleans(), label="split"):
            middle = (size + 1) // 2
            left, right = BatchOutcome(TOPIC_PARTITION), BatchOutcome(TOPIC_PARTITION)
            outcome.split(((0, left), (middle, right)))
            open_parts += [(first, middle, left), (first + middle, size - middle, right)]
        elif data.draw(st.booleans(), label="succeeds"):
            offset = data.draw(st.integers(0, 1000), label="offset")
            outcome.succeed(offset, size)
            settled |= {first + n: offset + n for n in range(size)}
        else:
            error = Closed("gone")
            outcome.fail(error)
            settled |= dict.fromkeys(range(first, first + size), error)
        assert bool(over) == (not open_parts)
    for index in range(1, count, 3):
        ask(index)
    root.watch_batch(lambda: over.append("after"))
    assert over == ["before", "after"]
    assert root.is_over
    for index in range(count):
        fate = settled[index]
        delivery = Delivery(root, index, 0)
        assert delivery.done()
        if isinstance(fate, ClientError):
            assert delivery.error() is fate
            expected: Any = (None, fate)
        else:
            assert delivery.outcome().offset == fate
            expected = (delivery.outcome(), None)
        assert told[index] == ([expected] if index % 3 < 2 else [])


def test_callbacks_added_while_a_batch_completes_run_once() -> None:
    """From another thread, without a lock: none is lost, none runs twice."""
    for _ in range(30):
        outcome = BatchOutcome(TOPIC_PARTITION)
        called: list[int] = []
        begin = threading.Barrier(2)

        def add(
            outcome: BatchOutcome = outcome, called: list[int] = called, begin: Any = begin
        ) -> None:
            begin.wait(120)
            for number in range(200):
                outcome.watch_record(number, 0, lambda *_, number=number: called.append(number))

        thread = threading.Thread(target=add)
        thread.start()
        begin.wait(120)
        outcome.succeed(0, 200)
        thread.join(120)
        assert sorted(called) == list(range(200))
