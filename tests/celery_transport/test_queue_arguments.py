"""The arguments of queues, under RabbitMQ's names."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Queue
from kombu.transport.base import to_rabbitmq_queue_arguments

from penstock.celery.queue_arguments import BadArgument, QueueArguments, read_arguments


def test_arguments_of_kombu_are_understood() -> None:
    queue = Queue("jobs", message_ttl=1.5, max_length=10, max_priority=3, expires=60)
    options = {"message_ttl": queue.message_ttl, "max_length": queue.max_length}
    options |= {"max_priority": queue.max_priority, "expires": queue.expires}
    found = read_arguments(to_rabbitmq_queue_arguments({}, **options))
    assert found == QueueArguments(3, 1500, 10, "drop-oldest", ("x-expires",))
    assert found.topic_configs() == {
        "penstock.priority.levels": "4",
        "penstock.queue.length.max": "10",
        "penstock.queue.length.policy": "drop-oldest",
    }


def test_without_arguments_a_queue_is_plain() -> None:
    assert read_arguments(None) == read_arguments({}) == QueueArguments()
    assert read_arguments({"x-queue-type": "quorum", "x-max-length": None}) == QueueArguments()
    assert QueueArguments().topic_configs() == {}


def test_publishers_can_be_refused_at_the_greatest_length() -> None:
    found = read_arguments({"x-max-length": 5, "x-overflow": "reject-publish"})
    assert found.topic_configs()["penstock.queue.length.policy"] == "refuse"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x-message-ttl": -1}, "x-message-ttl is -1, but it must be a whole number, 0 or more"),
        ({"x-message-ttl": "9"}, "x-message-ttl is '9', but it must be a whole number, 0 or more"),
        ({"x-max-length": 0}, "x-max-length is 0, but it must be a whole number, 1 or more"),
        ({"x-max-priority": True}, "x-max-priority is True, but it must be a whole number"),
        ({"x-overflow": "drop"}, "x-overflow is 'drop', but it must be drop-head or reject"),
    ],
)
def test_bad_values_are_refused(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadArgument, match=expected):
        read_arguments(arguments)
