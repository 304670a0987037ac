"""Fetch sessions: after any history the broker knows exactly what is wanted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.fetch_sessions import FetchSessions
from penstock.client.consuming.sessions import Asked, FetchSession
from penstock.client.model import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import FetchRequest

places = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3))
wants = st.dictionaries(places, st.builds(Asked, st.integers(0, 5), st.just(1), st.just(100)))


def begin(broker: FetchSessions, request: FetchRequest) -> tuple[int, dict[TopicPartition, int]]:
    """What the broker takes the request to want."""
    session, wanted = broker.begin(request, 0.0, by_id=False)
    found = {TopicPartition(each.topic, each.index): each.fetch_offset for each in wanted}
    return (0 if session is None else session.session_id), found


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(wants, st.sampled_from(["well", "well", "lost", "evicted"])), max_size=8))
def test_broker_and_client_agree_on_what_is_wanted(
    history: list[tuple[dict[TopicPartition, Asked], str]],
) -> None:
    """Partitions come, go and move; answers get lost; the broker forgets: what it serves in the
    end is always what was last asked for. (The broker is ours, the real thing.)"""
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
        assert found == {place: asked.offset for place, asked in wanted.items()}
        if fate == "lost":
            session.lost()
        else:
            session.answered(session_id)


def test_what_did_not_change_is_not_said_again() -> None:
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


def test_a_broker_without_sessions_is_told_everything_every_time() -> None:
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


def test_by_another_connection_a_session_begins_again() -> None:
    """The broker may have begun a new life meanwhile, in which the id is another reader's."""
    session, wanted = FetchSession(), {TopicPartition("t", 0): Asked(7, 1, 10)}
    sent = []
    for connection in ("first", "first", "second"):
        request = FetchRequest()
        session.carry_by(connection)
        session.fill(request, wanted, served=True)
        session.answered(42 if connection == "first" else 43)
        sent.append((request.session_id, request.session_epoch, len(request.topics)))
    assert sent == [(0, 0, 1), (42, 1, 0), (42, 0, 1)]
