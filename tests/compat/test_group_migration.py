"""Live groups of real clients move between the classic and the new protocol, under load.

Records are produced all the time. Members are replaced one after the other by members of the other
protocol, as a rolling restart does: first all by new ones, then all by classic ones. Members
commit after each poll. Nothing is lost, and a record is received twice only if its commit
was refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from client.live_broker import CONSUMER_GROUPS
from compat.new_members import (
    CLASSIC,
    CONFLUENT,
    JAVA,
    NEW,
    OURS,
    NewGroup,
    NewMember,
    new_member_commands,
)
from compat.test_new_groups import Commands
from penstock import Admin, Producer
from penstock.testing import Broker

__all__ = ["new_member_commands"]

PARTITIONS = 6
EVERY_S = 0.05
SETTINGS = {
    **CONSUMER_GROUPS,
    "group.consumer.heartbeat.interval.ms": "300",
    # No session may end while processes are started on a busy machine.
    "group.consumer.session.timeout.ms": "60000",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as started:
        yield started


@pytest.fixture
def group(broker: Broker, new_member_commands: Commands) -> Iterator[NewGroup]:
    with NewGroup(broker.bootstrap, broker.new_name("group"), new_member_commands) as made:
        yield made


@contextmanager
def load(group: NewGroup, topic: str) -> Iterator[None]:
    """Produces records until the block ends: record N goes to partition N % PARTITIONS."""
    is_over = threading.Event()

    def produce() -> None:
        with Producer(group.bootstrap.split(",")) as producer:
            while not is_over.wait(EVERY_S):
                values = [f"{topic}/{len(group.produced) + each}" for each in range(PARTITIONS)]
                for partition, value in enumerate(values):
                    producer.send(topic, value.encode(), partition=partition)
                producer.flush()
                group.produced.update(values)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def wait_for_news(group: NewGroup) -> None:
    """Waits until every partition has delivered a record that was not produced before."""
    known = len(group.produced)

    def has_news() -> bool:
        numbers = (int(value.rpartition("/")[2]) for value in group.received())
        return len({number % PARTITIONS for number in numbers if number >= known}) == PARTITIONS

    group.wait(has_news)


def state_of(broker: Broker, group: NewGroup) -> tuple[str, int]:
    """Returns the protocol of the group, and how many members it has."""
    with Admin(broker.bootstrap) as admin:
        kinds = {each.group: each.kind for each in admin.list_groups()}
        return kinds[group.group], len(admin.describe_group(group.group).members)


def replace(
    group: NewGroup, members: list[NewMember], at: int, kind: str, topic: str, protocol: str
) -> None:
    """Replaces a member, and waits until the group has settled and reads on."""
    group.close(members[at])
    members[at] = group.enter(kind, topic, protocol=protocol)
    group.wait(lambda: group.shared(*members, total=PARTITIONS))
    wait_for_news(group)


def check_records(group: NewGroup) -> None:
    """No record is missing. Records are repeated only if a commit was refused."""
    offsets: dict[tuple[str, int], set[int]] = {}
    for member in group.members:
        for (topic, partition, offset), _ in list(member.records):
            offsets.setdefault((topic, partition), set()).add(offset)
    for place, found in offsets.items():
        assert found == set(range(max(found) + 1)), f"{place} has gaps"
    errors = [line for member in group.members for line in member.said if line.startswith("error")]
    assert errors or group.repeated() == []


@pytest.mark.parametrize(
    "kinds",
    [(JAVA, JAVA), (CONFLUENT, CONFLUENT), (OURS, OURS), (JAVA, CONFLUENT)],
    ids="-".join,
)
def test_a_live_group_is_upgraded_and_downgraded_under_load(
    broker: Broker, group: NewGroup, kinds: tuple[str, str]
) -> None:
    """Offsets are kept: members of either protocol go on where the one before them committed."""
    topic = broker.new_topic(PARTITIONS)
    with load(group, topic):
        members = [group.enter(kind, topic, protocol=CLASSIC) for kind in kinds]
        group.wait(lambda: group.shared(*members, total=PARTITIONS))
        wait_for_news(group)
        assert state_of(broker, group) == ("classic", 2)

        replace(group, members, 0, kinds[0], topic, NEW)
        assert state_of(broker, group) == ("consumer", 2), "it has members of both protocols"
        replace(group, members, 1, kinds[1], topic, NEW)
        assert state_of(broker, group) == ("consumer", 2)

        replace(group, members, 0, kinds[0], topic, CLASSIC)
        assert state_of(broker, group) == ("consumer", 2)
        replace(group, members, 1, kinds[1], topic, CLASSIC)
        assert state_of(broker, group) == ("classic", 2)
    group.wait_for_records()
    check_records(group)
    with Admin(broker.bootstrap) as admin:
        total = len(group.produced)
        group.wait(
            lambda: sum(each.offset for each in admin.group_offsets(group.group).values()) == total
        )
