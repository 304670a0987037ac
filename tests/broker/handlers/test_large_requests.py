"""Large requests are processed in portions: every partition once, in order, under its topic."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.handlers.large_requests import ask_in_portions, topic_portions
from penstock.ports import Slicing
from penstock.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse

Asked = OffsetDeleteRequest.Topic
Told = OffsetDeleteResponse.Topic


def topics(*sizes: int) -> list[Asked]:
    return [
        Asked(f"t{number}", [OffsetDeleteRequest.Partition(index) for index in range(size)])
        for number, size in enumerate(sizes)
    ]


def shape(portion: list[Asked]) -> list[tuple[str, list[int]]]:
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in portion]


def test_topics_are_split_where_a_portion_is_full() -> None:
    found = [(continues, shape(part)) for continues, part in topic_portions(topics(1, 5, 1), 3)]
    assert found == [
        (False, [("t0", [0]), ("t1", [0, 1])]),
        (True, [("t1", [2, 3, 4])]),
        (False, [("t2", [0])]),
    ]


def test_a_portion_has_a_bounded_number_of_topics_without_partitions() -> None:
    found = [shape(part) for _, part in topic_portions(topics(0, 0, 0), 2)]
    assert found == [[("t0", []), ("t1", [])], [("t2", [])]]


@pytest.mark.parametrize("sizes", [(), (1,), (2000,), (1, 1, 1), (700, 700), (0, 3, 500, 1)])
def test_the_response_has_every_topic_and_partition_in_order(sizes: tuple[int, ...]) -> None:
    asked_at_once = []

    async def ask(portion: list[Asked]) -> list[Told]:
        asked_at_once.append(sum(len(topic.partitions) for topic in portion))
        return [
            Told(
                topic.name,
                [OffsetDeleteResponse.Partition(each.partition_index) for each in topic.partitions],
            )
            for topic in portion
        ]

    answers = asyncio.run(ask_in_portions(topics(*sizes), ask, Slicing()))
    assert answers is not None
    assert [(each.name, len(each.partitions)) for each in answers] == [
        (f"t{number}", size) for number, size in enumerate(sizes)
    ]
    for topic in answers:
        indexes = [each.partition_index for each in topic.partitions]
        assert indexes == list(range(len(indexes)))
    assert max(asked_at_once, default=0) <= 500


def test_no_portion_is_processed_after_a_refused_one() -> None:
    asked = []

    async def ask(portion: list[Asked]) -> list[Told] | None:
        asked.append(portion)
        return None

    assert asyncio.run(ask_in_portions(topics(2000), ask, Slicing())) is None
    assert len(asked) == 1
