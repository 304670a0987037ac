"""Keeps this broker registered in the cluster, under a lease.

The broker renews the lease every `broker.heartbeat.interval.ms`, counted from when the last renewal
was sent. If a renewal took longer than that, the next one is sent at once. While the event loop is
busy, the store renews the lease itself where it can (`MetadataStore.keep_alive`), for up to
`CARRY_SESSIONS` session timeouts.

While the store does not answer, the broker keeps serving. If the store is down, no other broker can
have taken over. If only this broker is cut off and others have taken over, every action that it may
no longer take is refused: it commits nothing new without its followers, and changes no ISR without
the store.

Safety does not depend on the lease. Every change of the metadata compares the keys it depends on,
among them the controller's claim and the broker's registration, and these keys are removed with the
lease. A leader that was replaced commits nothing, because its followers have moved to the new
leader epoch. The lease only bounds how long a dead broker goes unnoticed. Even so, the broker
always knows before the store that its lease may have expired (`may_be_over`), because it counts
from when it sent the renewal and the store from when it received it. On SQLite both read the clock
of one machine, and other brokers wait for an additional grace period. On etcd each side counts on
its own monotonic clock, so only clocks that run at different speeds could differ.

A lease is lost when the process or the machine was paused for too long, or was cut off from the
store. The other brokers have then continued without this one. Its logs are complete, so the process
need not restart. The broker gives up all its leaderships, registers again under a new lease and a
new broker epoch, and follows the current leaders as after a restart. `keep` controls this. The
callback that it gets carries out what the broker must give up.

If another process has registered under the same id, one of the two is misconfigured. The later one
stays and this one ends. Otherwise each would displace the other forever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.commits import Commits
from penstock.broker.log_format import tell
from penstock.metadata.decisions import Decision
from penstock.metadata.image import Changed, ClusterImage
from penstock.metadata.membership import announce_stop, create_cluster, register_broker
from penstock.metadata.model import BrokerInfo
from penstock.metadata.topic_ids import new_id, to_text
from penstock.ports import Env
from penstock.security.listeners import Listener, endpoint_for
from penstock.stores.errors import LeaseNotFound, OutcomeUnknown, StoreError
from penstock.wire.errors import KafkaError

_PUT_OFF_S: Final = 0.5
CARRY_SESSIONS: Final = 3
"""For how many session timeouts the store renews the lease of a broker whose event loop is busy."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Proof:
    """What a broker proved about its logs: fields of `BrokerInfo`. -1 stands for no such epoch."""

    lossless_since: int
    synced_since: int
    fsync_since: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker's advertised address and its rack."""

    host: str
    """What other brokers connect to."""
    port: int
    rack: str | None
    listeners: tuple[Listener, ...] = ()
    """All advertised endpoints; empty if the only listener is PLAINTEXT."""

    def address(self, listener: str) -> tuple[str, int] | None:
        """Returns where clients of the listener connect to; None if it is not advertised."""
        found = endpoint_for(self.listeners, listener)
        return None if found is None else (found.host, found.port)


class Replaced(RuntimeError):
    """Another process has registered under this broker's id."""


class Membership:
    def __init__(
        self,
        env: Env,
        cluster: ClusterView,
        commits: Commits,
        broker_id: int,
        session_timeout_s: float,
        heartbeat_interval_s: float,
    ) -> None:
        self._env = env
        self._cluster = cluster
        self._commits = commits
        self._broker_id = broker_id
        self._session_timeout_s = session_timeout_s
        self._heartbeat_interval_s = heartbeat_interval_s
        self._own_ids: set[bytes] = set()
        self._doubt = asyncio.Event()
        self._leaving = False
        self.incarnation_id = b""
        self.broker_epoch = -1
        """The epoch of the current registration, or -1 if there is none."""
        self.renewed_at = env.clock.monotonic()
        """When the last renewal that the store confirmed was sent."""
        cluster.listen(self._on_change)

    async def found_cluster(self) -> str:
        """Returns the cluster's id. If the cluster has none yet, this broker chooses it."""
        cluster_id = to_text(new_id(self._env.random.bytes))
        return await self._commits.commit(lambda image: create_cluster(image, cluster_id))

    async def register(self, endpoint: Endpoint, proof: Proof) -> None:
        """Registers with a new lease. The caller holds the lock of the data directory, so an
        existing registration of another incarnation belongs to a dead process."""
        granted_at = self._env.clock.monotonic()
        former, self._commits.lease = (
            self._commits.lease,
            await self._env.store.grant_lease(self._session_timeout_s),
        )
        if former:
            # The old lease has expired or is about to. The keys that remain under it must not be
            # mistaken for those of the new registration.
            with suppress(StoreError):
                await self._env.store.revoke_lease(former)
        self.incarnation_id = new_id(self._env.random.bytes)
        broker = BrokerInfo(
            self._broker_id,
            endpoint.host,
            endpoint.port,
            endpoint.rack,
            self.incarnation_id,
            lossless_since=proof.lossless_since,
            synced_since=proof.synced_since,
            fsync_since=proof.fsync_since,
            listeners=endpoint.listeners,
        )
        if self._own_ids:
            # Noted before the commit: if the answer to the commit gets lost, the registration is
            # still recognized as this broker's own.
            self._own_ids.add(self.incarnation_id)
        await self._commits.commit(lambda image: self._registration(image, broker))
        self._own_ids.add(self.incarnation_id)
        held = self._cluster.image.brokers.get(self._broker_id)
        if held is None or held.incarnation_id != self.incarnation_id:
            raise LeaseNotFound(self._commits.lease)
        self.broker_epoch = held.broker_epoch
        self.renewed_at = granted_at

    def _registration(self, image: ClusterImage, broker: BrokerInfo) -> Decision[BrokerInfo]:
        self._check_replaced()
        return register_broker(image, broker, take_over=True)

    @property
    def is_registered(self) -> bool:
        """Whether the image shows this broker's current registration."""
        held = self._cluster.image.brokers.get(self._broker_id)
        return held is not None and held.incarnation_id == self.incarnation_id

    @property
    def ends_at(self) -> float:
        """The time of the monotonic clock from which on the lease may have expired. It is in the
        past as soon as this broker leaves the cluster."""
        return 0.0 if self._leaving else self.renewed_at + self._session_timeout_s

    @property
    def may_be_over(self) -> bool:
        """Whether the lease may have expired: no renewal was confirmed within a session timeout."""
        return self._env.clock.monotonic() - self.renewed_at >= self._session_timeout_s

    async def keep(self, start_over: Callable[[], Awaitable[None]]) -> None:
        """Renews the lease until cancelled. When it is lost, calls `start_over` to register
        again."""
        clock = self._env.clock
        sent_at = self.renewed_at
        while True:
            await self._wait_turn(sent_at)
            sent_at = clock.monotonic()
            if self._leaving:
                continue
            self._check_replaced()
            try:
                alive = await self._env.store.keep_alive(
                    self._commits.lease, CARRY_SESSIONS * self._session_timeout_s
                )
            except StoreError as error:
                # Only the store can tell whether the lease is lost, once it answers again.
                if not _may_pass(error):
                    raise
                _log.warning("could not renew this broker's lease, retrying: %s", error)
                continue
            if alive:
                self.renewed_at = sent_at
            if not self._leaving and not (alive and self.is_registered):
                await self._start_over(start_over)

    def doubt(self) -> None:
        """Requests a check of the lease soon. Called when the store reported it as not found."""
        self._doubt.set()

    async def announce_stop(self) -> None:
        """Announces to the cluster that this broker is about to stop."""
        await self._commits.commit(
            lambda image: announce_stop(image, self._broker_id, self.broker_epoch)
        )

    async def leave(self) -> None:
        """Revokes the lease at a clean stop. That removes everything this broker has registered,
        including a claim to be controller."""
        self._leaving = True
        await self._env.store.revoke_lease(self._commits.lease)

    async def _start_over(self, start_over: Callable[[], Awaitable[None]]) -> None:
        tell(
            _log,
            "session_lost",
            "this broker's session expired: it was paused, too slow, or cut off from the store for "
            f"{self._session_timeout_s:g} s; it gives up its leaderships and registers again",
            logging.WARNING,
            broker_epoch=self.broker_epoch,
        )
        self.broker_epoch = -1
        while not self._leaving:
            try:
                await start_over()
            except (StoreError, KafkaError, TimeoutError) as error:
                if isinstance(error, StoreError) and not _may_pass(error):
                    raise
                _log.warning("could not register this broker again, retrying: %s", error)
                await self._env.clock.sleep(_PUT_OFF_S)
            else:
                tell(
                    _log,
                    "registered_again",
                    f"registered again with broker epoch {self.broker_epoch}",
                    logging.WARNING,
                    broker_epoch=self.broker_epoch,
                )
                return

    def _check_replaced(self) -> None:
        held = self._cluster.image.brokers.get(self._broker_id)
        if self._own_ids and held is not None and held.incarnation_id not in self._own_ids:
            raise Replaced(
                f"another broker, at {held.host}:{held.port}, has registered as broker "
                f"{self._broker_id}: give one of the two another broker_id"
            )

    def _on_change(self, changed: Changed) -> None:
        if self._broker_id in changed.broker_ids and not self.is_registered and self._own_ids:
            self._doubt.set()

    async def _wait_turn(self, sent_at: float) -> None:
        """Waits until `doubt` is called, or until a heartbeat interval after `sent_at`."""
        interval_s = min(self._heartbeat_interval_s, self._session_timeout_s / 3)
        left_s = max(0.0, sent_at + interval_s - self._env.clock.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._doubt.wait()
        self._doubt.clear()


def _may_pass(error: StoreError) -> bool:
    return error.retriable or isinstance(error, OutcomeUnknown | LeaseNotFound)
