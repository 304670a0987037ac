"""Tests how dead letters are counted, with a real broker and a query as Spark shows it."""

from __future__ import annotations

from typing import Any

from penstock import Admin, Producer
from penstock.runtime import SystemClock
from penstock.spark.pipelines.dead_letters import DeadLetters
from penstock.testing import Broker


class Scala:
    """An object of the JVM: every value is a method."""

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, lambda value=value: value)


class Collection:
    def __init__(self, *elements: Any) -> None:
        self._elements = elements

    def iterator(self) -> Any:
        left = [*self._elements]
        found = Scala()
        found.hasNext = lambda: bool(left)  # type: ignore[attr-defined]
        found.next = lambda: left.pop(0)  # type: ignore[attr-defined]
        return found


def query(kind: str = "StreamingRelationV2", **options: str) -> Any:
    leaf = Scala(getClass=Scala(getSimpleName=kind), extraOptions=options)
    return Scala(analyzedPlan=Scala(collectLeaves=Collection(leaf)))


def test_records_since_the_start_of_the_driver_are_counted(broker: Broker) -> None:
    """Earlier ones are not, and none is counted twice."""
    topic, clock = broker.new_topic(partitions=2), SystemClock()

    def send(number: int, at_ms: int | None = None) -> None:
        with Producer(broker.bootstrap) as producer:
            for each in range(number):
                producer.send(topic, b"bad", partition=each % 2, timestamp_ms=at_ms)

    send(5, at_ms=clock.wall_ms() - 60_000)
    counting = DeadLetters(clock.wall_ms() - 1_000)
    counting.note(query(deadlettertopic=topic))
    with Admin(broker.bootstrap) as admin:
        send(3)
        assert counting.look(admin) == {topic: 3}
        assert counting.look(admin) == {}
        send(2)
        counting.note(query(deadlettertopic=topic))
        assert counting.look(admin) == {topic: 2}


def test_a_topic_that_does_not_exist_yet_has_none(broker: Broker) -> None:
    counting = DeadLetters(0)
    counting.note(query(deadlettertopic="not-there"))
    with Admin(broker.bootstrap) as admin:
        assert counting.look(admin) == {}


def test_queries_without_dead_letters_are_left_out() -> None:
    counting = DeadLetters(0)
    for each in (query(), query("LocalRelation", deadlettertopic="t"), object()):
        counting.note(each)
    assert counting._counted == {}
