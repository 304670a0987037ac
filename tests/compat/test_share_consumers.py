"""Share groups as librdkafka's share consumer uses them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from penstock import Producer
from penstock.testing import Broker
from penstock.testing.slowness import patient

LIMIT_S = patient(60.0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


def consumer(broker: Broker, group: str, topic: str, mode: str = "explicit") -> ShareConsumer:
    made = ShareConsumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": mode,
        }
    )
    made.subscribe([topic])
    return made


def jobs(broker: Broker, count: int, partitions: int = 1) -> tuple[str, str]:
    """Returns a topic with this many records, and a group that begins at the first of them."""
    topic, group = broker.new_topic(partitions), broker.new_name("group")
    entry = ConfigEntry(
        "share.auto.offset.reset",
        "earliest",
        incremental_operation=AlterConfigOpType.SET,
    )
    wanted = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.incremental_alter_configs([wanted]).values():
        done.result(LIMIT_S)
    with Producer(broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)
    return topic, group


def some(member: ShareConsumer) -> list[Message]:
    """Polls until something comes."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if found := list(member.poll(1.0)):
            assert not [each.error() for each in found if each.error()]
            return found
    raise AssertionError("no records came")


def values(messages: list[Message]) -> set[bytes]:
    return {bytes(each.value() or b"") for each in messages}


def test_accepted_records_do_not_come_again(broker: Broker) -> None:
    topic, group = jobs(broker, 100)
    seen: list[Message] = []
    with consumer(broker, group, topic, "implicit") as member:
        while len(seen) < 100:
            seen += some(member)
        assert not [error for error in member.commit_sync(LIMIT_S).values() if error]
    assert values(seen) == {b"%d" % number for number in range(100)}
    assert len(seen) == 100
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"last")
    with consumer(broker, group, topic, "implicit") as other:
        assert values(some(other)) == {b"last"}


def test_released_records_come_again_and_rejected_ones_do_not(broker: Broker) -> None:
    topic, group = jobs(broker, 3)
    with consumer(broker, group, topic) as member:
        chosen = {
            b"0": AcknowledgeType.ACCEPT,
            b"1": AcknowledgeType.RELEASE,
            b"2": AcknowledgeType.REJECT,
        }
        left = set(chosen)
        while left:
            for message in some(member):
                value = bytes(message.value() or b"")
                counts = message.delivery_count()
                member.acknowledge(message, chosen[value])
                left.discard(value)
                assert counts == 1
            assert not [error for error in member.commit_sync(LIMIT_S).values() if error]
        (again,) = some(member)
        assert (again.value(), again.delivery_count()) == (b"1", 2)
        member.acknowledge(again, AcknowledgeType.ACCEPT)
        assert not [error for error in member.commit_sync(LIMIT_S).values() if error]


def test_members_share_the_records_of_a_partition(broker: Broker) -> None:
    """Each record is accepted once, by one of three members."""
    topic, group = jobs(broker, 3_000, partitions=2)
    seen: list[list[Message]] = [[], [], []]

    def work(own: list[Message]) -> None:
        deadline = time.monotonic() + LIMIT_S
        with consumer(broker, group, topic, "implicit") as member:
            while sum(map(len, seen)) < 3_000 and time.monotonic() < deadline:
                own.extend(member.poll(0.2))
                # A member that is closed releases what it has not committed.
                assert not any(member.commit_sync(LIMIT_S).values())

    threads = [threading.Thread(target=work, args=(own,)) for own in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [message for own in seen for message in own]
    assert [each.error() for each in everything if each.error()] == []
    assert {each.delivery_count() for each in everything} == {1}
    assert len(everything) == 3_000
    assert values(everything) == {b"%d" % number for number in range(3_000)}


def test_records_of_a_closed_member_come_to_another(broker: Broker) -> None:
    topic, group = jobs(broker, 10)
    with consumer(broker, group, topic) as member:
        some(member)
    seen: set[bytes] = set()
    with consumer(broker, group, topic, "implicit") as other:
        while len(seen) < 10:
            seen |= values(some(other))
