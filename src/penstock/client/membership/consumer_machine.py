"""The state machine of one member of a consumer group of the new protocol (KIP-848). Pure.

It is driven like the classic one in `machine`: the shell's background task asks it for the next
step, and polls tell the user what has changed. But the coordinator assigns the partitions, and
there is only one request. A heartbeat joins, acknowledges, changes the subscription and leaves:

    epoch 0    join. The answer has the member's epoch and its assignment
    epoch > 0  stay. Fields that have not changed are null
    epoch -1   leave
    epoch -2   leave for a while: a static member, whose place in the group is kept

    IDLE       has no subscription
    DUE        must join (again); waits for a poll, which first gives up what was lost
    JOINING    the heartbeat that joins is sent, or about to be
    STABLE     reads its assigned partitions
    ADOPTING   another assignment has arrived; waits for a poll, which applies it
    LEAVING    the consumer has not polled for too long: leaves the group, then it is DUE
    FENCED     another member has taken over its instance id; final

An assignment takes effect step by step. The coordinator first leaves out what this member must give
up. A poll revokes it, and the next heartbeat acknowledges that by naming what is still owned. Only
then other members get those partitions, and this one its new ones. What did not move is read all
the time.

After a failure the coordinator may or may not have processed the heartbeat, so the next one has all
fields. If the coordinator does not know the member or its epoch, everything is lost and the member
joins again with epoch 0.

Invariants: `generation` is the member epoch of the last answer, or none if this member is not in
the group. `owned` changes only in `told`, and is cleared by `leave`. A member joins only when it
owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.client.errors import ApiNotServed, BrokerError, ClientError, Fenced
from penstock.client.membership.backoff import Backoff
from penstock.client.membership.consumer_heartbeats import (
    LEAVE,
    LEAVE_FOR_A_WHILE,
    Interest,
    Ownership,
    heartbeat,
    join,
    names_request,
    not_served,
)
from penstock.client.membership.phases import Phase
from penstock.client.membership.protocol import NO_GENERATION
from penstock.client.membership.settings import MembershipOptions
from penstock.client.membership.steps import (
    Ask,
    Assigned,
    Failed,
    GroupResponse,
    Identity,
    Lost,
    News,
    Revoked,
    Step,
    Wait,
)
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
)

_NAMES_AGAIN_S: Final = 1.0
"""How often the names of topics are asked for that the coordinator did not know."""
_INTERVAL_S: Final = 5.0
"""The heartbeat interval until the coordinator has told its own."""
_ANSWER_INTERVALS: Final = 3
"""A heartbeat without an answer within so many intervals has failed."""
_UNRELEASED_S: Final = 60.0
"""How long a static member waits for the end of the session of a member with the same instance id:
that may be itself, before a crash."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """What the heartbeat in flight tells the coordinator. None: nothing new."""

    interest: Interest | None = None
    owned: Ownership | None = None


class ConsumerMembership:
    """Times are seconds of a monotonic clock. `jitter` returns numbers in [0, 1)."""

    def __init__(
        self, options: MembershipOptions, jitter: Callable[[], float], member_id: str
    ) -> None:
        self.options = options
        self.phase = Phase.IDLE
        self.generation = NO_GENERATION
        """The member epoch."""
        self.member_id = member_id
        self.owned: dict[TopicPartition, int] = {}
        """The partitions that this member reads, each with the epoch in which it was assigned."""
        self.is_leader: Final = False
        self.rebalances = 0
        self.last_rebalance_s = 0.0
        self._interest = Interest()
        self._names: dict[bytes, str] = {}
        self._owned_ids: dict[TopicPartition, bytes] = {}
        self._target: Ownership | None = None
        """The assignment, as the coordinator gave it last."""
        self._told: Interest | None = None
        """The subscription that the coordinator has."""
        self._acknowledged: Ownership = frozenset()
        """What the coordinator knows that this member owns."""
        self._sent = _Sent()
        self._tells_all = True
        self._is_new = False
        """Whether the user must be told an assignment, even if it is empty."""
        self._is_known = False
        """Whether the coordinator may know this member."""
        self._released_at = NO_GENERATION
        """The epoch in which this member last gave up or lost partitions."""
        self._error: Exception | None = None
        self._find = False
        self._backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, jitter)
        self._interval_s = _INTERVAL_S
        self._heartbeat_at = 0.0
        self._names_at = 0.0
        self._polled_at = 0.0
        self._changed_at = 0.0
        self._unreleased_at: float | None = None

    # -- queries --------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        return Identity(self.generation, self.member_id, self.options.group_instance_id)

    @property
    def knows_assignment(self) -> bool:
        return self.generation != NO_GENERATION and self._target is not None

    def held_since(self, topic_partition: TopicPartition, generation: int) -> bool:
        """Returns whether this member has owned the partition without interruption since that
        epoch."""
        since = self.owned.get(topic_partition)
        return self.generation != NO_GENERATION and since is not None and since <= generation

    def renewed(self, identity: Identity) -> Identity:
        """Returns what to sign with for records that were read under this identity.

        The epoch grows whenever the group changes, and older brokers refuse an old one. The new one
        may be used if this member has given up nothing since.
        """
        is_member = NO_GENERATION not in (self.generation, identity.generation)
        return self.identity if is_member and self._released_at < identity.generation else identity

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

    @property
    def _unnamed(self) -> tuple[bytes, ...]:
        given = {topic_id for topic_id, _ in self._target or ()}
        return tuple(sorted(given - self._names.keys()))

    @property
    def _assigned(self) -> dict[TopicPartition, bytes]:
        """The assignment as far as the names of its topics are known, without topics that were
        unsubscribed since."""
        return {
            TopicPartition(name, index): topic_id
            for topic_id, index in self._target or ()
            if (name := self._names.get(topic_id)) is not None and self._interest.covers(name)
        }

    @property
    def _ownership(self) -> Ownership:
        return frozenset(
            (topic_id, topic_partition.partition)
            for topic_partition, topic_id in self._owned_ids.items()
        )

    # -- the consumer's calls -------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str], now: float, regex: str | None = None) -> None:
        self._interest = Interest(topics, regex)
        if self.phase is Phase.IDLE:
            self.phase = Phase.DUE
            self._polled_at = now
        else:
            self._review(now)

    def rejoin(self, reason: str) -> None:
        """Tells the coordinator everything at once. Its answer has the assignment."""
        self._tells_all = True
        self._heartbeat_at = 0.0

    def poll(self, now: float) -> News | None:
        """Returns the next thing to tell the user, or None. Call `told` when done, then `poll`
        again."""
        self._polled_at = now
        if self.phase is Phase.DUE:
            if self.owned:
                return Lost(tuple(sorted(self.owned)))
            if self._error is None:
                self.phase = Phase.JOINING
                self._changed_at = now
        elif self.phase is Phase.ADOPTING:
            assigned = self._assigned
            gone = [each for each in self.owned if assigned.get(each) != self._owned_ids[each]]
            if gone:
                return Revoked(tuple(sorted(gone)))
            return Assigned(tuple(sorted(assigned.keys() - self.owned.keys())))
        elif self.phase is Phase.FENCED and self.owned:
            return Lost(tuple(sorted(self.owned)))
        return None if self._error is None else Failed(self._error)

    def told(self, news: News, now: float) -> None:
        """Confirms that the user was told. Updates the owned partitions."""
        self._polled_at = now
        match news:
            case Assigned(topic_partitions):
                assigned = self._assigned
                for each in topic_partitions:
                    self.owned[each] = self.generation
                    self._owned_ids[each] = assigned[each]
                if self.phase is Phase.ADOPTING:
                    self.phase = Phase.STABLE
                    self._is_new = False
                    self.rebalances += 1
                    self.last_rebalance_s = now - self._changed_at
                    self._review(now)
            case Revoked(topic_partitions) | Lost(topic_partitions):
                for each in topic_partitions:
                    self.owned.pop(each, None)
                    self._owned_ids.pop(each, None)
                self._released_at = max(self._released_at, self.generation)
            case Failed():
                if self.phase is not Phase.FENCED:
                    self._error = None

    def leave(self, reason: str, *, for_good: bool) -> ConsumerGroupHeartbeatRequest | None:
        """Stops to be a member. Returns the request to send if the coordinator may know this
        member. A static member keeps its place unless it leaves for good."""
        request = self._goodbye(for_good=for_good) if self._is_known else None
        self._reset(Phase.IDLE)
        self.owned.clear()
        self._owned_ids.clear()
        self._interest = Interest()
        self._error = None
        return request

    def _goodbye(self, *, for_good: bool) -> ConsumerGroupHeartbeatRequest | None:
        if for_good:
            return self._request(LEAVE)
        return None if self.options.group_instance_id is None else self._request(LEAVE_FOR_A_WHILE)

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            self.options.group_id, self.member_id, epoch, self.options.group_instance_id
        )

    # -- steps ----------------------------------------------------------------------------------

    def step(self, now: float) -> Step:
        """Returns what the background task has to do next."""
        if self.phase in (Phase.STABLE, Phase.ADOPTING) and now >= self._stalled_at:
            self.phase = Phase.LEAVING
            self._backoff.on_success()
        if self._backoff.until > now:
            return Wait(self._backoff.until)
        match self.phase:
            case Phase.LEAVING:
                is_static = self.options.group_instance_id is not None
                return self._ask(self._request(LEAVE_FOR_A_WHILE if is_static else LEAVE))
            case Phase.JOINING:
                self._is_known = True
                self._sent = _Sent(self._interest, frozenset())
                return self._ask(join(self.options, self.member_id, self._interest, self._told))
            case Phase.STABLE | Phase.ADOPTING:
                return self._watch(now)
            case Phase.DUE if self._nudge_at > now:
                return Wait(self._nudge_at)
            case _:
                return Wait(None)

    def _watch(self, now: float) -> Step:
        owned = self._ownership
        is_due = self.phase is Phase.STABLE and owned != self._acknowledged
        if now >= self._heartbeat_at or is_due or self._told != self._interest or self._tells_all:
            self._sent = _Sent(
                self._interest if self._tells_all or self._told != self._interest else None,
                owned if self._tells_all or is_due else None,
            )
            request = heartbeat(
                self.options,
                self.identity,
                self._sent.interest,
                self._told,
                self._sent.owned,
                tells_all=self._tells_all,
            )
            return self._ask(request)
        times = [self._heartbeat_at, self._stalled_at]
        if self._nudge_at > now:
            times.append(self._nudge_at)
        if unnamed := self._unnamed:
            if now >= self._names_at:
                return self._ask(names_request(unnamed))
            times.append(self._names_at)
        return Wait(min(times))

    def _ask(self, request: ConsumerGroupHeartbeatRequest | MetadataRequest) -> Ask:
        limit_s = min(
            self.options.request_timeout_ms / 1000,
            max(self._interval_s, _INTERVAL_S) * _ANSWER_INTERVALS,
        )
        return Ask(request, limit_s, self._find)

    # -- results of steps -----------------------------------------------------------------------

    def on_answer(self, answer: GroupResponse, now: float) -> None:
        if isinstance(answer, MetadataResponse):
            self._on_names(answer, now)
            return
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        if self.phase is Phase.LEAVING:
            self._reset(Phase.DUE)
        elif answer.error_code == ErrorCode.NONE:
            self._on_heartbeat(answer, now)
        else:
            self._refused(answer.error_code, answer.error_message, now)

    def on_failure(self, error: ClientError, now: float) -> None:
        """Handles a missing response, or an error that concerns the coordinator and not the
        group."""
        if self.phase is Phase.LEAVING:
            self._reset(Phase.DUE)
            return
        if isinstance(error, ApiNotServed):
            error = not_served(self.options.group_id, error)
        if not error.retriable:
            self._fail(error)
        loading = isinstance(error, BrokerError) and (
            error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        )
        self._find = not loading
        self._tells_all = True
        self._backoff.on_failure(now)

    def _on_heartbeat(self, answer: ConsumerGroupHeartbeatResponse, now: float) -> None:
        self._find = self._tells_all = False
        self._backoff.on_success()
        self._unreleased_at = None
        if self._sent.interest is not None:
            self._told = self._sent.interest
        if self._sent.owned is not None:
            self._acknowledged = self._sent.owned
        self.generation = answer.member_epoch
        self.member_id = answer.member_id or self.member_id
        self._interval_s = max(answer.heartbeat_interval_ms, 1) / 1000
        self._heartbeat_at = now + self._interval_s
        if self.phase is Phase.JOINING:
            self.phase = Phase.STABLE
            self._is_new = True
            self._target = frozenset()
        if answer.assignment is not None:
            self._target = frozenset(
                (topic.topic_id, index)
                for topic in answer.assignment.topic_partitions
                for index in topic.partitions
            )
            if not self._is_new:
                self._changed_at = now
            self._names_at = now if self._unnamed else self._names_at
        self._review(now)

    def _on_names(self, answer: MetadataResponse, now: float) -> None:
        self._names_at = now + _NAMES_AGAIN_S
        for topic in answer.topics:
            if topic.error_code == ErrorCode.NONE and topic.name is not None:
                # A topic that was created again has another id.
                for old in [key for key, name in self._names.items() if name == topic.name]:
                    del self._names[old]
                self._names[topic.topic_id] = topic.name
        self._review(now)

    def _review(self, now: float) -> None:
        """Lets the next poll apply the assignment if it differs from what is owned."""
        if self.phase is not Phase.STABLE or (self._unnamed and self._names_at <= now):
            return
        if self._is_new or self._assigned != self._owned_ids:
            self.phase = Phase.ADOPTING

    def _refused(self, code: int, message: str | None, now: float) -> None:
        group, instance = self.options.group_id, self.options.group_instance_id
        error = BrokerError(code, message, subject=f"group {group}")
        match code:
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_MEMBER_EPOCH:
                self._reset(Phase.JOINING if self.phase is Phase.JOINING else Phase.DUE)
                self._backoff.on_failure(now)
            case ErrorCode.FENCED_INSTANCE_ID:
                self._reset(Phase.FENCED)
                self._error = Fenced(
                    f"another member of group {group} has joined with group_instance_id "
                    f"{instance!r}: give each member its own"
                )
            case ErrorCode.UNRELEASED_INSTANCE_ID:
                self._wait_for_release(now)
            case ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                self._error = error
                self._tells_all = True
                self._backoff.on_failure(now)
            case ErrorCode.UNSUPPORTED_VERSION:
                self._fail(not_served(group, error))
            case _ if error.retriable:
                self.on_failure(error, now)
            case _:
                self._fail(error)

    def _wait_for_release(self, now: float) -> None:
        """A member that crashed holds its instance id until its session ends."""
        if self._unreleased_at is None:
            self._unreleased_at = now
        if now < self._unreleased_at + _UNRELEASED_S:
            self._backoff.on_failure(now)
            return
        self._unreleased_at = None
        self._fail(
            Fenced(
                f"group_instance_id {self.options.group_instance_id!r} is already used by another "
                f"member of group {self.options.group_id}: give each member its own, or stop that "
                "one"
            )
        )

    def _reset(self, phase: Phase) -> None:
        """Resets the state of a member that is no longer in the group."""
        self.phase = phase
        self._released_at = max(self._released_at, self.generation)
        self.generation = NO_GENERATION
        self._target = None
        self._acknowledged = frozenset()
        self._tells_all = True
        self._is_known = False
        self._is_new = False

    def _fail(self, error: Exception) -> None:
        """Reports an error to the next poll, without partitions. After that, a poll tries again."""
        self._reset(Phase.DUE)
        self._error = error
