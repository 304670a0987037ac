"""Tests a topic that is deleted and created again under the same name while in use."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from penstock import Admin, Consumer, Producer, TopicPartition
from penstock.client.admin.offsets import EARLIEST
from penstock.client.consuming.subscription import Need, Subscription
from penstock.testing import Broker
from penstock.testing.slowness import patient

TOPIC_PARTITION = TopicPartition("t", 0)
LIMIT_S = 100.0


def take(consumer: Consumer[Any, Any], count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        records = consumer.poll(int(patient(10_000)))
        assert records, f"only {found} came"
        found += [record.value for record in records]
    assert consumer.poll(50) == []
    return found


class FromTheStart:
    """Seeks to the beginning once, at the first assignment."""

    def __init__(self, consumer: Consumer[Any, Any]) -> None:
        self.consumer: Consumer[Any, Any] | None = consumer

    def on_assigned(self, topic_partitions: Collection[TopicPartition]) -> None:
        if self.consumer is not None and topic_partitions:
            self.consumer.seek_to_beginning(*topic_partitions)
            self.consumer = None


WAYS = ("subscribed", "assigned", "in a group")


@pytest.mark.parametrize("way", WAYS)
def test_a_recreated_topic_is_read_from_its_first_record(live_broker: Broker, way: str) -> None:
    """The old topic had been read further than the new one reaches, and any reset policy may apply.
    Producers continue as well."""
    topic = live_broker.new_topic()
    options: Any = {"metadata_max_age_ms": 100, "auto_offset_reset": "none"}
    if way == "in a group":
        # The group may rebalance in between and then has a partition without a position, which the
        # reset policy decides. With auto-commit it could have a committed offset of the old topic,
        # and would continue from there.
        options |= {"group_id": live_broker.new_name("group"), "auto_offset_reset": "earliest"}
        options |= {"enable_auto_commit": False}
    with (
        Admin(live_broker.bootstrap) as admin,
        Producer(live_broker.bootstrap, metadata_max_age_ms=100) as producer,
        Consumer(live_broker.bootstrap, **options) as consumer,
    ):
        for number in range(3):
            producer.send(topic, b"old %d" % number).result(LIMIT_S)
        if way == "assigned":
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
        else:
            consumer.subscribe([topic], listener=FromTheStart(consumer))
        assert take(consumer, 3) == [b"old %d" % number for number in range(3)]
        admin.delete_topic(topic)
        for _ in range(100):
            consumer.poll(50)
            if topic not in {found.name for found in admin.list_topics()}:
                break
        live_broker.new_topic(name=topic)
        new = [b"new %d" % number for number in range(5)]
        for value in new:
            producer.send(topic, value).result(LIMIT_S)
        assert take(consumer, 5) == new


def test_state_of_the_old_log_is_discarded() -> None:
    """Position, leader epoch and buffered records are discarded. Being paused is kept."""
    subscription = Subscription()
    subscription.assign([TOPIC_PARTITION])
    old = subscription.state(TOPIC_PARTITION)
    subscription.on_leader(old, 7)
    subscription.set_position(old, 40, 7)
    old.paused = True
    token = old.token
    subscription.renew([TOPIC_PARTITION], EARLIEST)
    state = subscription.state(TOPIC_PARTITION)
    assert subscription.current(TOPIC_PARTITION, token) is None
    assert (state.position, state.need, state.time) == (None, Need.TIME, EARLIEST)
    assert state.paused
    subscription.on_leader(state, 0)
    assert state.leader_epoch == 0
