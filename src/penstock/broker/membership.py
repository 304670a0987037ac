"""This broker's place in the cluster: its registration, and the lease it lives by.

The registration lies under a lease, which is renewed as long as the broker runs: every
`broker.heartbeat.interval.ms`, counted from when the last renewal was sent. A renewal that took
long is followed by the next one at once. While the event loop is busy, the store renews the lease
itself where it can (`MetadataStore.keep_alive`), for up to `CARRY_SESSIONS` session timeouts.

While the store gives no answer the broker serves on: nobody can have taken its place either, or if
somebody has, whatever it may not do is refused. It commits nothing new without its followers, and
no change of an in-sync set without the store.

Safety does not rest on the lease. Every change of the cluster compares the keys it rests on, the
controller's claim and the broker's registration among them, and those go with the lease. A leader
that was replaced commits nothing, since its followers have gone to the new leader epoch. The lease
only bounds how long a dead broker goes unnoticed. Even so the broker is the first to know that its
lease may be over (`may_be_over`): it counts from when it sent the renewal, the store from when it
got it. On SQLite both read the clock of one machine, and others wait for a grace on top. On etcd
each counts on its own monotonic clock; only clocks that run at different speeds could differ.

When the lease is lost (the process or the machine was stopped for too long, or was cut off from
the store) the others have gone on without this broker. Its logs are whole, so it need not start
over: it gives up all it led, registers again under a new lease and a new epoch, and follows the
leaders of now as after a restart. `keep` owns that; what giving up takes is the broker's affair.

If another process has registered under the same id, one of the two is set up wrongly. The later
one stays and this one ends: with both, each would throw the other out for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.broker.cluster import ClusterView
from penstock.broker.commits import Commits
from penstock.broker.lossless import Proof
from penstock.broker.watch.logs import tell
from penstock.metadata.decisions import Decision
from penstock.metadata.image import Changed, ClusterImage
from penstock.metadata.membership import (
    announce_stop,
    create_cluster,
    register_broker,
)
from penstock.metadata.model import BrokerInfo
from penstock.metadata.topic_ids import new_id, to_text
from penstock.ports import Env
from penstock.stores.errors import LeaseNotFound, OutcomeUnknown, StoreError
from penstock.wire.errors import KafkaError

_PUT_OFF_S: Final = 0.5
CARRY_SESSIONS: Final = 3
"""For how many session timeouts a store renews the lease of a broker whose event loop is busy."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker can be reached, and where it stands."""

    host: str
    port: int
    rack: str | None


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
        """That of the present registration; -1 before the first and while there is none."""
        self.renewed_at = env.clock.monotonic()
        """When the last renewal that the store confirmed was sent."""
        cluster.listen(self._on_change)

    async def found_cluster(self) -> str:
        """The cluster's id; this broker's idea of one if it has none."""
        cluster_id = to_text(new_id(self._env.random.bytes))
        return await self._commits.commit(lambda image: create_cluster(image, cluster_id))

    async def register(self, place: Place, proof: Proof) -> None:
        """Register with a new lease. The caller holds the lock of the data directory, so a
        registration of another incarnation that was there before is a dead process's."""
        granted_at = self._env.clock.monotonic()
        former, self._commits.lease = (
            self._commits.lease,
            await self._env.store.grant_lease(self._session_timeout_s),
        )
        if former:
            # It is lost, or as good as: what is left of it must not be taken for this life's.
            with suppress(StoreError):
                await self._env.store.revoke_lease(former)
        self.incarnation_id = new_id(self._env.random.bytes)
        broker = BrokerInfo(
            self._broker_id,
            place.host,
            place.port,
            place.rack,
            self.incarnation_id,
            lossless_since=proof.lossless_since,
            synced_since=proof.synced_since,
            fsync_since=proof.fsync_since,
        )
        if self._own_ids:
            # Before the commit: should its answer get lost, the registration is still one's own.
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
        """By what the image shows."""
        held = self._cluster.image.brokers.get(self._broker_id)
        return held is not None and held.incarnation_id == self.incarnation_id

    @property
    def may_be_over(self) -> bool:
        """Whether the lease may have run out: no renewal was confirmed for a session timeout."""
        return self._env.clock.monotonic() - self.renewed_at >= self._session_timeout_s

    async def keep(self, start_over: Callable[[], Awaitable[None]]) -> None:
        """Renew the lease until cancelled; when it is lost, `start_over` is to register anew."""
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
                # Whether the lease is lost is for the store to say, once it answers again.
                if not _may_pass(error):
                    raise
                _log.warning("the lease could not be renewed: %s", error)
                continue
            if alive:
                self.renewed_at = sent_at
            if not self._leaving and not (alive and self.is_registered):
                await self._start_over(start_over)

    def doubt(self) -> None:
        """Somebody was told that the lease is no more: look soon."""
        self._doubt.set()

    async def announce_stop(self) -> None:
        """Tell the cluster that this broker is about to stop."""
        await self._commits.commit(
            lambda image: announce_stop(image, self._broker_id, self.broker_epoch)
        )

    async def leave(self) -> None:
        """Give everything back at a clean stop: all that is this broker's lies under its lease, the
        claim to be controller too."""
        self._leaving = True
        await self._env.store.revoke_lease(self._commits.lease)

    async def _start_over(self, start_over: Callable[[], Awaitable[None]]) -> None:
        tell(
            _log,
            "session_lost",
            "this broker's session ended: it was stopped, or too slow, or cut off from the store "
            f"for {self._session_timeout_s:g} s; it gives up what it led and registers again",
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
                _log.warning("the broker could not register again as yet: %s", error)
                await self._env.clock.sleep(_PUT_OFF_S)
            else:
                tell(
                    _log,
                    "registered_again",
                    f"registered again, under the epoch {self.broker_epoch}",
                    logging.WARNING,
                    broker_epoch=self.broker_epoch,
                )
                return

    def _check_replaced(self) -> None:
        held = self._cluster.image.brokers.get(self._broker_id)
        if self._own_ids and held is not None and held.incarnation_id not in self._own_ids:
            raise Replaced(
                f"another broker has registered as {self._broker_id}, at {held.host}:{held.port}: "
                "give one of the two another broker_id"
            )

    def _on_change(self, changed: Changed) -> None:
        if self._broker_id in changed.broker_ids and not self.is_registered and self._own_ids:
            self._doubt.set()

    async def _wait_turn(self, sent_at: float) -> None:
        """Wait for doubt, or until the next renewal is due after one that was sent at `sent_at`."""
        interval_s = min(self._heartbeat_interval_s, self._session_timeout_s / 3)
        left_s = max(0.0, sent_at + interval_s - self._env.clock.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._doubt.wait()
        self._doubt.clear()


def _may_pass(error: StoreError) -> bool:
    return error.retriable or isinstance(error, OutcomeUnknown | LeaseNotFound)
