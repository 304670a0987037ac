"""Checks at the end of a run that rights and passwords work as they should at every broker.

All faults are over. The guest gets its rights, and must be able to use each of them. Then they are
revoked, and no broker may serve it any more (E20). The password of the visitor is deleted and set
again: in the end every broker refuses it, and then accepts it. What takes too long is a violation
of E14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.security.acls import AclBinding, PermissionType
from penstock.sim.access_plan import GROUP, GUEST, READ, RIGHTS, VISITOR, WRITE, allowed
from penstock.sim.actors.guest import Reader, Try, Writer, attempt, attempt_at, beat
from penstock.sim.actors.rights_admin import ADMIN_TIMEOUT_MS, AclChanges, NotDone, note_change
from penstock.sim.actors.shared_state import Actor
from penstock.sim.actors.visitor import log_in_once, set_password
from penstock.sim.history import FAIL, INFO, OK, Probe

_PAUSE_S: Final = 0.3


async def probe_access(actor: Actor) -> None:
    """Checks the rights of the guest and the password of the visitor."""
    if not actor.shared.scenario.access:
        return
    for what, work in (("giving and revoking rights", _rights), ("passwords", _passwords)):
        shared, error = actor.shared, ""
        begun_ms = shared.now_ms()
        step = [what]
        try:
            async with (
                asyncio.timeout(shared.scenario.mend_s),
                actor.cluster(ADMIN_TIMEOUT_MS) as cluster,
            ):
                await work(actor, cluster, step)
        except (ClientError, TimeoutError) as failed:
            error = f"{step[-1]}: {failed}"
        shared.history.add(
            Probe(
                process=actor.name,
                status=INFO if error else OK,
                begun_ms=begun_ms,
                ended_ms=shared.now_ms(),
                error=error,
                what=what,
            )
        )


async def _rights(actor: Actor, cluster: Cluster, step: list[str]) -> None:
    guest = replace(actor, name=f"{actor.name}-guest", user=GUEST)
    tries: dict[str, Try] = {WRITE: Writer(guest).run, READ: Reader(guest).run, GROUP: beat}
    acls = [allowed(GUEST, *each) for each in RIGHTS.values()]
    changes = AclChanges(actor)
    async with guest.cluster() as of_guest:
        step.append("the rights are given")
        await _until_made(actor, cluster, changes, acls, grant=True)
        for right, work in tries.items():
            step.append(f"the guest uses its right to {right}")
            await _until(partial(attempt, guest, of_guest, right, work), OK)
        step.append("the rights are revoked")
        denied = [replace(acl, permission=PermissionType.DENY) for acl in acls]
        await _until_made(actor, cluster, changes, denied, grant=False)
        step.append("the guest is refused everywhere")
        for right, work in tries.items():
            for broker in sorted(of_guest.brokers):
                await attempt_at(guest, of_guest, right, work, broker)


async def _until_made(
    actor: Actor, cluster: Cluster, changes: AclChanges, acls: list[AclBinding], *, grant: bool
) -> None:
    """Gives or takes all rights. Repeats that until it is acknowledged."""
    while True:
        begun_ms, error = actor.shared.now_ms(), ""
        try:
            if grant:
                await changes.delete_denies(cluster)
            for acl in acls:
                await changes.create(cluster, acl)
        except (ClientError, NotDone) as failed:
            error = str(failed)
        for right in RIGHTS:
            note_change(actor, right, begun_ms, error, granted=grant)
        if not error:
            return
        await asyncio.sleep(_PAUSE_S)


async def _passwords(actor: Actor, cluster: Cluster, step: list[str]) -> None:
    visitor = replace(actor, name=f"{actor.name}-visitor", user=VISITOR)
    for is_set, status in ((False, FAIL), (True, OK)):
        step.append("the password is set" if is_set else "the password is deleted")
        await _until(partial(set_password, actor, cluster, 0, is_set=is_set), True)
        for broker in range(actor.shared.scenario.brokers):
            step.append(f"broker {broker} {'accepts' if is_set else 'refuses'} the password")
            await _until(partial(log_in_once, visitor, broker), status)


async def _until(work: Callable[[], Awaitable[object]], result: object) -> None:
    """Repeats the work until it has this result."""
    while True:
        if await work() == result:
            return
        await asyncio.sleep(_PAUSE_S)
