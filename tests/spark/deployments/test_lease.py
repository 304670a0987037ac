"""Tests the rule of the lease: by cases, and against a model of coordinators that may be replaced
without knowing it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.client.membership.steps import Identity
from penstock.spark.deployments.lease import MARGIN, NEVER, Lease, Renewal
from penstock.wire.errors import ErrorCode

ME = Identity(7, "worker-1")
NONE, REBALANCING = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS


def renewed(lease: Lease, sent_at: float, *, code: int = NONE, identity: Identity = ME) -> None:
    renewal = Renewal(identity, sent_at)
    assert lease.on_commit(renewal, identity, NONE)
    lease.on_heartbeat(renewal, identity, code, knows_assignment=True)


def test_a_lease_begins_with_a_commit_and_a_heartbeat() -> None:
    lease = Lease(10.0, 60.0)
    assert lease.until == NEVER
    renewal = Renewal(ME, 100.0)
    assert lease.on_commit(renewal, ME, NONE)
    assert lease.until == NEVER
    lease.on_heartbeat(renewal, ME, NONE, knows_assignment=True)
    assert lease.until == pytest.approx(109.0)


def test_only_commits_keep_a_lease_and_only_until_a_rebalance_may_end() -> None:
    """A long rebalance does not end the lease of a worker that goes on committing."""
    lease = Lease(10.0, 20.0)
    renewed(lease, 100.0)
    renewed(lease, 105.0, code=REBALANCING)
    assert lease.until == pytest.approx(114.0)
    renewed(lease, 112.0, code=REBALANCING)
    assert lease.until == pytest.approx(118.0)
    renewed(lease, 117.0, code=REBALANCING)
    assert lease.until == pytest.approx(118.0)
    renewed(lease, 117.5)
    assert lease.until == pytest.approx(126.5)


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_COORDINATOR, ErrorCode.ILLEGAL_GENERATION, REBALANCING]
)
def test_a_commit_that_failed_proves_nothing(code: int) -> None:
    lease = Lease(10.0, 20.0)
    renewed(lease, 100.0)
    assert not lease.on_commit(Renewal(ME, 105.0), ME, code)
    assert lease.until == pytest.approx(109.0)


@pytest.mark.parametrize("other", [Identity(8, "worker-1"), Identity(7, "worker-2")])
def test_answers_to_another_identity_prove_nothing(other: Identity) -> None:
    """The worker has joined again while the request was under way."""
    lease = Lease(10.0, 20.0)
    renewed(lease, 100.0)
    assert not lease.on_commit(Renewal(ME, 105.0), other, NONE)
    lease.on_heartbeat(Renewal(ME, 105.0), other, NONE, knows_assignment=True)
    assert lease.until == pytest.approx(109.0)


def test_a_member_without_its_assignment_may_be_removed_soon() -> None:
    """Its coordinator removes it if it does not ask for its assignment in time."""
    lease = Lease(10.0, 20.0)
    renewal = Renewal(ME, 100.0)
    assert lease.on_commit(renewal, ME, NONE)
    lease.on_heartbeat(renewal, ME, NONE, knows_assignment=False)
    assert lease.until == NEVER


def test_a_lease_is_never_shortened_by_a_late_answer_and_begins_again_after_its_end() -> None:
    lease = Lease(10.0, 20.0)
    renewed(lease, 105.0)
    renewed(lease, 100.0)
    assert lease.until == pytest.approx(114.0)
    lease.end()
    assert lease.until == NEVER
    assert lease.on_commit(Renewal(ME, 120.0), ME, NONE)
    assert lease.until == NEVER
    renewed(lease, 121.0)
    assert lease.until == pytest.approx(130.0)


def test_a_rebalance_timeout_below_the_session_timeout_is_refused() -> None:
    with pytest.raises(ValueError, match="raise it"):
        Lease(10.0, 9.0)


# -- a model of the coordinators ----------------------------------------------------------------

SESSION, REBALANCE = 10.0, 15.0


@dataclass
class Coordinator:
    """One term of a coordinator, as far as one member is concerned. It never gets news of a later
    term by itself."""

    session_ends: float
    rebalance_ends: float | None = None
    removed_at: float | None = None

    def pass_time(self, now: float) -> None:
        ends = [self.session_ends]
        if self.rebalance_ends is not None:
            ends.append(self.rebalance_ends)
        if self.removed_at is None and min(ends) <= now:
            self.removed_at = min(ends)


@dataclass
class Cluster:
    """All terms. Only the last can store a commit. A later term loads the group when it begins."""

    terms: list[Coordinator] = field(default_factory=lambda: [Coordinator(SESSION)])
    now: float = 0.0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for term in self.terms:
            term.pass_time(self.now)

    def commit(self, term: int) -> bool:
        coordinator = self.terms[term]
        if term != len(self.terms) - 1 or coordinator.removed_at is not None:
            return False
        coordinator.session_ends = self.now + SESSION
        return True

    def heartbeat(self, term: int) -> int:
        coordinator = self.terms[term]
        if coordinator.removed_at is not None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        coordinator.session_ends = self.now + SESSION
        return NONE if coordinator.rebalance_ends is None else REBALANCING

    def replace(self) -> None:
        """The next term. A member that was removed stays removed: that is in the log."""
        removed_at = self.terms[-1].removed_at
        self.terms.append(Coordinator(self.now + SESSION, removed_at=removed_at))

    def begin_rebalance(self) -> None:
        if self.terms[-1].rebalance_ends is None:
            self.terms[-1].rebalance_ends = self.now + REBALANCE

    @property
    def removed_at(self) -> float | None:
        """When a valid coordinator removed the member. Later ones only continue that."""
        return self.terms[-1].removed_at


delays = st.floats(0.0, 4.0)
Times = tuple[int, float, float, float, float]
"""A renewal: how many terms ago its broker was replaced, and four delays."""
events = st.one_of(
    st.floats(0.0, 8.0),
    st.sampled_from(["replace", "rebalance", "join"]),
    st.tuples(st.integers(0, 2), delays, delays, delays, delays),
)
histories = st.lists(events, max_size=30)
speeds = st.floats(1 - MARGIN + 0.001, 1 + MARGIN)
surprises = st.lists(st.sampled_from(["", "replace", "rebalance"]), min_size=8, max_size=8)


class Play:
    """One member with its lease. Its clock has another speed than those of the coordinators."""

    def __init__(self, lease: Lease, speed: float, surprises: list[str]) -> None:
        self.cluster = Cluster()
        self.lease = lease
        self.speed = speed
        self.surprises = surprises

    def clock(self) -> float:
        return self.cluster.now * self.speed

    def happens(self, what: str) -> None:
        if what == "replace":
            self.cluster.replace()
        elif what == "rebalance":
            self.cluster.begin_rebalance()
        elif what == "join":
            # The rebalance cannot end without this member any more.
            self.cluster.terms[-1].rebalance_ends = None

    def surprise(self) -> None:
        self.happens(self.surprises[0])
        self.surprises = [*self.surprises[1:], self.surprises[0]]

    def renew(self, times: Times) -> None:
        cluster, lease = self.cluster, self.lease
        age, *delays = times
        term = max(0, len(cluster.terms) - 1 - age)
        renewal = Renewal(ME, self.clock())
        cluster.pass_time(delays[0])
        stored = cluster.commit(term)
        self.surprise()
        cluster.pass_time(delays[1])
        if lease.on_commit(renewal, ME, NONE if stored else ErrorCode.NOT_COORDINATOR):
            cluster.pass_time(delays[2])
            code = cluster.heartbeat(term)
            self.surprise()
            cluster.pass_time(delays[3])
            lease.on_heartbeat(renewal, ME, code, knows_assignment=True)

    def run(self, history: list[float | str | Times]) -> None:
        for event in history:
            if self.cluster.removed_at is not None:
                break
            if isinstance(event, float):
                self.cluster.pass_time(event)
            elif isinstance(event, str):
                self.happens(event)
            else:
                self.renew(event)
        self.cluster.pass_time(2 * REBALANCE)
        if self.lease.until != NEVER:
            assert self.cluster.removed_at is not None
            assert self.lease.until / self.speed <= self.cluster.removed_at


@given(histories, speeds, surprises)
@settings(max_examples=600, deadline=None)
def test_no_coordinator_removes_a_member_during_its_lease(
    history: list[float | str | Times], speed: float, surprises: list[str]
) -> None:
    """Requests and answers take time, in which coordinators are replaced and rebalances begin."""
    Play(Lease(SESSION, REBALANCE), speed, surprises).run(history)


class AnyCommit(Lease):
    """Wrong: a commit that was refused counts as well, so heartbeats alone renew the lease."""

    def on_commit(self, renewal: Renewal, identity: Identity, code: int) -> bool:
        return super().on_commit(renewal, identity, NONE)


class AnyHeartbeat(Lease):
    """Wrong: a rebalance that is in progress does not matter."""

    def on_heartbeat(
        self, renewal: Renewal, identity: Identity, code: int, *, knows_assignment: bool
    ) -> None:
        code = NONE if code == REBALANCING else code
        super().on_heartbeat(renewal, identity, code, knows_assignment=knows_assignment)


class NoMargin(Lease):
    """Wrong: all clocks run equally fast."""

    def __init__(self, session_s: float, rebalance_s: float) -> None:
        super().__init__(session_s, rebalance_s, margin=0.0)


@pytest.mark.parametrize("wrong", [AnyCommit, AnyHeartbeat, NoMargin])
def test_the_model_finds_a_wrong_rule(wrong: type[Lease]) -> None:
    @given(histories, speeds, surprises)
    @settings(
        max_examples=3_000,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    def check(history: list[float | str | Times], speed: float, surprises: list[str]) -> None:
        Play(wrong(SESSION, REBALANCE), speed, surprises).run(history)

    with pytest.raises(AssertionError):
        check()


def test_the_model_finds_a_heartbeat_to_another_broker() -> None:
    """Why both requests must go to one broker. The first coordinator does not know of the
    rebalance of the second, and would extend the lease past its end."""
    cluster, lease = Cluster(), Lease(SESSION, REBALANCE)
    cluster.replace()
    cluster.begin_rebalance()
    cluster.pass_time(SESSION - 1)
    renewal = Renewal(ME, cluster.now)
    assert cluster.commit(1)
    assert cluster.heartbeat(1) == REBALANCING
    code = cluster.heartbeat(0)
    assert lease.on_commit(renewal, ME, NONE)
    lease.on_heartbeat(renewal, ME, code, knows_assignment=True)
    cluster.pass_time(2 * REBALANCE)
    assert cluster.removed_at is not None
    assert lease.until > cluster.removed_at
