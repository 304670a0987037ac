"""The state machine of one member of a consumer group (classic protocol). Pure.

Two parties drive it. The shell's background task calls `step` to learn what to do next (send a
request to the coordinator, count partitions, wait) and reports the result. The consumer's poll
calls `poll`, which returns what has changed, and confirms it with `told`. So the network never
waits for the user and the user is never interrupted: partitions are assigned and revoked only
during a poll.

    IDLE       has no subscription
    DUE        must join (again); waits for a poll, which gives up partitions where necessary
    JOINING    JoinGroup is sent, or about to be; the group gathers
    ASSIGNING  this member is the leader: it counts partitions and computes the assignment
    SYNCING    SyncGroup is sent; the member waits for the leader's assignment
    ADOPTING   the assignment has arrived; waits for a poll, which applies it
    STABLE     reads its assigned partitions
    LEAVING    the consumer has not polled for too long: leaves the group, then it is DUE
    FENCED     another member has taken over its instance id; final

An eager member gives up all partitions in DUE, before it joins. A cooperative member keeps its
partitions while it joins. In ADOPTING it gives up those that were not assigned to it again, and
then joins once more, so that other members can get them.

Invariants: `generation` is the generation of the last successful JoinGroup, or none after the
coordinator has removed this member. Partitions that are `owned` while there is no generation are
lost. `owned` changes only in `told`, and is cleared by `leave`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.client.errors import BrokerError, ClientError, Fenced
from penstock.client.membership import joining
from penstock.client.membership.assignors import Assignor, Memory
from penstock.client.membership.phases import Phase
from penstock.client.membership.protocol import NO_GENERATION, decode_assignment
from penstock.client.membership.settings import MembershipOptions
from penstock.client.membership.steps import (
    Ask,
    Assigned,
    Count,
    Failed,
    GroupRequest,
    GroupResponse,
    Identity,
    Lost,
    News,
    Revoked,
    Step,
    Wait,
)
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_JOIN_GRACE_S: Final = 5.0
"""How long a coordinator may take to answer a JoinGroup, in addition to the rebalance timeout."""
_MISSING_TOPIC_S: Final = 1.0
"""How often a leader checks for subscribed topics that do not exist yet."""
_DISOWNED: Final = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)


_AT_REST: Final = (Phase.DUE, Phase.ADOPTING, Phase.STABLE)
"""The phases in which a member that is known to the group sends heartbeats."""


class Membership:
    """Times are seconds of a monotonic clock. `jitter` returns numbers in [0, 1)."""

    def __init__(self, options: MembershipOptions, jitter: Callable[[], float]) -> None:
        self.options = options
        self.phase = Phase.IDLE
        self.topics: frozenset[str] = frozenset()
        self.generation = NO_GENERATION
        self.member_id = ""
        self.owned: dict[TopicPartition, int] = {}
        """The partitions that this member reads, each with the generation in which it was
        assigned."""
        self.is_leader = False
        self.rebalances = 0
        self.last_rebalance_s = 0.0
        self._jitter = jitter
        self._assignor: Assignor = options.assignors[0]
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._memory = Memory()
        self._peers: joining.Peers = ()
        self._sync: SyncGroupRequest | None = None
        self._counts: dict[str, int] | None = None
        """The partition counts that the assignment was computed from; if another member computed
        it, those that were seen first."""
        self._doubtful: Mapping[str, int] | None = None
        self._rejoin_reason: str | None = None
        self._join_reason = ""
        self._error: Exception | None = None
        self._find = False
        self._failures = 0
        self._retry_at = 0.0
        self._heartbeat_at = 0.0
        self._count_at = 0.0
        self._polled_at = 0.0
        self._join_began_at = 0.0

    # -- queries --------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        return Identity(self.generation, self.member_id, self.options.group_instance_id)

    @property
    def knows_assignment(self) -> bool:
        """Whether it has received its assignment in the current generation."""
        return self.generation != NO_GENERATION and self._memory.generation == self.generation

    def held_since(self, topic_partition: TopicPartition, generation: int) -> bool:
        """Returns whether this member has owned the partition without interruption since that
        generation."""
        return self.generation != NO_GENERATION and self.owned.get(
            topic_partition, generation + 1
        ) <= (generation)

    def renewed(self, identity: Identity) -> Identity:
        """Returns what to sign with for records that were read under this identity: itself."""
        return identity

    def needs_poll(self, now: float) -> bool:
        """Returns whether there is news, or a check is due that the consumer still polls."""
        waits = self.phase in (Phase.DUE, Phase.ADOPTING, Phase.FENCED)
        return waits or self._error is not None or now >= self._nudge_at

    @property
    def _nudge_at(self) -> float:
        return self._polled_at + self.options.max_poll_interval_ms / 2000

    @property
    def _stalled_at(self) -> float:
        return self._polled_at + self.options.max_poll_interval_ms / 1000

    # -- the consumer's calls -------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        if self.phase is Phase.IDLE:
            self.phase = Phase.DUE
            self._polled_at = now
            self._join_reason = "subscribed"
        elif topics != self.topics:
            self.rejoin("the subscription changed")
        self.topics = topics

    def rejoin(self, reason: str) -> None:
        """Joins again, as soon as a rebalance that may be in progress is over."""
        if self.phase is Phase.STABLE:
            self.phase = Phase.DUE
            self._join_reason = reason
        elif self.phase not in (Phase.IDLE, Phase.FENCED, Phase.LEAVING, Phase.DUE):
            self._rejoin_reason = reason

    def poll(self, now: float) -> News | None:
        """Returns the next thing to tell the user, or None. Call `told` when done, then `poll`
        again."""
        self._polled_at = now
        if self.phase is Phase.DUE:
            if (news := self._to_give_up()) is not None:
                return news
            if self._error is None:
                self._begin_join(now)
        elif self.phase is Phase.ADOPTING:
            gone = self.owned.keys() - self._assigned
            if gone:
                return Revoked(tuple(sorted(gone)))
            return Assigned(tuple(sorted(self._assigned - self.owned.keys())))
        elif self.phase is Phase.FENCED and self.owned:
            return Lost(tuple(sorted(self.owned)))
        return None if self._error is None else Failed(self._error)

    def told(self, news: News, now: float) -> None:
        """Confirms that the user was told. Updates the owned partitions."""
        self._polled_at = now
        match news:
            case Assigned(topic_partitions):
                self.owned.update(dict.fromkeys(topic_partitions, self.generation))
                if self.phase is Phase.ADOPTING:
                    self._settle()
            case Revoked(topic_partitions):
                self._forget(topic_partitions)
                if self.phase is Phase.ADOPTING:
                    self._rejoin_reason = "released partitions that other members will own"
            case Lost(topic_partitions):
                self._forget(topic_partitions)
            case Failed():
                if self.phase is not Phase.FENCED:
                    self._error = None

    def leave(self, reason: str, *, for_good: bool) -> LeaveGroupRequest | None:
        """Stops to be a member. Returns the request to send: none if the coordinator does not know
        this member, or is to keep its place."""
        request = self._goodbye(reason) if self.member_id and for_good else None
        self._reset(Phase.IDLE)
        self.owned.clear()
        self.topics = frozenset()
        self._error = None
        return request

    def _to_give_up(self) -> News | None:
        if self.generation == NO_GENERATION:
            gone = tuple(sorted(self.owned))
            return Lost(gone) if gone else None
        gone = tuple(
            sorted(
                topic_partition
                for topic_partition in self.owned
                if not self.options.is_cooperative or topic_partition.topic not in self.topics
            )
        )
        return Revoked(gone) if gone else None

    def _forget(self, topic_partitions: tuple[TopicPartition, ...]) -> None:
        for topic_partition in topic_partitions:
            self.owned.pop(topic_partition, None)

    def _settle(self) -> None:
        self.phase = Phase.STABLE
        self.rebalances += 1
        if self._rejoin_reason is not None:
            self.phase = Phase.DUE
            self._join_reason, self._rejoin_reason = self._rejoin_reason, None

    # -- steps ----------------------------------------------------------------------------------

    def step(self, now: float) -> Step:
        """Returns what the background task has to do next."""
        if self.phase in _AT_REST and self.member_id and now >= self._stalled_at:
            self.phase = Phase.LEAVING
            self._retry_at = now
        if self._retry_at > now:
            return Wait(self._retry_at)
        match self.phase:
            case Phase.LEAVING:
                if self.options.group_instance_id is None:
                    return self._ask(self._goodbye("no poll within max_poll_interval_ms"))
                # A static member does not leave: the group notices its absence only when its
                # session ends.
                self._leave_done()
                return Wait(None)
            case Phase.JOINING:
                return self._ask(self._join_request(), self._rebalance_s)
            case Phase.SYNCING:
                assert self._sync is not None
                return self._ask(self._sync, self._rebalance_s)
            case Phase.ASSIGNING | Phase.DUE | Phase.ADOPTING | Phase.STABLE:
                return self._watch(now)
            case Phase.IDLE | Phase.FENCED:
                return Wait(None)

    def _watch(self, now: float) -> Step:
        if self.generation == NO_GENERATION:
            return Wait(self._nudge_at if self._nudge_at > now else None)
        if now >= self._heartbeat_at:
            return self._ask(
                HeartbeatRequest(
                    self.options.group_id,
                    self.generation,
                    self.member_id,
                    self.options.group_instance_id,
                ),
                min(self.options.session_timeout_ms, self.options.request_timeout_ms) / 1000,
            )
        if self.phase is Phase.ASSIGNING:
            return Count(joining.topics_of(self._peers))
        times = [self._heartbeat_at, self._stalled_at]
        if self._nudge_at > now:
            times.append(self._nudge_at)
        if self.is_leader and self.phase is Phase.STABLE:
            if now >= self._count_at:
                return Count(joining.topics_of(self._peers))
            times.append(self._count_at)
        return Wait(min(times))

    @property
    def _rebalance_s(self) -> float:
        limit_ms = max(self.options.rebalance_ms, self.options.request_timeout_ms)
        return limit_ms / 1000 + _JOIN_GRACE_S

    def _ask(self, request: GroupRequest, timeout_s: float | None = None) -> Ask:
        limit_s = self.options.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        return Ask(request, limit_s, self._find)

    def _begin_join(self, now: float) -> None:
        self.phase = Phase.JOINING
        self._join_began_at = now
        self._rejoin_reason = None

    def _join_request(self) -> JoinGroupRequest:
        owned = tuple(sorted(self.owned))
        return joining.join_request(
            self.options,
            self.member_id,
            tuple(sorted(self.topics)),
            Memory(owned, self.generation),
            self._memory,
            self._join_reason,
        )

    def _goodbye(self, reason: str) -> LeaveGroupRequest:
        instance = self.options.group_instance_id
        return LeaveGroupRequest(
            self.options.group_id,
            members=[LeaveGroupRequest.Member(self.member_id, instance, reason)],
        )

    # -- results of steps -----------------------------------------------------------------------

    def on_answer(self, answer: GroupResponse, now: float) -> None:
        code = answer.error_code
        if isinstance(answer, LeaveGroupResponse):
            self._leave_done()
        elif self._is_about_coordinator(code):
            self.on_failure(BrokerError(code, subject=f"group {self.options.group_id}"), now)
        else:
            self._find = False
            self._failures = 0
            if isinstance(answer, JoinGroupResponse):
                self._on_join(answer, code, now)
            elif isinstance(answer, SyncGroupResponse):
                self._on_sync(answer, code, now)
            elif isinstance(answer, HeartbeatResponse):
                self._on_heartbeat(answer, code, now)

    def on_failure(self, error: ClientError, now: float) -> None:
        """Handles a missing response, or an error that concerns the coordinator and not the
        group."""
        if self.phase is Phase.LEAVING:
            self._leave_done()
            return
        if not error.retriable:
            self._fail(error)
        loading = isinstance(error, BrokerError) and (
            error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        )
        self._find = not loading
        self._back_off(now)

    def on_counts(self, counts: Mapping[str, int], now: float) -> None:
        """Handles partition counts. Topics that do not exist are missing from them."""
        self._failures = 0
        missing = any(topic not in counts for topic in joining.topics_of(self._peers))
        pause_s = self.options.metadata_max_age_ms / 1000
        self._count_at = now + (min(pause_s, _MISSING_TOPIC_S) if missing else pause_s)
        if self.phase is Phase.ASSIGNING:
            try:
                self._sync = joining.leader_sync(
                    self.options, self.identity, self._assignor, self._peers, counts
                )
            except Exception as error:  # noqa: BLE001 -- the assignor may be the user's
                self._fail(error)
                return
            self.phase = Phase.SYNCING
            self._counts = None
        if self._counts is None:
            self._counts = dict(counts)
        elif counts != self._counts and self._is_certain(counts):
            self.rejoin("the partition counts of the group's topics changed")

    def _is_certain(self, counts: Mapping[str, int]) -> bool:
        """Returns whether a change of the counts can be trusted.

        A decrease must be seen twice: a broker that has just started may not know any partitions
        yet, and the group should not rebalance because of that.
        """
        assert self._counts is not None
        grown = all(counts.get(topic, 0) >= count for topic, count in self._counts.items())
        certain = grown or counts == self._doubtful
        self._doubtful = None if certain else counts
        return certain

    def _on_join(self, answer: JoinGroupResponse, code: int, now: float) -> None:
        if code == ErrorCode.NONE:
            self.generation = answer.generation_id
            self.member_id = answer.member_id
            self._heartbeat_at = now + self.options.heartbeat_interval_ms / 1000
            self.is_leader = answer.leader == answer.member_id
            self._peers = joining.peers_of(answer) if self.is_leader else ()
            self._counts = None
            self._count_at = now
            try:
                self._assignor = joining.chosen(self.options, answer.protocol_name)
            except ClientError as error:
                self._fail(error)
                return
            leads = self.is_leader and not answer.skip_assignment
            self.phase = Phase.ASSIGNING if leads else Phase.SYNCING
            self._sync = joining.follower_sync(self.options, self.identity, self._assignor)
        elif code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._back_off(now)
        else:
            self._refused(code, now)

    def _on_sync(self, answer: SyncGroupResponse, code: int, now: float) -> None:
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._join_reason = "the group is rebalancing again"
            self._begin_join(now)
        elif code != ErrorCode.NONE:
            self._refused(code, now)
        else:
            try:
                assigned = decode_assignment(answer.assignment)
            except ProtocolError as error:
                self._fail(error)
                return
            self._memory = Memory(assigned, self.generation)
            # The subscription may have changed during the rebalance.
            self._assigned = frozenset(
                topic_partition
                for topic_partition in assigned
                if topic_partition.topic in self.topics
            )
            self.phase = Phase.ADOPTING
            self.last_rebalance_s = now - self._join_began_at
            self._heartbeat_at = now + self.options.heartbeat_interval_ms / 1000

    def _on_heartbeat(self, answer: HeartbeatResponse, code: int, now: float) -> None:
        self._heartbeat_at = now + self.options.heartbeat_interval_ms / 1000
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            # In any other phase, the group is only waiting for this member's next step.
            if self.phase in (Phase.STABLE, Phase.ADOPTING):
                self.rejoin("the group is rebalancing")
        elif code != ErrorCode.NONE:
            self._refused(code, now)

    def _refused(self, code: int, now: float) -> None:
        if code in _DISOWNED:
            waits = bool(self.owned) or self.phase in _AT_REST
            reason = f"refused by the coordinator: {ErrorCode(code).name}"
            self._reset(Phase.DUE if waits else Phase.JOINING, reason)
            self._back_off(now)
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._reset(Phase.FENCED)
            self._error = Fenced(
                f"another member of group {self.options.group_id} has joined with "
                f"group_instance_id {self.options.group_instance_id!r}: give each member its own"
            )
        else:
            self._fail(BrokerError(code, subject=f"group {self.options.group_id}"))

    def _reset(self, phase: Phase, reason: str = "") -> None:
        """Resets the state of a member that is no longer in the group."""
        self.phase = phase
        self.generation = NO_GENERATION
        self.is_leader = False
        self._rejoin_reason = None
        self._join_reason = reason
        self._assigned = frozenset()
        if phase in (Phase.IDLE, Phase.FENCED):
            self.member_id = ""

    def _leave_done(self) -> None:
        self._reset(Phase.DUE, "the consumer polls again")
        self.member_id = ""

    def _fail(self, error: Exception) -> None:
        """Reports an error to the next poll. After that, a poll tries again."""
        self._error = error
        if self.phase in (Phase.JOINING, Phase.ASSIGNING, Phase.SYNCING):
            self.phase = Phase.DUE

    def _back_off(self, now: float) -> None:
        longest_ms = self.options.retry_backoff_max_ms
        pause_ms = min(self.options.retry_backoff_ms * 2 ** min(self._failures, 16), longest_ms)
        self._failures += 1
        self._retry_at = now + pause_ms / 1000 * (0.5 + self._jitter())

    @staticmethod
    def _is_about_coordinator(code: int) -> bool:
        return code in (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.REQUEST_TIMED_OUT,
        )
