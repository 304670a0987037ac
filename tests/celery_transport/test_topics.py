"""The settings of the topics that the transport creates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from penstock import Admin
from penstock.celery.queue_arguments import QueueArguments
from penstock.celery.settings import Settings
from penstock.celery.topics import Abilities, Topics
from penstock.client.errors import BrokerError, TopicNotFound
from penstock.runtime import SystemClock
from penstock.testing import Broker
from penstock.wire.errors import ErrorCode

pytestmark = pytest.mark.xdist_group("celery")


@pytest.mark.parametrize(
    ("configs", "max_priority", "expected", "partitions"),
    [
        ({}, None, Abilities(timed=True, levels=0), 1),
        ({}, 3, Abilities(timed=True, levels=4), 4),
        ({}, 255, Abilities(timed=True, levels=8), 8),
        ({"penstock.timed.records": "false"}, None, Abilities(timed=False, levels=0), 1),
        ({"penstock.priority.levels": "2"}, 9, Abilities(timed=True, levels=2), 2),
    ],
)
def test_a_new_queue_has_due_times_and_levels(
    broker: Broker,
    configs: dict[str, str],
    max_priority: int | None,
    expected: Abilities,
    partitions: int,
) -> None:
    topic = broker.new_name("made")
    with Admin(broker.bootstrap) as admin:
        topics = Topics(admin, Settings((broker.bootstrap,), topic_configs=configs), SystemClock())
        topics.ensure_queue(topic, QueueArguments(max_priority))
        assert topics.abilities(topic) == expected
        assert len(admin.describe_topic(topic).partitions) == partitions


def test_a_new_queue_has_the_greatest_length_that_it_was_declared_with(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.new_name("short")
    with Admin(broker.bootstrap) as admin:
        topics = Topics(admin, Settings((broker.bootstrap,)), SystemClock())
        topics.ensure_queue(topic, QueueArguments(length_max=3))
        entries = admin.describe_configs(topic=topic)
        assert entries["penstock.queue.length.max"].value == "3"
        assert entries["penstock.queue.length.policy"].value == "drop-oldest"
        assert caplog.text == ""
        for _ in range(2):
            Topics(admin, Settings((broker.bootstrap,)), SystemClock()).ensure_queue(
                topic, QueueArguments(length_max=5, length_policy="refuse")
            )
    assert f"penstock topic alter {topic} --config penstock.queue.length.max=5" in caplog.text


def test_arguments_without_effect_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    topics, _ = topics_on_kafka({})
    for _ in range(2):
        topics.ensure_queue("jobs", QueueArguments(ignored=("x-expires",)))
    assert caplog.text.count("have no effect: x-expires") == 1


class KafkaAdmin:
    """Stands in for a cluster whose brokers do not have Penstock's settings."""

    def __init__(self) -> None:
        self.created: dict[str, tuple[int, dict[str, str]]] = {}

    def describe_topic(self, topic: str) -> object:
        raise TopicNotFound(topic)

    def create_topic(self, topic: str, partitions: int, *, configs: Mapping[str, str]) -> None:
        for name in configs:
            if name.startswith("penstock.") or configs[name] == "bad":
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        self.created[topic] = partitions, dict(configs)


def topics_on_kafka(configs: dict[str, str]) -> tuple[Topics, KafkaAdmin]:
    admin = KafkaAdmin()
    settings = Settings(("localhost:1",), topic_configs=configs)
    return Topics(cast(Any, admin), settings, SystemClock()), admin


def test_brokers_without_these_settings_create_a_plain_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics, admin = topics_on_kafka({"retention.ms": "60000"})
    topics.ensure_queue("jobs", QueueArguments(9))
    assert admin.created == {"jobs": (-1, {"retention.ms": "60000"})}
    assert "without the settings for due times, priorities and limits" in caplog.text


def test_a_setting_of_the_user_that_is_wrong_stays_an_error() -> None:
    topics, admin = topics_on_kafka({"retention.ms": "bad"})
    with pytest.raises(BrokerError, match="retention"):
        topics.ensure_queue("jobs", QueueArguments())
    assert admin.created == {}
