"""Fetch sessions are limited in number and size, and clients cannot take over those of
followers.
"""

from __future__ import annotations

import pytest

from penstock.broker.partitions.fetch_sessions import IDLE_S, FetchSessions
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import FetchRequest


def request(session_id: int = 0, epoch: int = 0, partitions: int = 1) -> FetchRequest:
    parts = [FetchRequest.Partition(index) for index in range(partitions)]
    topics = [FetchRequest.Topic("t", partitions=parts)]
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics)


def begun(
    sessions: FetchSessions, now: float = 0.0, *, privileged: bool = False, partitions: int = 1
) -> int:
    """Returns the id of a new session, or 0 if there is none."""
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
    """Returns whether a session can be continued. The attempt counts as a use of the session."""
    try:
        sessions.begin(request(session_id, epoch), now, by_id=False, privileged=privileged)
    except KafkaError as error:
        assert error.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return False
    return True


def test_a_new_client_session_replaces_the_one_unused_for_longest() -> None:
    """If none has been unused for long enough, the client gets no session."""
    sessions = FetchSessions(1, sessions_max=2)
    old, older = begun(sessions, 1.0), begun(sessions, 0.0)
    assert lives(sessions, old, now=2.0)
    assert begun(sessions, IDLE_S - 1) == 0
    assert len(sessions) == 2
    assert begun(sessions, IDLE_S + 0.5) > 0
    assert len(sessions) == 2
    assert not lives(sessions, older)
    assert lives(sessions, old, epoch=2)


def test_client_sessions_do_not_replace_follower_sessions() -> None:
    """Not even one that has been unused for a long time."""
    sessions = FetchSessions(1, sessions_max=2)
    followers = [begun(sessions, privileged=True) for _ in range(2)]
    assert begun(sessions, 10 * IDLE_S) == 0
    assert all(lives(sessions, each, privileged=True) for each in followers)


def test_a_follower_session_replaces_a_client_session_at_once() -> None:
    """It replaces another follower's session only if that has been unused for a long time."""
    sessions = FetchSessions(1, sessions_max=2)
    clients = [begun(sessions) for _ in range(2)]
    followers = [begun(sessions, privileged=True) for _ in range(2)]
    assert all(followers)
    assert not any(lives(sessions, each) for each in clients)
    assert begun(sessions, IDLE_S - 1, privileged=True) == 0
    assert begun(sessions, IDLE_S + 1, privileged=True) > 0
    assert len(sessions) == 2


@pytest.mark.parametrize("epoch", [-1, 0, 1])
def test_a_client_cannot_use_or_end_a_followers_session(epoch: int) -> None:
    """It may name the session's id to end it, to replace it, or to continue it."""
    sessions = FetchSessions(1)
    follower = begun(sessions, privileged=True)
    if epoch == 1:
        assert not lives(sessions, follower)
    else:
        sessions.begin(request(follower, epoch), 0.0, by_id=False)
    assert lives(sessions, follower, privileged=True)


def test_with_zero_slots_there_are_no_sessions() -> None:
    sessions = FetchSessions(1, sessions_max=0)
    assert begun(sessions) == begun(sessions, privileged=True) == 0


def test_the_total_number_of_partitions_in_client_sessions_is_limited() -> None:
    """A session with too many partitions is not begun, and one that grows too large is ended."""
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
