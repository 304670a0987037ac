"""Share sessions: epochs, the partitions of a session, its end, the limit."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.shares.sessions import (
    PARTITIONS_MAX,
    Acknowledgements,
    ConnectionClosed,
    Effect,
    Fetch,
    GroupIdle,
    Proceed,
    Refuse,
    ReleaseRecords,
    SessionKey,
    SharedPartition,
    ShareSessions,
)
from penstock.wire.errors import ErrorCode

ANNA = SessionKey("jobs", "anna")
BEN = SessionKey("jobs", "ben")
A, B, C = (SharedPartition(b"t" * 16, index) for index in range(3))


def begun(*partitions: SharedPartition, sessions_max: int = 10) -> ShareSessions:
    """A session that has acquired records in each of its partitions."""
    sessions = ShareSessions(sessions_max)
    assert sessions.handle(Fetch(ANNA, 0, "first", partitions)) == [Proceed(partitions)]
    for each in partitions:
        sessions.on_acquired(ANNA, each)
    return sessions


def refused(error: ErrorCode) -> list[Effect]:
    return [Refuse(error)]


def test_both_requests_count_one_epoch() -> None:
    sessions = begun(A)
    assert sessions.handle(Fetch(ANNA, 1, "first")) == [Proceed((A,))]
    assert sessions.handle(Acknowledgements(ANNA, 2)) == [Proceed(())]
    assert sessions.handle(Fetch(ANNA, 3, "first")) == [Proceed((A,))]


def test_another_epoch_is_refused_and_changes_nothing() -> None:
    sessions = begun(A)
    wrong = refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    assert sessions.handle(Fetch(ANNA, 2, "first", (B,))) == wrong
    assert sessions.handle(Acknowledgements(ANNA, 3)) == wrong
    assert sessions.handle(Fetch(ANNA, 1, "first")) == [Proceed((A,))]


def test_acknowledgements_do_not_begin_a_session() -> None:
    sessions = begun(A)
    wrong = refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    assert sessions.handle(Acknowledgements(ANNA, 0)) == wrong
    with_acks = Fetch(ANNA, 0, "first", (A,), has_acknowledgements=True)
    assert sessions.handle(with_acks) == refused(ErrorCode.INVALID_REQUEST)
    assert sessions.handle(Acknowledgements(ANNA, 1)) == [Proceed(())]


@pytest.mark.parametrize("epoch", [1, -1])
def test_an_unknown_session_is_refused(epoch: int) -> None:
    sessions = begun(A)
    unknown = refused(ErrorCode.SHARE_SESSION_NOT_FOUND)
    assert sessions.handle(Fetch(BEN, epoch, "first")) == unknown
    assert sessions.handle(Acknowledgements(BEN, epoch)) == unknown


@pytest.mark.parametrize("key", [SessionKey("", "anna"), SessionKey("jobs", "")])
def test_a_session_has_a_group_and_a_member(key: SessionKey) -> None:
    sessions = ShareSessions(10)
    assert sessions.handle(Fetch(key, 0, "first")) == refused(ErrorCode.INVALID_REQUEST)
    assert sessions.handle(Acknowledgements(key, 1)) == refused(ErrorCode.INVALID_REQUEST)


def test_partitions_are_added_and_forgotten() -> None:
    sessions = begun(A)
    assert sessions.handle(Fetch(ANNA, 1, "first", (B,))) == [Proceed((B, A))]
    assert sessions.handle(Fetch(ANNA, 2, "first", (C,), (A,))) == [Proceed((B, C))]


def test_the_order_rotates_with_the_epoch() -> None:
    sessions = begun(A, B, C)
    orders = [sessions.handle(Fetch(ANNA, epoch, "first")) for epoch in (1, 2, 3)]
    assert orders == [[Proceed((B, C, A))], [Proceed((C, A, B))], [Proceed((A, B, C))]]


def test_the_final_epoch_releases_and_ends_the_session() -> None:
    """The acknowledgements of the request come first. Forgotten partitions are released too."""
    sessions = begun(A, B)
    sessions.handle(Fetch(ANNA, 1, "first", (), (A,)))
    assert sessions.handle(Fetch(ANNA, -1, "first")) == [
        Proceed(()),
        ReleaseRecords(ANNA, (A, B), with_backoff=False),
        GroupIdle("jobs"),
    ]
    assert len(sessions) == 0
    assert sessions.handle(ConnectionClosed("first")) == []


def test_a_lost_connection_releases_with_back_off() -> None:
    sessions = begun(A)
    sessions.handle(Fetch(BEN, 0, "second", (B,)))
    assert sessions.handle(ConnectionClosed("first")) == [
        ReleaseRecords(ANNA, (A,), with_backoff=True)
    ]
    assert sessions.sessions_of("jobs") == 1


def test_a_new_session_makes_the_loss_of_the_old_connection_harmless() -> None:
    """What the member holds from its old session is released with the new one."""
    sessions = begun(A)
    assert sessions.handle(Fetch(ANNA, 0, "second", (B,))) == [Proceed((B,))]
    sessions.on_acquired(ANNA, B)
    assert sessions.handle(ConnectionClosed("first")) == []
    assert sessions.handle(ConnectionClosed("second")) == [
        ReleaseRecords(ANNA, (A, B), with_backoff=True),
        GroupIdle("jobs"),
    ]


def test_only_partitions_with_acquired_records_are_remembered() -> None:
    """A member may list and forget any number of partitions, also those that do not exist."""
    sessions = begun(A)
    for epoch in range(1, 100):
        named = tuple(SharedPartition(b"x" * 16, 100 * epoch + at) for at in range(100))
        sessions.handle(Fetch(ANNA, 2 * epoch - 1, "first", named))
        sessions.handle(Fetch(ANNA, 2 * epoch, "first", (), named))
    assert sessions.handle(Fetch(ANNA, 199, "first", (), (A,))) == [Proceed(())]
    assert sessions.handle(Fetch(ANNA, -1, "first"))[1:] == [
        ReleaseRecords(ANNA, (A,), with_backoff=False),
        GroupIdle("jobs"),
    ]


def test_the_number_of_partitions_of_a_session_is_limited() -> None:
    """A request that is refused changes nothing."""
    most = tuple(SharedPartition(b"x" * 16, at) for at in range(PARTITIONS_MAX))
    sessions = begun(A)
    too_many = refused(ErrorCode.INVALID_REQUEST)
    assert sessions.handle(Fetch(BEN, 0, "first", (A, *most))) == too_many
    assert sessions.handle(Fetch(ANNA, 1, "first", most)) == too_many
    assert sessions.handle(Fetch(ANNA, 1, "first", (), (*most, A))) == too_many
    assert sessions.handle(Fetch(ANNA, 1, "first", most, (A,))) == [Proceed((*most[1:], most[0]))]
    assert sessions.handle(Fetch(ANNA, 2, "first", (A,))) == too_many
    assert sessions.handle(Fetch(ANNA, 2, "first", most[:5])) == [
        Proceed((*most[2:], *most[:2])),
    ]


def test_the_number_of_sessions_is_limited() -> None:
    sessions = begun(A, sessions_max=1)
    limit = Refuse(ErrorCode.SHARE_SESSION_LIMIT_REACHED, is_held_back=True)
    assert sessions.handle(Fetch(BEN, 0, "second", (A,))) == [limit]
    assert sessions.refused == 1
    assert sessions.handle(Fetch(ANNA, 0, "first", (A,))) == [Proceed((A,))]


def test_after_the_largest_epoch_comes_the_first() -> None:
    sessions = begun(A)
    sessions._sessions[ANNA].epoch = 2**31 - 1
    assert sessions.handle(Acknowledgements(ANNA, 2**31 - 1)) == [Proceed(())]
    assert sessions.handle(Fetch(ANNA, 1, "first")) == [Proceed((A,))]


KEYS = st.sampled_from([ANNA, BEN, SessionKey("mail", "anna")])
PARTITIONS = st.lists(st.sampled_from([A, B, C]), unique=True, max_size=3).map(tuple)
CONNECTIONS = st.sampled_from(["first", "second"])


class SessionMachine(RuleBasedStateMachine):
    """Compared with a dict of what each member should have."""

    @initialize()
    def start(self) -> None:
        self.sessions = ShareSessions(2)
        self.model: dict[SessionKey, tuple[str, int, set[SharedPartition]]] = {}
        self.acquired: dict[SessionKey, set[SharedPartition]] = {}

    @rule(
        key=KEYS,
        epoch=st.integers(-1, 4),
        connection=CONNECTIONS,
        listed=PARTITIONS,
        forgotten=PARTITIONS,
    )
    def fetch(
        self,
        key: SessionKey,
        epoch: int,
        connection: str,
        listed: tuple[SharedPartition, ...],
        forgotten: tuple[SharedPartition, ...],
    ) -> None:
        effects = self.sessions.handle(Fetch(key, epoch, connection, listed, forgotten))
        known = self.model.get(key)
        if epoch == 0 and (known is not None or len(self.model) < 2):
            self.model[key] = (connection, 1, set(listed))
            self.acquired.setdefault(key, set())
        elif known is not None and epoch == known[1]:
            partitions = (known[2] - set(forgotten)) | set(listed)
            self.model[key] = (known[0], epoch + 1, partitions)
        elif known is not None and epoch == -1:
            self.check_end(key, effects[1:])
            return
        else:
            assert isinstance(effects[0], Refuse)
            return
        (effect,) = effects
        assert isinstance(effect, Proceed)
        assert len(effect.partitions) == len(set(effect.partitions))
        assert set(effect.partitions) == self.model[key][2]

    @rule(data=st.data(), key=KEYS)
    def acquire(self, data: st.DataObject, key: SessionKey) -> None:
        known = self.model.get(key)
        if known is not None and known[2]:
            partition = data.draw(st.sampled_from(sorted(known[2])))
            self.sessions.on_acquired(key, partition)
            self.acquired[key].add(partition)

    @rule(connection=CONNECTIONS)
    def close(self, connection: str) -> None:
        effects = self.sessions.handle(ConnectionClosed(connection))
        ended = sorted(key for key, known in self.model.items() if known[0] == connection)
        for key in ended:
            size = 2 if sum(each.group_id == key.group_id for each in self.model) == 1 else 1
            self.check_end(key, effects[:size])
            effects = effects[size:]
        assert not effects

    def check_end(self, key: SessionKey, effects: list[Effect]) -> None:
        del self.model[key]
        released = effects[0]
        assert isinstance(released, ReleaseRecords)
        assert released.key == key
        assert set(released.partitions) == self.acquired.pop(key)
        is_idle = not any(each.group_id == key.group_id for each in self.model)
        assert effects[1:] == ([GroupIdle(key.group_id)] if is_idle else [])

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.sessions) == len(self.model)
        for group in ("jobs", "mail"):
            expected = sum(key.group_id == group for key in self.model)
            assert self.sessions.sessions_of(group) == expected


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(deadline=None, max_examples=60, stateful_step_count=25)
