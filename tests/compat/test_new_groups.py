"""Groups of the new protocol (KIP-848) with real clients: Java, librdkafka, franz-go and ours.

`new_members` describes the members. The broker's intervals are short, so that groups move fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from chaos.broker_processes import BrokerProcesses
from client.live_broker import CONSUMER_GROUPS, SESSION_MS
from compat.new_members import CONFLUENT, GO, JAVA, KINDS, OURS, NewGroup, new_member_commands
from penstock import Admin, NewTopic
from penstock.testing import Broker
from penstock.testing.ask import ask
from penstock.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

__all__ = ["new_member_commands"]

# Java's consumer waits for the answer to a heartbeat before it processes a new assignment.
SETTINGS = {
    **CONSUMER_GROUPS,
    "group.consumer.heartbeat.interval.ms": "300",
    # A JVM that a busy machine starts may need longer than the short sessions of other tests.
    "group.consumer.session.timeout.ms": "60000",
}
Commands = Callable[[str], Sequence[str]]
numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as started:
        yield started


@pytest.fixture
def group(broker: Broker, new_member_commands: Commands) -> Iterator[NewGroup]:
    with NewGroup(broker.bootstrap, broker.new_name("group"), new_member_commands) as made:
        yield made


@pytest.mark.parametrize(
    "kinds",
    [(JAVA, JAVA), (CONFLUENT, CONFLUENT), (GO, GO), (JAVA, OURS), (CONFLUENT, JAVA), (GO, OURS)],
    ids="-".join,
)
def test_members_join_and_leave(broker: Broker, group: NewGroup, kinds: tuple[str, str]) -> None:
    """Each record is received once: members commit before they give a partition up."""
    topic = broker.new_topic(4)
    group.produce(topic, 4)
    first = group.enter(kinds[0], topic)
    group.wait(lambda: group.shared(first, total=4))
    group.wait_for_records()
    second = group.enter(kinds[1], topic)
    group.produce(topic, 4)
    group.wait(lambda: group.shared(first, second, total=4))
    group.produce(topic, 4)
    group.wait_for_records()
    with Admin(broker.bootstrap) as admin:

        def is_stable() -> bool:
            described = admin.describe_group(group.group)
            return (described.state, len(described.members)) == ("Stable", 2)

        group.wait(is_stable)
        offsets = admin.group_offsets(group.group)
        group.wait(
            lambda: sum(each.offset for each in admin.group_offsets(group.group).values()) == 60
        )
        assert len(offsets) == 4
    group.close(first)
    group.wait(lambda: group.shared(second, total=4))
    group.produce(topic, 4)
    group.wait_for_records()
    assert group.repeated() == []
    assert "lost" not in {what for member in group.members for what, _ in member.told}


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_crashed_is_replaced(broker: Broker, group: NewGroup, kind: str) -> None:
    """When its session has ended, the other member reads everything. No record is lost."""
    topic = broker.new_topic(4)
    with Admin(broker.bootstrap) as admin:
        session = {"consumer.session.timeout.ms": str(SESSION_MS)}
        admin.alter_configs(group=group.group, set_values=session)
    first, second = group.enter(kind, topic), group.enter(kind, topic)
    group.wait(lambda: group.shared(first, second, total=4))
    group.kill(first)
    group.produce(topic, 4)
    group.wait(lambda: group.shared(second, total=4))
    group.wait_for_records()


@pytest.mark.parametrize("kind", KINDS)
def test_a_static_member_restarts(broker: Broker, group: NewGroup, kind: str) -> None:
    """It gets the same partitions again, and the other member is told nothing."""
    topic = broker.new_topic(4)
    first = group.enter(kind, topic, "one")
    other = group.enter(kind, topic, "two")
    group.wait(lambda: group.shared(first, other, total=4))
    group.produce(topic, 4)
    group.wait_for_records()
    had, moved = first.owned, other.moved()
    group.close(first)
    again = group.enter(kind, topic, "one")
    group.produce(topic, 4)
    group.wait(lambda: group.shared(again, other, total=4))
    group.wait_for_records()
    assert (again.owned, other.moved()) == (had, moved)
    assert group.repeated() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_regular_expression(broker: Broker, group: NewGroup, kind: str) -> None:
    """The broker resolves it. Topics that are created later are read, others are not."""
    prefix = broker.new_name("orders")
    for name in (f"{prefix}-a", f"other-{prefix}"):
        broker.new_topic(2, name=name)
        group.produce(name, 2)
    group.produced = {value for value in group.produced if value.startswith(prefix)}
    member = group.enter(kind, f"^{prefix}-.*")
    group.wait(lambda: member.owned == {f"{prefix}-a-0", f"{prefix}-a-1"})
    group.wait_for_records()
    broker.new_topic(1, name=f"{prefix}-b")
    group.wait(lambda: f"{prefix}-b-0" in member.owned)
    group.produce(f"{prefix}-b", 1)
    group.wait_for_records()
    assert group.received() == group.produced


@pytest.mark.parametrize("kind", KINDS)
def test_the_coordinator_restarts(new_member_commands: Commands, kind: str) -> None:
    """It is killed. Members keep their partitions: the coordinator reads its state from the log."""
    with (
        Broker(SETTINGS) as broker,
        NewGroup(broker.bootstrap, "g", new_member_commands) as group,
    ):
        topic = broker.new_topic(4)
        first, second = group.enter(kind, topic), group.enter(kind, topic)
        group.wait(lambda: group.shared(first, second, total=4))
        group.produce(topic, 4)
        group.wait_for_records()
        moved = first.moved(), second.moved()
        broker.kill()
        broker.start()
        group.produce(topic, 4)
        group.wait_for_records()
        group.wait(lambda: group.shared(first, second, total=4))
        assert (first.moved(), second.moved()) == moved
        group.close(first)
        group.wait(lambda: group.shared(second, total=4))


def coordinator_of(fleet: BrokerProcesses, group: str) -> int:
    asked = FindCoordinatorRequest(key=group, key_type=0)
    for node in fleet.nodes.values():
        if node.answers:
            answer = ask(node.address, asked, FindCoordinatorResponse, 2, 50.0)
            return answer.node_id if answer.error_code == 0 else -1
    return -1


@pytest.mark.parametrize("kind", KINDS)
def test_the_coordinator_fails_over(
    tmp_path: Path, new_member_commands: Commands, kind: str
) -> None:
    """Its broker is killed and stays away. Another one continues with the same members: nobody
    loses a partition, and records go on to arrive."""
    fleet = BrokerProcesses(tmp_path / "fleet", 3, settings=SETTINGS)
    try:
        bootstrap = fleet.start()
        with (
            Admin(bootstrap.split(",")) as admin,
            NewGroup(bootstrap, "g", new_member_commands) as group,
        ):
            admin.create_topics([NewTopic("t", partitions=4, replication_factor=3)])
            first, second = group.enter(kind, "t"), group.enter(kind, "t")
            group.wait(lambda: group.shared(first, second, total=4))
            group.produce("t", 4)
            group.wait_for_records()
            fleet.wait_in_sync("__consumer_offsets")
            fleet.wait_in_sync("t")
            before = coordinator_of(fleet, "g")
            moved = first.moved(), second.moved()
            fleet.nodes[before].kill()
            group.wait(lambda: coordinator_of(fleet, "g") not in (-1, before))
            group.produce("t", 4)
            group.wait_for_records()
            assert (first.moved(), second.moved()) == moved
            group.close(first)
            group.wait(lambda: group.shared(second, total=4))
            group.produce("t", 4)
            group.wait_for_records()
    finally:
        fleet.close()
