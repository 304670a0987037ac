"""Tests fetch sessions: after any history, client and broker agree on the requested partitions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.partitions.fetch_sessions import FetchSessions
from penstock.client.consuming.sessions import Asked, FetchSession
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import FetchRequest

topic_partitions = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3))
wants = st.dictionaries(
    topic_partitions, st.builds(Asked, st.integers(0, 5), st.just(1), st.just(100))
)


def begin(broker: FetchSessions, request: FetchRequest) -> tuple[int, dict[TopicPartition, int]]:
    """Returns the partitions and offsets that the broker understands the request to ask for."""
    session, wanted = broker.begin(request, 0.0, by_id=False)
    found = {TopicPartition(each.topic, each.index): each.fetch_offset for each in wanted}
    return (0 if session is None else session.session_id), found


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(wants, st.sampled_from(["well", "well", "lost", "evicted"])), max_size=8))
def test_broker_and_client_agree_on_the_requested_partitions(
    history: list[tuple[dict[TopicPartition, Asked], str]],
) -> None:
    """Partitions are added, removed and moved, responses are lost, and the broker forgets the
    session: the broker always serves what was requested last. (Uses the real broker code.)"""
    broker, session = FetchSessions(1, sessions_max=2), FetchSession()
    for wanted, fate in history:
        if fate == "evicted":
            broker = FetchSessions(1_000, sessions_max=2)
        for _ in range(2):
            request = FetchRequest()
            session.fill(request, wanted, served=True)
            try:
                session_id, found = begin(broker, request)
            except KafkaError as error:
                assert fate == "evicted"
                session.lost(forgotten=error.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
                continue
            break
        assert found == {topic_partition: asked.offset for topic_partition, asked in wanted.items()}
        if fate == "lost":
            session.lost()
        else:
            session.answered(session_id)


def test_unchanged_partitions_are_not_sent_again() -> None:
    session = FetchSession()
    one, two = TopicPartition("t", 0), TopicPartition("t", 1)
    first = FetchRequest()
    session.fill(first, {one: Asked(0, 1, 10), two: Asked(0, 1, 10)}, served=True)
    session.answered(42)
    second = FetchRequest()
    session.fill(second, {one: Asked(5, 1, 10)}, served=True)
    assert (second.session_id, second.session_epoch) == (42, 1)
    assert [(p.partition, p.fetch_offset) for p in second.topics[0].partitions] == [(0, 5)]
    assert second.forgotten_topics_data[0].partitions == [1]
    session.answered(42)
    third = FetchRequest()
    session.fill(third, {one: Asked(5, 1, 10)}, served=True)
    assert (third.session_epoch, third.topics, third.forgotten_topics_data) == (2, [], [])


def test_without_fetch_sessions_every_request_names_all_partitions() -> None:
    session = FetchSession()
    wanted = {TopicPartition("t", 0): Asked(0, 1, 10)}
    for _ in range(2):
        request = FetchRequest()
        session.fill(request, wanted, served=True)
        assert (request.session_id, request.session_epoch, len(request.topics)) == (0, 0, 1)
        session.answered(0)
    request = FetchRequest()
    session.fill(request, wanted, served=False)
    assert (request.session_id, request.session_epoch, len(request.topics)) == (0, -1, 1)


def test_a_new_connection_begins_a_new_session() -> None:
    """The broker may have restarted meanwhile, and the session id may now
    belong to another reader."""
    session, wanted = FetchSession(), {TopicPartition("t", 0): Asked(7, 1, 10)}
    sent = []
    for connection in ("first", "first", "second"):
        request = FetchRequest()
        session.carry_by(connection)
        session.fill(request, wanted, served=True)
        session.answered(42 if connection == "first" else 43)
        sent.append((request.session_id, request.session_epoch, len(request.topics)))
    assert sent == [(0, 0, 1), (42, 1, 0), (42, 0, 1)]
