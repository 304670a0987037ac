"""Our consumers in groups of the new protocol (KIP-848) on Apache Kafka 4.3, alone and with Java's.

What holds on our broker (`test_new_groups`) must hold there too. Tests of our client with
`group_protocol="consumer"` run here again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from client import test_consumer_protocol as consumer_tests
from client.live_broker import SESSION_MS
from client.membership import test_consumer_member as member_tests
from compat.apache_kafka import ApacheKafka
from compat.new_members import JAVA, OURS, NewGroup, new_member_commands

__all__ = ["new_member_commands"]

VERSION = "4.3.1"
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
}
CHOSEN: list[Callable[[ApacheKafka], None]] = [
    member_tests.test_a_member_never_stops_reading_partitions_that_stay,
    member_tests.test_a_static_member_keeps_its_partitions_while_it_restarts,
    member_tests.test_a_static_member_waits_for_its_former_session,
    member_tests.test_regular_expressions_are_resolved_by_the_broker,
    member_tests.test_an_expression_that_is_not_valid_is_an_error,
    member_tests.test_an_unknown_assignor_is_an_error,
    member_tests.test_a_member_that_does_not_poll_leaves_and_returns,
    member_tests.test_partitions_that_are_added_are_assigned,
    member_tests.test_heartbeats_whose_answers_are_lost_do_no_harm,
    consumer_tests.test_two_consumers_share_a_topic_and_resume,
    consumer_tests.test_a_blocking_consumer,
    consumer_tests.test_a_subscription_can_change_and_end,
    consumer_tests.test_offsets_in_a_transaction_follow_the_epoch,
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka(SETTINGS, version=VERSION) as started:
        yield started


@pytest.mark.parametrize("chosen", CHOSEN, ids=lambda chosen: chosen.__name__)
def test_a_selected_test_of_the_client_passes_on_kafka(
    kafka: ApacheKafka, chosen: Callable[[ApacheKafka], None]
) -> None:
    """The docstring of the selected test says what it checks."""
    chosen(kafka)


@pytest.mark.parametrize("assignor", [None, "uniform", "range"])
def test_members_join_and_leave(kafka: ApacheKafka, assignor: str | None) -> None:
    member_tests.test_members_join_and_leave(kafka, assignor)


def test_a_group_with_java(
    kafka: ApacheKafka, new_member_commands: Callable[[str], Sequence[str]]
) -> None:
    """Members join, one crashes, one leaves. No record is lost."""
    topic = kafka.new_topic(4)
    with NewGroup(kafka.bootstrap, kafka.new_name("group"), new_member_commands) as group:
        ours = group.enter(OURS, topic)
        group.wait(lambda: group.shared(ours, total=4))
        java = group.enter(JAVA, topic)
        group.wait(lambda: group.shared(ours, java, total=4))
        group.produce(topic, 4)
        group.wait_for_records()
        assert group.repeated() == []
        group.kill(java)
        group.produce(topic, 4)
        group.wait(lambda: group.shared(ours, total=4))
        group.wait_for_records()
        second = group.enter(JAVA, topic)
        group.wait(lambda: group.shared(ours, second, total=4))
        group.close(ours)
        group.wait(lambda: group.shared(second, total=4))


def test_members_survive_a_restart_of_kafka(
    kafka: ApacheKafka, new_member_commands: Callable[[str], Sequence[str]]
) -> None:
    """It is killed and started again. The members read on."""
    topic = kafka.new_topic(4)
    with NewGroup(kafka.bootstrap, kafka.new_name("group"), new_member_commands) as group:
        first, second = group.enter(OURS, topic), group.enter(OURS, topic)
        group.wait(lambda: group.shared(first, second, total=4))
        kafka.kill()
        kafka.start()
        group.produce(topic, 4)
        group.wait_for_records()
        group.wait(lambda: group.shared(first, second, total=4))
