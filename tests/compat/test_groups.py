"""Consumer groups: which member reads what, as members join, leave, crash and come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from compat.clients.base import (
    Client,
    Code,
    Consumer,
    ConsumerOptions,
    Record,
    Refused,
    wait_until,
)
from compat.conftest import CLIENTS, TopicFactory

Keep = Callable[[Consumer], Consumer]
Name = Callable[[], str]
FATAL = -150
"""The code with which librdkafka reports an error that makes a consumer unusable."""

STRATEGIES = [(kind.name, strategy) for kind in CLIENTS.values() for strategy in kind.strategies]


def is_covered(partitions: int, *members: Consumer) -> bool:
    """Returns whether every partition has exactly one owner, and the members own equally many.

    During a cooperative rebalance they may own all partitions, but not equally many."""
    owned = [member.assignment() for member in members]
    sizes = sorted(map(len, owned))
    is_even = sizes[0] > 0 and sizes[-1] - sizes[0] <= 1
    return is_even and sorted(p for each in owned for p in each) == list(range(partitions))


def assert_covered(partitions: int, *members: Consumer) -> None:
    assert wait_until(lambda: is_covered(partitions, *members), *members), [
        (sorted(m.assignment()), m.rebalances) for m in members
    ]


def produce_numbered(client: Client, topic: str, partitions: int, numbers: range) -> set[bytes]:
    records = [Record(b"%05d" % i, partition=i % partitions) for i in numbers]
    client.produce(topic, records)
    return {r.value for r in records if r.value is not None}


def values(*members: Consumer) -> list[bytes]:
    return [r.value for m in members for r in m.received if r.value is not None]


@pytest.mark.parametrize("kind", STRATEGIES, ids="-".join)
def test_members_join_and_leave(
    clients: Callable[[str], Client],
    topic: TopicFactory,
    name: Name,
    keep: Keep,
    kind: tuple[str, str],
) -> None:
    """One, two, three, then two members share all partitions; each partition has one owner."""
    client_name, strategy = kind
    client, made, group = clients(client_name), topic(6), name()
    options = ConsumerOptions(strategy=strategy)
    first = keep(client.member(group, made, options))
    assert_covered(6, first)
    second = keep(client.member(group, made, options))
    assert_covered(6, first, second)
    third = keep(client.member(group, made, options))
    assert_covered(6, first, second, third)
    first.close()
    assert_covered(6, second, third)
    info = client.describe_group(group)
    assert info.state == "Stable"
    assert info.strategy == strategy
    assert {m.partitions for m in info.members} == {second.assignment(), third.assignment()}
    second.close()
    assert_covered(6, third)


def test_the_members_read_everything_once(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """Records are divided between the members by partition; none is read twice or missed."""
    made, group = topic(4), name()
    first, second = (keep(client.member(group, made)) for _ in range(2))
    assert_covered(4, first, second)
    sent = produce_numbered(client, made, 4, range(400))
    assert wait_until(lambda: len(values(first, second)) >= 400, first, second)
    assert sorted(values(first, second)) == sorted(sent)
    for member in (first, second):
        assert {r.partition for r in member.received} == member.assignment()


def test_a_restarted_group_continues_where_it_committed(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """After a synchronous commit and a restart no record is read twice or missed."""
    made, group = topic(3), name()
    early = produce_numbered(client, made, 3, range(90))
    first = keep(client.member(group, made))
    assert wait_until(lambda: len(values(first)) >= 90, first)
    assert set(values(first)) == early
    first.commit()
    first.close()
    late = produce_numbered(client, made, 3, range(90, 150))
    again = keep(client.member(group, made))
    assert wait_until(lambda: len(values(again)) >= 60, again)
    again.read_nothing(0.4)
    assert sorted(values(again)) == sorted(late)


def test_records_that_are_not_committed_are_delivered_again(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """The next member starts at the committed offset."""
    made, group = topic(), name()
    produce_numbered(client, made, 1, range(20))
    first = keep(client.member(group, made))
    assert wait_until(lambda: len(values(first)) >= 20, first)
    first.commit({0: (7, "")})
    first.close()
    again = keep(client.member(group, made))
    assert wait_until(lambda: len(values(again)) >= 13, again)
    assert [r.offset for r in again.received] == list(range(7, 20))


def test_the_partitions_of_a_leaving_member_move_without_loss(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """The remaining members continue at the offsets that the leaving member committed."""
    made, group = topic(4), name()
    first, second = (keep(client.member(group, made)) for _ in range(2))
    assert_covered(4, first, second)
    sent = produce_numbered(client, made, 4, range(200))
    assert wait_until(lambda: len(values(first, second)) >= 200, first, second)
    first.commit()
    second.commit()
    first.close()
    assert_covered(4, second)
    sent |= produce_numbered(client, made, 4, range(200, 300))
    assert wait_until(lambda: len(values(first, second)) >= 300, second)
    second.read_nothing(0.3)
    assert sorted(values(first, second)) == sorted(sent)


@pytest.mark.parametrize("client_name", ["confluent-kafka", "kafka-python"])
def test_cooperative_members_keep_their_other_partitions(
    clients: Callable[[str], Client], topic: TopicFactory, name: Name, keep: Keep, client_name: str
) -> None:
    """When a second member joins, the first one gives up half of its partitions, and only these."""
    client, made, group = clients(client_name), topic(4), name()
    options = ConsumerOptions(strategy="cooperative-sticky")
    first = keep(client.member(group, made, options))
    assert_covered(4, first)
    before = len(first.rebalances)
    second = keep(client.member(group, made, options))
    assert_covered(4, first, second)
    revoked = [p for what, p in first.rebalances[before:] if what != "assigned" and p]
    assert frozenset().union(*revoked) == second.assignment()
    assert first.assignment().isdisjoint(second.assignment())


def test_a_static_member_comes_back_without_a_rebalance(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """After a restart within its session it gets the same partitions, without a rebalance."""
    made, group = topic(4), name()
    options = ConsumerOptions(session_timeout_ms=30_000)
    first = keep(client.member(group, made, replace(options, instance_id="one")))
    second = keep(client.member(group, made, replace(options, instance_id="two")))
    assert_covered(4, first, second)
    owned, seen = second.assignment(), list(first.rebalances)
    second.close()
    again = keep(client.member(group, made, replace(options, instance_id="two")))
    assert wait_until(lambda: bool(again.assignment()), first, again)
    assert again.assignment() == owned
    first.read_nothing(1.0)
    assert first.rebalances == seen
    assert is_covered(4, first, again)
    sent = produce_numbered(client, made, 4, range(40))
    assert wait_until(lambda: len(values(first, again)) >= 40, first, again)
    assert sorted(values(first, again)) == sorted(sent)


@pytest.mark.slow
def test_a_static_member_that_stays_away_loses_its_partitions(
    clients: Callable[[str], Client], topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """It sends no LeaveGroup and no heartbeats: after the session timeout the others take over."""
    client, made, group = clients("confluent-kafka"), topic(4), name()
    options = ConsumerOptions(session_timeout_ms=6000)
    first = keep(client.member(group, made, replace(options, instance_id="one")))
    second = keep(client.member(group, made, replace(options, instance_id="two")))
    assert_covered(4, first, second)
    left_at = time.monotonic()
    second.close()
    first.read_nothing(1.0)
    is_session_over = time.monotonic() - left_at > 4.0  # Possible on a busy machine.
    assert len(first.assignment()) == 2 or is_session_over
    assert wait_until(lambda: is_covered(4, first), first, within_s=120)


@pytest.mark.parametrize("client_name", ["confluent-kafka", "kafka-python"])
def test_the_older_of_two_members_with_one_instance_id_is_fenced(
    clients: Callable[[str], Client], topic: TopicFactory, name: Name, keep: Keep, client_name: str
) -> None:
    """The new member takes its place; the old one gets FENCED_INSTANCE_ID."""
    client, made, group = clients(client_name), topic(2), name()
    options = ConsumerOptions(instance_id="same")
    first = keep(client.member(group, made, options))
    assert_covered(2, first)
    second = keep(client.member(group, made, options))

    def is_fenced() -> bool:
        try:
            first.poll(0.05)
            first.commit({0: (0, "")})
        except Refused as refused:
            assert refused.code in (Code.FENCED_INSTANCE_ID, FATAL), refused
            return True
        return False

    assert wait_until(is_fenced, second)
    assert_covered(2, second)


def test_a_group_reads_new_partitions(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """Members that start after partitions were added read the new ones too."""
    made, group = topic(2), name()
    first = keep(client.member(group, made))
    assert_covered(2, first)
    first.close()
    client.create_partitions(made, 5)
    assert wait_until(lambda: len(client.describe_topic(made)) == 5)
    again = keep(client.member(group, made))
    assert_covered(5, again)


def test_offsets_carry_metadata(
    client: Client,
    clients: Callable[[str], Client],
    topic: TopicFactory,
    name: Name,
    keep: Keep,
) -> None:
    """Metadata committed with an offset is returned to every client."""
    made, group = topic(2), name()
    produce_numbered(client, made, 2, range(10))
    member = keep(client.member(group, made))
    assert_covered(2, member)
    member.commit({0: (3, "where I was"), 1: (5, "")})
    member.close()
    for other in ("confluent-kafka", "kafka-python"):
        reader = keep(clients(other).reader(made, (0, 1), group=group))
        for partition, wanted in enumerate([(3, "where I was"), (5, "")]):
            found = reader.committed(partition)
            assert found is not None
            # confluent-kafka also sends the NUL that ends a C string.
            assert (found[0], found[1].rstrip("\0")) == wanted
    assert client.group_offsets(group, made) == {0: 3, 1: 5}


def test_a_consumer_may_commit_without_joining(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """With given partitions and a group id it commits offsets there; the group stays empty."""
    made, group = topic(2), name()
    produce_numbered(client, made, 2, range(20))
    reader = keep(client.reader(made, (0, 1), group=group))
    assert reader.committed(0) is None
    assert len(reader.read(20)) == 20
    reader.commit()
    reader.close()
    assert client.group_offsets(group, made) == {0: 10, 1: 10}
    assert client.describe_group(group).state == "Empty"
    produce_numbered(client, made, 2, range(20, 24))
    again = keep(client.reader(made, (0, 1), group=group))
    assert len(again.read(4)) == 4
    assert [r.offset for r in again.received if r.partition == 0] == [10, 11]


def test_groups_do_not_disturb_each_other(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """Each group reads everything and keeps its own offsets."""
    made, groups = topic(2), (name(), name())
    sent = produce_numbered(client, made, 2, range(30))
    members = [keep(client.member(group, made)) for group in groups]
    for member in members:
        assert wait_until(lambda m=member: len(values(m)) >= 30, *members)  # type: ignore[misc]
        assert sorted(values(member)) == sorted(sent)
    members[0].commit()
    assert client.group_offsets(groups[0], made) == {0: 15, 1: 15}
    assert client.group_offsets(groups[1], made) == {}


def test_clients_of_different_libraries_share_a_group(
    clients: Callable[[str], Client], topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """A group leader of one library makes assignments that members of the others understand."""
    made, group = topic(6), name()
    members = [keep(clients(c).member(group, made)) for c in CLIENTS]
    assert_covered(6, *members)
    sent = produce_numbered(clients("aiokafka"), made, 6, range(120))
    assert wait_until(lambda: len(values(*members)) >= 120, *members)
    assert sorted(values(*members)) == sorted(sent)
    members[0].close()
    assert_covered(6, *members[1:])
