"""Planted bugs of workers that own pipelines: leases that last too long, drivers that run on.

See `replication`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from penstock.client.connection import Connection
from penstock.client.membership.steps import Identity
from penstock.sim.actors.pipeline_board import Driver
from penstock.sim.bugs.planting import Plant, bug, patch
from penstock.spark.deployments.lease import Lease, Renewal
from penstock.spark.deployments.ownership import Ownership
from penstock.wire.errors import ErrorCode

PIPELINE_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, PIPELINE_BUGS)


@_bug("lease-counted-from-the-answer")
def _counts_late(patches: ExitStack) -> None:
    """A lease is counted from the time of the answers, which may have been under way for long."""
    confirm = Ownership._confirm

    async def late(self: Ownership, connection: Connection, renewal: Renewal) -> None:
        await confirm(self, connection, renewal)
        answered = replace(renewal, sent_at=self._boot_time())
        identity, knows = self._member.identity, self._member.knows_assignment
        if self._lease._calm_at == renewal.sent_at:
            self._lease.on_commit(answered, identity, ErrorCode.NONE)
            self._lease.on_heartbeat(answered, identity, ErrorCode.NONE, knows_assignment=knows)
            self._announce()

    patch(patches, Ownership, "_confirm", late)


@_bug("lease-renewed-during-rebalances")
def _renews_always(patches: ExitStack) -> None:
    """A heartbeat that is answered with REBALANCE_IN_PROGRESS counts as one without an error."""
    handle = Lease.on_heartbeat

    def lenient(
        self: Lease, renewal: Renewal, identity: Identity, code: int, *, knows_assignment: bool
    ) -> None:
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            code = ErrorCode.NONE
        handle(self, renewal, identity, code, knows_assignment=knows_assignment)

    patch(patches, Lease, "on_heartbeat", lenient)


@_bug("lease-from-heartbeats-alone")
def _never_commits(patches: ExitStack) -> None:
    """A lease is renewed without a commit. A coordinator that was replaced answers heartbeats."""

    async def pretend(self: Ownership, connection: Connection, renewal: Renewal) -> int:
        return ErrorCode.NONE

    patch(patches, Ownership, "_commit", pretend)


@_bug("pipeline-given-up-before-its-driver-ended")
def _does_not_wait(patches: ExitStack) -> None:
    """A worker joins the group without a pipeline whose driver still runs."""

    async def at_once(self: Ownership, names: Collection[str]) -> None:
        for name in names:
            if name in self._owned and name not in self._ending:
                self._ending[name] = asyncio.ensure_future(self._end_one(name))

    patch(patches, Ownership, "_end", at_once)


@_bug("driver-without-a-watchdog")
def _ignores_deadlines(patches: ExitStack) -> None:
    """A driver whose worker is dead or frozen goes on after the end of the lease."""
    patch(patches, Driver, "ends_s", property(lambda self: self.stopped_s))
