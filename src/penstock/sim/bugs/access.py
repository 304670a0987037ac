"""Planted bugs of access control: rights that outlive their revocation, passwords their deletion.

See `replication`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from penstock.broker.access.authorization import Authorization
from penstock.broker.access.credentials import UserCredentials
from penstock.broker.context import Services
from penstock.broker.handlers import acl_requests, fetch, fetch_sender
from penstock.broker.handlers.fetch_reads import FetchReads
from penstock.broker.handlers.fetch_sender import MayRead
from penstock.broker.partitions.produce_fast_path import ProduceFastPath
from penstock.security.scram_credentials import ScramCredential, ScramMechanism
from penstock.sim.bugs.planting import Plant, bug, patch

ACCESS_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, ACCESS_BUGS)


@_bug("acls-read-only-at-the-start")
def _never_swaps(patches: ExitStack) -> None:
    """A broker confirms changes of ACLs, but decides by those that it had when it started."""
    refresh = Authorization.refresh

    async def confirm_only(self: Authorization) -> None:
        first, held = not self._applied_changes, self.current
        await refresh(self)
        if not first:
            self.current = held

    patch(patches, Authorization, "refresh", confirm_only)


@_bug("revocation-answered-at-once")
def _does_not_wait(patches: ExitStack) -> None:
    """A change of ACLs is answered when it is committed, not when all brokers have applied it."""

    async def at_once(self: Authorization, revision: int) -> list[int]:
        return []

    patch(patches, Authorization, "wait_confirmed", at_once)


@_bug("served-after-the-lease")
def _never_fenced(patches: ExitStack) -> None:
    """A broker whose lease may be over still decides by the ACLs that it has."""
    patch(patches, Authorization, "is_fenced", lambda self: False)


@_bug("fast-path-keeps-its-rights")
def _fast_path_keeps(patches: ExitStack) -> None:
    """The fast path of produce requests does not look whether the ACLs have changed."""
    serve = ProduceFastPath.serve

    def trusting(
        self: ProduceFastPath, frame: memoryview, version: int, correlation_id: int
    ) -> Any:
        current = self._authorization.current
        for key, template in self._templates.items():
            self._templates[key] = template._replace(authorizer=current)
        return serve(self, frame, version, correlation_id)

    patch(patches, ProduceFastPath, "serve", trusting)


@_bug("waiting-fetch-keeps-its-rights")
def _checks_once(patches: ExitStack) -> None:
    """A fetch checks the rights of its sender when it arrives, not each time it reads."""
    read_rights = fetch_sender.read_rights

    def once(context: Any, follower: Any) -> MayRead | None:
        may_read = read_rights(context, follower)
        return None if may_read is None else _remembering(may_read)

    patch(patches, fetch, "read_rights", once)


def _remembering(may_read: MayRead) -> MayRead:
    known: dict[str, bool] = {}

    def remembered(topic: str) -> bool:
        if topic not in known:
            known[topic] = may_read(topic)
        return known[topic]

    return remembered


@_bug("fetch-session-keeps-its-rights")
def _checks_first_fetch(patches: ExitStack) -> None:
    """Only the first fetch of a session checks the rights of its sender."""
    begin: Callable[..., None] = FetchReads.__init__

    def lax(
        self: FetchReads,
        request: Any,
        services: Any,
        session: Any,
        wanted: Any,
        version: int,
        may_read: MayRead | None,
        meter: Any,
    ) -> None:
        checks = may_read if request.session_epoch <= 0 else None
        begin(self, request, services, session, wanted, version, checks, meter)

    patch(patches, FetchReads, "__init__", lax)


@_bug("old-acls-need-no-change")
def _trusts_the_image(patches: ExitStack) -> None:
    """A change of ACLs that changes nothing is acknowledged by a broker that does not know the
    current ACLs."""

    async def nothing(services: Services) -> None:
        pass

    patch(patches, acl_requests, "know_current_acls", nothing)


@_bug("deleted-password-accepted")
def _keeps_passwords(patches: ExitStack) -> None:
    """A broker remembers the credentials that it has used."""
    scram = UserCredentials.scram
    known: dict[tuple[int, str], ScramCredential] = {}

    def remembered(
        self: UserCredentials, mechanism: ScramMechanism, user: str
    ) -> ScramCredential | None:
        found = scram(self, mechanism, user)
        if found is not None:
            known[id(self), user] = found
        return known.get((id(self), user))

    patch(patches, UserCredentials, "scram", remembered)
