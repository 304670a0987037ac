"""Membership and control: this broker's registration, and its term as controller if it has one.

Decisions are pure (`penstock.metadata`): an image and a wish give the changes to make. Here they
are committed, guarded by the revision each rests on and by the controller's term. A commit that
fails rested on an old image: the image is waited for and the decision made again.

What clients ask for (topics, configs) any broker carries out, under the term of whoever is the
controller: clients come to any of them, and Kafka's brokers pass such requests on. Elections are
the controller's alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.broker.cluster import ClusterView
from penstock.metadata.decisions import Decision, guarded
from penstock.metadata.elections import elect_leaders
from penstock.metadata.image import Changed, ClusterImage
from penstock.metadata.membership import (
    claim_controller,
    create_cluster,
    register_broker,
    resign_controller,
    unregister_broker,
)
from penstock.metadata.model import NO_LEADER, BrokerInfo, Controller, Topic
from penstock.metadata.topic_ids import new_id, to_text
from penstock.ports import Compare, Delete, Env, Put
from penstock.stores.errors import OutcomeUnknown, StoreBusy, StoreError
from penstock.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")

_ATTEMPTS: Final = 20
_PUT_OFF_S: Final = 0.5
_log = logging.getLogger(__name__)


class ControllerRuntime:
    def __init__(
        self, env: Env, cluster: ClusterView, broker_id: int, session_timeout_s: float
    ) -> None:
        self._env = env
        self._cluster = cluster
        self._broker_id = broker_id
        self._session_timeout_s = session_timeout_s
        self._lease = 0
        self._incarnation_id = new_id(env.random.bytes)
        self._work = asyncio.Event()
        self._leaving = False
        self.broker_epoch = -1
        cluster.listen(self._on_change)

    @property
    def term(self) -> Controller | None:
        """This broker's term as controller, None when another has it."""
        held = self._cluster.image.controller
        if held is None or held.incarnation_id != self._incarnation_id:
            return None
        return held

    # Membership

    async def join(self, host: str, port: int, rack: str | None) -> None:
        """Register with a lease. The caller holds the lock of the data directory, so a
        registration under the same id is a dead process's."""
        await self._commit(lambda image: create_cluster(image, self._new_cluster_id()))
        self._lease = await self._env.store.grant_lease(self._session_timeout_s)
        broker = BrokerInfo(self._broker_id, host, port, rack, self._incarnation_id)
        registered = await self._commit(
            lambda image: register_broker(image, broker, take_over=True)
        )
        image = self._cluster.image
        self.broker_epoch = image.brokers[registered.broker_id].broker_epoch
        await self.claim()

    async def claim(self) -> None:
        """Take the controller's lease if nobody has it, and do what a new term begins with."""
        if self._leaving:
            return
        if self._broker_id not in self._cluster.image.brokers:
            # The registration goes with its lease, and its absence may be seen first.
            raise self._lease_lost()
        # Also when the claim in force is a dead incarnation's of this very broker.
        held = self.term
        if held is None:
            await self._commit_optional(lambda image: claim_controller(image, self._broker_id))
            held = self.term
            if held is not None:
                _log.info("broker %d is the controller now", self._broker_id)
        if held is not None:
            await self.elect()

    async def elect(self) -> None:
        """Give every partition that can have one a leader among the living."""
        while (term := self.term) is not None:
            decisions = elect_leaders(self._cluster.image)
            if not decisions:
                return
            for decision in decisions:
                await self._try(guarded(decision, term))

    async def keep_alive(self) -> None:
        """Renew the lease until cancelled; losing it ends the broker, giving it back does not."""
        while True:
            await self._env.clock.sleep(self._session_timeout_s / 3)
            try:
                alive = await self._env.store.keep_alive(self._lease)
            except StoreError as error:
                # Whether the lease is lost is for the store to say, once it answers again. Until
                # then this broker serves on: whatever it may not do, the store refuses.
                if not error.retriable:
                    raise
                _log.warning("the lease could not be renewed: %s", error)
                continue
            if not alive and not self._leaving:
                raise self._lease_lost()

    def _lease_lost(self) -> RuntimeError:
        return RuntimeError(
            "this broker's lease expired: the machine was stopped or too slow for "
            f"{self._session_timeout_s} s; restart it"
        )

    async def watch_over(self) -> None:
        """The controller's duties, as they come up: elections, and taking over."""
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self.claim()
            except StoreError as error:
                if not error.retriable and not isinstance(error, OutcomeUnknown):
                    raise
                _log.warning("the controller's work is put off: %s", error)
                self._work.set()
                await self._env.clock.sleep(_PUT_OFF_S)

    async def leave(self) -> None:
        """Give everything back at a clean stop."""
        self._leaving = True
        term = self.term
        if term is not None:
            await self._commit_optional(lambda image: resign_controller(image, term))
        await self._commit_optional(
            lambda image: unregister_broker(image, self._broker_id, self._incarnation_id)
        )
        await self._env.store.revoke_lease(self._lease)

    def _on_change(self, changed: Changed) -> None:
        # A topic can be new with a leader that has died since it was chosen, by another broker.
        misled = any(
            change.after is not None and self._is_misled(change.after) for change in changed.topics
        )
        if changed.brokers or changed.controller or misled:
            self._work.set()

    def _is_misled(self, topic: Topic) -> bool:
        brokers = self._cluster.image.brokers
        for partition in topic.partitions:
            leader = brokers.get(partition.leader)
            dead = leader is None or leader.broker_epoch != partition.leader_broker_epoch
            if dead and partition.leader != NO_LEADER:
                return True
        return False

    def _new_cluster_id(self) -> str:
        return to_text(new_id(self._env.random.bytes))

    # Decisions

    async def decide(self, make: Callable[[ClusterImage], Decision[R]]) -> R:
        """Carry out a decision for the cluster, while the controller's term lasts."""

        def with_term(image: ClusterImage) -> Decision[R]:
            if image.controller is None:
                raise KafkaError(
                    ErrorCode.NOT_CONTROLLER, "There is no controller at the moment: try again."
                )
            return guarded(make(image), image.controller)

        return await self._commit(with_term)

    async def commit_own(self, make: Callable[[ClusterImage], Decision[R]]) -> R:
        """Carry out a decision that any broker may make."""
        return await self._commit(make)

    async def _commit(self, make: Callable[[ClusterImage], Decision[R]]) -> R:
        for _ in range(_ATTEMPTS):
            decision = make(self._cluster.image)
            if not decision.changes or await self._try(decision):
                return decision.result
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the cluster changes too fast; try again")

    async def _commit_optional(self, make: Callable[[ClusterImage], Decision[R] | None]) -> None:
        decision = make(self._cluster.image)
        if decision is not None and decision.changes:
            await self._try(decision)

    async def _try(self, decision: Decision[R]) -> bool:
        """Commit, and wait until the image shows what is true now; False if it was out of date."""
        compares = [Compare(change.key, change.expected_revision) for change in decision.changes]
        compares += [Compare(guard.key, guard.expected_revision) for guard in decision.guards]
        changes = [
            Delete(change.key)
            if change.value is None
            else Put(change.key, change.value, self._lease if change.leased else 0)
            for change in decision.changes
        ]
        try:
            committed = await self._env.store.commit(compares, changes)
        except StoreBusy as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        await self._cluster.wait_for(committed.revision)
        return committed.succeeded
