"""Commits decisions for the cluster, and elects leaders while this broker is the controller.

Every broker carries out the requests of clients (topics, configs) and of leaders (ISR changes)
itself, with the current controller's claim as a condition of the commit. Clients may send such
requests to any broker; in Kafka, a broker forwards them to the controller. Only the controller
elects leaders.

A *claim* is the controller's entry in the store: a broker writes it to become the controller, and
it ends with that broker's lease. Each of these commits compares the claim that it was made under.
So a decision has no effect if another broker became the controller in the meantime. A controller
derives its work from the image and remembers nothing. So a new controller examines everything once,
and work that its predecessor left unfinished needs no special treatment. Its work:

- Elect leaders whenever brokers register, leave or are about to stop. This is done in portions, so
  that the work and the size of one commit are limited, however many partitions a broker has.
- Return leadership to preferred replicas soon after they have caught up, and check for that at
  intervals (`auto.leader.rebalance.enable`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.commits import Commits, Make
from penstock.broker.control.membership import Membership
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.decisions import Decision, guarded
from penstock.metadata.edits import Slice, in_decisions
from penstock.metadata.elections import elect_among
from penstock.metadata.image import Changed, ClusterImage, TopicChange
from penstock.metadata.membership import claim_controller
from penstock.metadata.model import NO_LEADER, Controller, Topic
from penstock.metadata.preferred import elect, hand_over, in_portions, is_due
from penstock.ports import Env
from penstock.stores.errors import LeaseNotFound, OutcomeUnknown, StoreError
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")

_PUT_OFF_S: Final = 0.5
_PUT_OFF_MAX_S: Final = 30.0
_NO_CONTROLLER_PAUSE_S: Final = 0.05
CONTROLLER_WAIT_S: Final = 2.0
PREFER_SOON_S: Final = 5.0
"""How long after a preferred replica has caught up it becomes the leader again. The delay avoids
needless elections when brokers are restarted one after the other."""
_log = logging.getLogger(__name__)


class ControllerRuntime:
    """Makes cluster-wide decisions, and does the controller's work while this broker is controller.

    `static` are the settings of this broker's config file, under their Kafka names."""

    def __init__(
        self,
        env: Env,
        cluster: ClusterView,
        commits: Commits,
        membership: Membership,
        broker_id: int,
        configs: Callable[[], BrokerConfigs],
        static: Mapping[str, str],
    ) -> None:
        self._env = env
        self._cluster = cluster
        self._commits = commits
        self._membership = membership
        self._broker_id = broker_id
        self._configs = configs
        self.static = static
        self._work = asyncio.Event()
        self._prefer_timer: asyncio.TimerHandle | None = None
        self._prefer_now = False
        self.failing: str | None = None
        """The error of the controller's last round of work, if a retry alone will not fix it."""
        cluster.listen(self._on_change)

    @property
    def term(self) -> Controller | None:
        """The controller's claim if this broker holds it; None otherwise."""
        held = self._cluster.image.controller
        if held is None or held.incarnation_id != self._membership.incarnation_id:
            return None
        return held

    @property
    def broker_epoch(self) -> int:
        return self._membership.broker_epoch

    @property
    def stopping(self) -> frozenset[int]:
        """Brokers that are about to stop. Every decision takes them into account."""
        return self._cluster.image.stopping

    # Decisions

    async def decide(self, make: Make[R], *, is_repeated: bool = False) -> R:
        """Carries out a decision for the cluster, on condition that the controller stays the same.

        If there is no controller, because the cluster is starting or the controller died, this
        waits up to `CONTROLLER_WAIT_S` for one: not every client retries. For `is_repeated` see
        `Commits.commit`.
        """
        clock = self._env.clock
        end_s = clock.monotonic() + CONTROLLER_WAIT_S
        while self._cluster.image.controller is None and clock.monotonic() < end_s:
            await clock.sleep(_NO_CONTROLLER_PAUSE_S)

        def with_term(image: ClusterImage) -> Decision[R]:
            if image.controller is None:
                raise KafkaError(
                    ErrorCode.NOT_CONTROLLER, "There is no controller at the moment. Try again."
                )
            return guarded(make(image), image.controller)

        return await self._commits.commit(with_term, is_repeated=is_repeated)

    async def commit_own(self, make: Make[R]) -> R:
        """Carries out a decision that does not depend on the controller."""
        return await self._commits.commit(make)

    async def hand_over(self) -> int:
        """Hands over this broker's leaderships, and removes it from all ISRs.

        Returns how many partitions it still leads because no other replica can.
        """

        def step(image: ClusterImage) -> Decision[tuple[bool, int]]:
            decision = hand_over(
                image, self._broker_id, stopping=image.stopping, static=self.static
            )
            result = bool(decision.changes), decision.result
            return Decision(decision.changes, result, decision.guards)

        changed, leads = True, 0
        while changed:
            try:
                changed, leads = await self.decide(step)
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
                await self._env.clock.sleep(_NO_CONTROLLER_PAUSE_S)
        return leads

    # The controller's work

    async def watch_over(self) -> None:
        """Does the controller's work as it comes up, until cancelled.

        Work that fails is logged and tried again later, whatever it raised. It must not end the
        process: the next controller would fail in the same way, and so one broker after another.
        """
        failures = 0
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                error = await self._do_duties()
                if error is None:
                    failures = 0
                    continue
                failures = 0 if _may_pass(error) else failures + 1
                self._put_off(error)
                await self._env.clock.sleep(min(_PUT_OFF_S * 2**failures, _PUT_OFF_MAX_S))
        finally:
            self._cancel_timer()

    async def _do_duties(self) -> Exception | None:
        """Does all work that is due, even if a part of it fails. Returns the first error."""
        first: Exception | None = None
        for duty in (self.claim, self._prefer_if_due):
            try:
                await duty()
            except Exception as error:  # noqa: BLE001 - reported by the caller, and tried again
                first = first or error
        self.failing = None if first is None or _may_pass(first) else f"{first!r}"
        return first

    def _put_off(self, error: Exception) -> None:
        if isinstance(error, LeaseNotFound):
            self._membership.doubt()
        if _may_pass(error):
            _log.warning("the controller could not do its work and will retry: %s", error)
        else:
            _log.error(
                "a task of the controller failed and will be retried: %r", error, exc_info=error
            )
        self._work.set()

    async def begin(self) -> None:
        """Claims the controller role at startup. If that fails, `watch_over` tries it again."""
        try:
            await self.claim()
        except Exception as error:  # noqa: BLE001 - reported, and tried again
            self._put_off(error)

    async def claim(self) -> None:
        """Becomes the controller if there is none. Elects leaders if this broker is controller."""
        if not self._membership.is_registered:
            return
        # `term` is None also if the claim belongs to an earlier run of this broker.
        held = self.term
        if held is None:
            decision = claim_controller(self._cluster.image, self._broker_id)
            if decision is not None:
                await self._commits.attempt(decision)
            held = self.term
            if held is not None:
                _log.debug("broker %d is the controller now", self._broker_id)
                self._prefer_in(PREFER_SOON_S)
        if held is not None:
            await self.elect()

    async def elect(self) -> None:
        """Elects a live leader for every partition that needs one and has an electable replica.

        If one portion cannot be committed, the others are elected nevertheless.
        """
        failed: Exception | None = None
        is_settled = False
        while not is_settled:
            is_settled = True
            for portion in in_decisions(list(self._cluster.image.topics.values())):
                term = self.term
                if term is None:
                    return
                try:
                    is_settled &= await self._elect_among(portion, term)
                except Exception as error:
                    if _may_pass(error):
                        raise
                    failed = error
        if failed is not None:
            raise failed

    async def _elect_among(self, portion: Sequence[Slice], term: Controller) -> bool:
        """Elects leaders for a portion. Returns False if the image was out of date."""
        decision = elect_among(
            self._cluster.image, portion, static=self.static, stopping=self.stopping
        )
        if not decision.changes:
            # Requests are served between two portions.
            await asyncio.sleep(0)
            return True
        return await self._commits.attempt(guarded(decision, term))

    def _on_change(self, changed: Changed) -> None:
        # Another broker may have created a topic with a leader that has died since.
        misled = any(
            change.after is not None and self._is_misled(change.after) for change in changed.topics
        )
        # If min.insync.replicas was lowered, the ISR may be large enough without the ELR.
        altered = changed.configs or any(_is_altered(change) for change in changed.topics)
        if changed.brokers or changed.controller or misled or altered:
            self._work.set()
        if self.term is not None and any(
            change.after is not None and self._is_unbalanced(change.after)
            for change in changed.topics
        ):
            self._prefer_in(PREFER_SOON_S)

    def _is_misled(self, topic: Topic) -> bool:
        brokers = self._cluster.image.brokers
        for partition in topic.partitions:
            leader = brokers.get(partition.leader)
            dead = leader is None or leader.broker_epoch != partition.leader_broker_epoch
            if dead and partition.leader != NO_LEADER:
                return True
        return False

    # Preferred leaders

    def _is_unbalanced(self, topic: Topic) -> bool:
        image = self._cluster.image
        return any(is_due(image, partition) for partition in topic.partitions)

    def _prefer_in(self, delay_s: float) -> None:
        """Schedules a check of preferred leaders, in `delay_s` seconds at the latest."""
        loop = asyncio.get_running_loop()
        timer = self._prefer_timer
        if timer is None or timer.when() > loop.time() + delay_s:
            self._cancel_timer()
            self._prefer_timer = loop.call_later(delay_s, self._on_prefer)

    def _on_prefer(self) -> None:
        self._prefer_timer = None
        self._prefer_now = True
        self._work.set()

    def _cancel_timer(self) -> None:
        if self._prefer_timer is not None:
            self._prefer_timer.cancel()
            self._prefer_timer = None

    async def _prefer_if_due(self) -> None:
        if not self._prefer_now or self.term is None:
            return
        configs = self._configs()
        if configs.bool_value("auto.leader.rebalance.enable"):
            await self._prefer()
        # Reset only after success: if the store fails half way, the rest is tried again.
        self._prefer_now = False
        self._prefer_in(configs.int_value("leader.imbalance.check.interval.seconds"))

    async def _prefer(self) -> None:
        image = self._cluster.image
        topic_partitions = [
            TopicPartition(topic.name, index)
            for topic in image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if is_due(image, partition)
        ]
        for portion in in_portions(image, topic_partitions):
            term = self.term
            if term is None:
                return
            decision = elect(image, portion, stopping=self.stopping, static=self.static)
            if decision.changes and await self._commits.attempt(guarded(decision, term)):
                _log.info(
                    "moved the leadership of %d partitions to their preferred replicas",
                    len(portion),
                )


def _is_altered(change: TopicChange) -> bool:
    """Returns whether the configs of a topic with eligible leader replicas have changed."""
    before, after = change.before, change.after
    return (
        before is not None
        and after is not None
        and before.configs != after.configs
        and any(partition.eligible_leaders for partition in after.partitions)
    )


def _may_pass(error: Exception) -> bool:
    """Returns whether a later retry may succeed without an operator's help."""
    if isinstance(error, StoreError):
        return error.retriable or isinstance(error, OutcomeUnknown | LeaseNotFound)
    return isinstance(error, KafkaError | TimeoutError)
