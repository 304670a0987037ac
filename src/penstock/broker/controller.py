"""Control: this broker's term as controller if it has one, and the door to decisions for all.

What clients ask for (topics, configs), and what leaders ask for (in-sync sets), any broker carries
out, under the term of whoever is the controller: clients come to any of them, and Kafka's brokers
pass such requests on. Elections are the controller's alone.

Every commit of either kind compares the claim it was made under, so a controller that was deposed
while it thought has no effect. Duties are found in the image, not remembered: a new controller
looks at everything once, and what another one left half done is like any other work.

- Elections, whenever brokers come, go or are about to stop, in portions: the work and the size of
  one commit are bounded, however many partitions a broker had.
- Leadership goes back to preferred replicas soon after one has caught up, and is checked from time
  to time (`auto.leader.rebalance.enable`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from penstock.broker.cluster import ClusterView
from penstock.broker.commits import Commits, Make
from penstock.broker.membership import Membership
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
from penstock.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")

_PUT_OFF_S: Final = 0.5
_PUT_OFF_MAX_S: Final = 30.0
_NO_CONTROLLER_PAUSE_S: Final = 0.05
CONTROLLER_WAIT_S: Final = 2.0
PREFER_SOON_S: Final = 5.0
"""How long after a preferred replica has caught up it leads again: brokers that are restarted one
after the other are not to pass leadership round for nothing."""
_log = logging.getLogger(__name__)


class ControllerRuntime:
    """`static` are the settings of this broker's config file, under their Kafka names."""

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
        """What a duty of the controller failed with, when time alone will not mend it."""
        cluster.listen(self._on_change)

    @property
    def term(self) -> Controller | None:
        """This broker's term as controller, None when another has it."""
        held = self._cluster.image.controller
        if held is None or held.incarnation_id != self._membership.incarnation_id:
            return None
        return held

    @property
    def broker_epoch(self) -> int:
        return self._membership.broker_epoch

    @property
    def stopping(self) -> frozenset[int]:
        """Brokers that are about to stop: every decision wants to know."""
        return self._cluster.image.stopping

    # Decisions

    async def decide(self, make: Make[R]) -> R:
        """Carry out a decision for the cluster, while the controller's term lasts.

        Where there is none, as at the cluster's start or after the last one died, it is waited for:
        not every client tries again.
        """
        clock = self._env.clock
        end_s = clock.monotonic() + CONTROLLER_WAIT_S
        while self._cluster.image.controller is None and clock.monotonic() < end_s:
            await clock.sleep(_NO_CONTROLLER_PAUSE_S)

        def with_term(image: ClusterImage) -> Decision[R]:
            if image.controller is None:
                raise KafkaError(
                    ErrorCode.NOT_CONTROLLER, "There is no controller at the moment: try again."
                )
            return guarded(make(image), image.controller)

        return await self._commits.commit(with_term)

    async def commit_own(self, make: Make[R]) -> R:
        """Carry out a decision that any broker may make."""
        return await self._commits.commit(make)

    async def hand_over(self) -> int:
        """Take this broker out of all that it leads and is in sync for.

        Returns how much it still leads, since nobody else can.
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

    # The controller's duties

    async def watch_over(self) -> None:
        """The controller's duties, as they come up, until cancelled.

        A duty that fails is reported and tried again later, whatever it raised. It must not end the
        process: the next controller would meet the same, and so one broker after the other.
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
        """Run every duty, even if another one fails. Returns the first error."""
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
            _log.warning("the controller's work is put off: %s", error)
        else:
            _log.error(
                "a duty of the controller failed and will be tried again: %r", error, exc_info=error
            )
        self._work.set()

    async def begin(self) -> None:
        """Claim for the first time; what fails is gone on with in `watch_over`."""
        try:
            await self.claim()
        except Exception as error:  # noqa: BLE001 - reported, and tried again
            self._put_off(error)

    async def claim(self) -> None:
        """Take the controller's lease if nobody has it, and do what a new term begins with."""
        if not self._membership.is_registered:
            return
        # Also when the claim in force is a dead incarnation's of this very broker.
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
        """Give every partition that can have one a leader among the living.

        A portion that cannot be committed does not keep the others from theirs.
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
        """Whether it is settled; else the image was out of date."""
        decision = elect_among(
            self._cluster.image, portion, static=self.static, stopping=self.stopping
        )
        if not decision.changes:
            # Others are served between portions.
            await asyncio.sleep(0)
            return True
        return await self._commits.attempt(guarded(decision, term))

    def _on_change(self, changed: Changed) -> None:
        # A topic can be new with a leader that has died since it was chosen, by another broker.
        misled = any(
            change.after is not None and self._is_misled(change.after) for change in changed.topics
        )
        # With a lower min.insync.replicas there may be enough in sync without eligible leaders.
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
        """Look at preferred leaders in that time at the latest."""
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
        # Only now: what failed half way is gone on with when the store answers again.
        self._prefer_now = False
        self._prefer_in(configs.int_value("leader.imbalance.check.interval.seconds"))

    async def _prefer(self) -> None:
        image = self._cluster.image
        places = [
            (topic.name, index)
            for topic in image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if is_due(image, partition)
        ]
        for portion in in_portions(image, places):
            term = self.term
            if term is None:
                return
            decision = elect(image, portion, stopping=self.stopping, static=self.static)
            if decision.changes and await self._commits.attempt(guarded(decision, term)):
                _log.info("%d partitions are led by their preferred replicas again", len(portion))


def _is_altered(change: TopicChange) -> bool:
    """Whether other configs hold for a topic that has eligible leaders."""
    before, after = change.before, change.after
    return (
        before is not None
        and after is not None
        and before.configs != after.configs
        and any(partition.eligible_leaders for partition in after.partitions)
    )


def _may_pass(error: Exception) -> bool:
    """Whether a later retry may succeed without an operator's help."""
    if isinstance(error, StoreError):
        return error.retriable or isinstance(error, OutcomeUnknown | LeaseNotFound)
    return isinstance(error, KafkaError | TimeoutError)
