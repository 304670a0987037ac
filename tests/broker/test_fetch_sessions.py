"""Fetch sessions are bounded, and clients cannot take those of followers."""

from __future__ import annotations

import pytest

from penstock.broker.fetch_sessions import IDLE_S, FetchSessions
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import FetchRequest


def request(session_id: int = 0, epoch: int = 0, partitions: int = 1) -> FetchRequest:
    parts = [FetchRequest.Partition(index) for index in range(partitions)]
    topics = [FetchRequest.Topic("t", partitions=parts)]
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics)


def begun(
    sessions: FetchSessions, now: float = 0.0, *, privileged: bool = False, partitions: int = 1
) -> int:
    """The id of a new session; 0 if there is none."""
    session, wanted = sessions.begin(
        request(partitions=partitions), now, by_id=False, privileged=privileged
    )
    assert len(wanted) == partitions
    return 0 if session is None else session.session_id


def lives(
    sessions: FetchSessions,
    session_id: int,
    epoch: int = 1,
    now: float = 0.0,
    *,
    privileged: bool = False,
) -> bool:
    """Whether a session can be gone on with; doing so uses it."""
    try:
        sessions.begin(request(session_id, epoch), now, by_id=False, privileged=privileged)
    except KafkaError as error:
        assert error.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return False
    return True


def test_a_client_takes_the_place_of_a_session_that_is_long_unused() -> None:
    """The longest unused of them; without one there is no session for it."""
    sessions = FetchSessions(1, sessions_max=2)
    old, older = begun(sessions, 1.0), begun(sessions, 0.0)
    assert lives(sessions, old, now=2.0)
    assert begun(sessions, IDLE_S - 1) == 0
    assert len(sessions) == 2
    assert begun(sessions, IDLE_S + 0.5) > 0
    assert len(sessions) == 2
    assert not lives(sessions, older)
    assert lives(sessions, old, epoch=2)


def test_clients_do_not_take_the_place_of_followers() -> None:
    """Not even of one that is long unused."""
    sessions = FetchSessions(1, sessions_max=2)
    followers = [begun(sessions, privileged=True) for _ in range(2)]
    assert begun(sessions, 10 * IDLE_S) == 0
    assert all(lives(sessions, each, privileged=True) for each in followers)


def test_a_follower_takes_the_place_of_a_client_at_once() -> None:
    """Of a follower only if that is long unused."""
    sessions = FetchSessions(1, sessions_max=2)
    clients = [begun(sessions) for _ in range(2)]
    followers = [begun(sessions, privileged=True) for _ in range(2)]
    assert all(followers)
    assert not any(lives(sessions, each) for each in clients)
    assert begun(sessions, IDLE_S - 1, privileged=True) == 0
    assert begun(sessions, IDLE_S + 1, privileged=True) > 0
    assert len(sessions) == 2


@pytest.mark.parametrize("epoch", [-1, 0, 1])
def test_a_client_cannot_touch_a_followers_session(epoch: int) -> None:
    """Whatever id it names: to end it, to begin another in its place, to go on with it."""
    sessions = FetchSessions(1)
    follower = begun(sessions, privileged=True)
    if epoch == 1:
        assert not lives(sessions, follower)
    else:
        sessions.begin(request(follower, epoch), 0.0, by_id=False)
    assert lives(sessions, follower, privileged=True)


def test_without_slots_there_are_no_sessions() -> None:
    sessions = FetchSessions(1, sessions_max=0)
    assert begun(sessions) == begun(sessions, privileged=True) == 0


def test_the_partitions_of_all_clients_sessions_are_bounded() -> None:
    """A session that names too many is not begun, and one that grows too large is ended."""
    sessions = FetchSessions(1, client_partitions_max=10)
    assert begun(sessions, partitions=11) == 0
    small, large = begun(sessions, partitions=1), begun(sessions, partitions=9)
    assert begun(sessions, partitions=1) == 0
    assert begun(sessions, partitions=100, privileged=True) > 0
    grown, wanted = sessions.begin(request(small, 1, partitions=2), 0.0, by_id=False)
    assert grown is not None
    assert len(wanted) == 2
    assert not lives(sessions, small, epoch=2)
    assert lives(sessions, large)
    assert begun(sessions, partitions=1) > 0
