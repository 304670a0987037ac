"""Administrators of rights: what they do cannot be undone by a request that arrives late."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

import pytest

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, ConnectionLost
from penstock.security.acls import AclBinding, PermissionType
from penstock.sim.access_plan import READ
from penstock.sim.actors.rights_admin import AclChanges, NotSent, RightsAdmin
from penstock.sim.actors.shared_state import Actor, SharedState
from penstock.sim.history import History
from penstock.sim.scenario import draw

NOWHERE = cast(Cluster, None)


class Calls:
    """Notes the ACLs that are created and deleted, and answers with an error if it has one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.created: list[AclBinding] = []
        self.deleted: list[AclBinding] = []
        self.error: Exception | None = None

        async def create(_: AclChanges, cluster: Cluster, acl: AclBinding) -> None:
            self.created.append(acl)
            self._answer()

        async def delete(_: AclChanges, cluster: Cluster, acls: list[AclBinding]) -> None:
            self.deleted += acls
            self._answer()

        monkeypatch.setattr(AclChanges, "create", create)
        monkeypatch.setattr(AclChanges, "delete", delete)

    def _answer(self) -> None:
        if self.error is not None:
            raise self.error


def run(admin: RightsAdmin, *grants: bool) -> None:
    async def main() -> None:
        for grant in grants:
            await admin.change(NOWHERE, grant=grant)

    asyncio.run(main())


def new_admin(seed: int = 1) -> RightsAdmin:
    shared = SharedState(draw(0), [], History(), lambda: 0.0, asyncio.Event())
    return RightsAdmin(Actor(shared, cast(Any, None), "admin-read", Random(seed)), READ)


def test_no_acl_is_created_again_after_it_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion that arrives late finds nothing, and rights are taken in both ways."""
    calls, admin = Calls(monkeypatch), new_admin()
    gone: list[AclBinding] = []
    for _ in range(30):
        run(admin, not admin.is_given)
        assert not {*calls.created[-1:]} & {*gone}
        gone = [*calls.deleted]
    permissions = {acl.permission for acl in gone}
    assert permissions == {PermissionType.ALLOW, PermissionType.DENY}


def test_while_an_allow_may_arrive_rights_are_taken_by_a_deny(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(5):
        calls, admin = Calls(monkeypatch), new_admin(seed)
        calls.error = ConnectionLost("lost")
        run(admin, True)
        calls.error = None
        run(admin, True, False)
        assert calls.created[-1].permission == PermissionType.DENY
        assert not admin.is_given


def test_an_allow_that_was_never_sent_does_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, admin = Calls(monkeypatch), new_admin()
    calls.error = NotSent("no connection")
    run(admin, True)
    assert not admin.may_arrive
    calls.error = ClientError("unknown")
    run(admin, True)
    assert admin.may_arrive
