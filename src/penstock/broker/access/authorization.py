"""Decides for this broker who may do what, and keeps the ACLs it decides by up to date.

`Authorization.current` is the `Authorizer` in force. It is never changed, only replaced as a whole.
It is None if `authorizer.class.name` is empty: then every client may do everything, and nothing
below applies.

**Acknowledged revocations.** When CreateAcls or DeleteAcls is answered, no broker decides by the
old ACLs any more. A change goes through these steps:

1. The commit writes the ACLs and `acl-version`. Its revision R names the change.
2. Each broker sees it by its watch, builds a new `Authorizer` and swaps it in (`run`). Until then
   it decides by the old ACLs, which is correct, because the change is not acknowledged yet.
3. After the swap the broker notes R under its lease (`acl-seen`).
4. The broker that answers the request waits until every registered broker has noted R or later
   (`wait_confirmed`), with a deadline. After the deadline it answers REQUEST_TIMED_OUT and names
   the brokers: the change is made, but not everywhere in force.

A registered broker that does not note R delays the answer until its lease ends. From then on the
answer no longer waits for it, so it must not decide by its old ACLs. It does not: a broker always
knows before the store that its lease may be over (`Membership.may_be_over`). It is then *fenced*:
requests that need a right get a retriable error. The clock is read for each of these requests. A
timer would not do: after a pause of the process, requests that have arrived meanwhile would be
served before the timer fires. A broker is also fenced before it is registered, and after that until
it decides by ACLs that are as new as its registration. So a broker that registered after R needs no
note, and one that starts again cannot serve by an old image.

Super users are never fenced: no ACL can take a right from them. So the brokers of a cluster, which
should be super users, continue to replicate while the store is not reachable. Clients with rights
by ACLs are refused then, once the lease may be over. This is the price of acknowledged revocations.
A broker without an authorizer has nothing to revoke, so it is never fenced, and its availability is
as before.

**Requests that wait.** A right is checked when the request does its work, not only when it arrives:
a fetch checks each time it reads, a produce request each time it appends. So what was appended
after a revocation was acknowledged does not reach a client that lost its right.

**ACLs that cannot be read** may contain a DENY. Then only super users have access, and the log says
which key of the store is to be repaired.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.commits import Commits
from penstock.broker.control.membership import Membership
from penstock.broker.identity import Identity
from penstock.metadata.acls import AclSnapshot, note_acls_seen, snapshot_of, unconfirmed
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.image import Changed
from penstock.ports import Env
from penstock.security.acls import AclOperation, ResourceType
from penstock.security.authorizer import Authorizer, parse_super_users
from penstock.stores.errors import StoreError
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode, KafkaError

CONFIRM_TIMEOUT_S: Final = 25.0
"""How long a change of ACLs waits for all brokers. It is longer than the usual session timeout, so
that a dead broker is no longer waited for, and shorter than the usual timeout of a request."""
_AT_ONCE_MAX: Final = 500
"""With more ACLs than this, an authorizer is built on a thread."""
_RETRY_S: Final = 0.2
_log = logging.getLogger(__name__)

_LEADER_APIS: Final = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DELETE_RECORDS,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_QUEUE,
)
_TOPIC_APIS: Final = (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS)
_COORDINATOR_APIS: Final = (
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_DESCRIBE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.END_TRANSACTIONS,
    ApiKey.SHARE_STATE,
)
_FENCED_CODES: Final[Mapping[int, ErrorCode]] = {
    **dict.fromkeys(_LEADER_APIS, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    **dict.fromkeys(_TOPIC_APIS, ErrorCode.LEADER_NOT_AVAILABLE),
    **dict.fromkeys(_COORDINATOR_APIS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
}
"""The error of a fenced broker, by API. Clients retry each of these with new metadata."""


def fenced_code(api_key: int) -> ErrorCode:
    """Returns the retriable error with which a fenced broker answers a request of this API."""
    return _FENCED_CODES.get(api_key, ErrorCode.NOT_CONTROLLER)


class Authorization:
    """The authorizer of one broker. The module docstring gives the rules."""

    def __init__(
        self,
        env: Env,
        cluster: ClusterView,
        commits: Commits,
        membership: Membership,
        broker_id: int,
        configs: BrokerConfigs,
    ) -> None:
        self._env = env
        self._monotonic = env.clock.monotonic
        self._cluster = cluster
        self._commits = commits
        self._membership = membership
        self._broker_id = broker_id
        self._super_users = parse_super_users(configs.text_value("super.users"))
        self._allow_everyone = configs.bool_value("allow.everyone.if.no.acl.found")
        self.is_enabled = configs.text_value("authorizer.class.name") != ""
        """Whether there is an authorizer."""
        self.current: Authorizer | None = None
        """The authorizer in force; None if there is none."""
        if self.is_enabled:
            self.current = Authorizer((), self._super_users)
        self._seen_changes = 1
        """How often the image's ACLs have changed, and ..."""
        self._applied_changes = 0
        """... how many of these changes `current` contains."""
        self._applied_revision = 0
        self._current_epoch = -2
        """The broker epoch with which `current` is as new as the registration."""
        self._problem: str | None = None
        self._changed = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        cluster.listen(self._on_change)

    # Decisions

    def allows(
        self,
        identity: Identity,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        api_key: int,
    ) -> bool:
        """Returns whether a client may do this. Raises `KafkaError` if this broker is fenced."""
        authorizer = self.current
        if authorizer is None:
            return True
        principal = identity.principal
        if self.is_fenced() and not authorizer.is_super_user(principal):
            raise self._fenced(api_key)
        return authorizer.authorize(principal, identity.host, operation, resource_type, name)

    def allows_any(
        self, identity: Identity, operation: AclOperation, resource_type: ResourceType, api_key: int
    ) -> bool:
        """Returns whether a client may do this with at least one resource of the type."""
        authorizer = self.current
        if authorizer is None:
            return True
        principal = identity.principal
        if self.is_fenced() and not authorizer.is_super_user(principal):
            raise self._fenced(api_key)
        return authorizer.authorize_any(principal, identity.host, operation, resource_type)

    def is_fenced(self) -> bool:
        """Returns whether the ACLs of this broker may be older than an acknowledged change."""
        membership = self._membership
        if self._monotonic() >= membership.ends_at:
            return True
        # This runs for each produce request, so the rest is done once per registration.
        return membership.broker_epoch != self._current_epoch and not self._is_up_to_date()

    def _is_up_to_date(self) -> bool:
        """Returns whether the ACLs in force are as new as this broker's registration."""
        epoch = self._membership.broker_epoch
        if (
            epoch < 0
            or self._applied_changes != self._seen_changes
            or self._cluster.image.revision < epoch
        ):
            return False
        self._current_epoch = epoch
        return True

    def is_fenced_for(self, identity: Identity) -> bool:
        """Returns whether this broker must not decide about this client now."""
        authorizer = self.current
        return (
            authorizer is not None
            and self.is_fenced()
            and not authorizer.is_super_user(identity.principal)
        )

    def _fenced(self, api_key: int) -> KafkaError:
        return KafkaError(
            fenced_code(api_key),
            f"Broker {self._broker_id} is not sure that it has the current ACLs, because it cannot "
            "reach the metadata store or has just started: try again.",
        )

    # ACLs

    async def refresh(self) -> None:
        """Builds an authorizer of the image's ACLs and puts it in force."""
        changes, snapshot = self._seen_changes, snapshot_of(self._cluster.image)
        if self.is_enabled:
            build = partial(self._build, snapshot)
            if snapshot.count() > _AT_ONCE_MAX:
                authorizer = await self._env.executor.run(build)
            else:
                authorizer = build()
            self._tell_problem(snapshot.problem)
            self.current = authorizer
        self._applied_changes = changes
        self._applied_revision = snapshot.revision

    def _build(self, snapshot: AclSnapshot) -> Authorizer:
        if snapshot.problem is not None:
            return Authorizer((), self._super_users)
        return Authorizer(snapshot.bindings(), self._super_users, self._allow_everyone)

    def _tell_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            _log.error("some ACLs cannot be read, so only super users have access: %s", problem)
        elif problem is None and self._problem is not None:
            _log.warning("all ACLs can be read again")
        self._problem = problem

    async def run(self) -> None:
        """Follows the changes of ACLs until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.refresh()
            await self._note()

    async def _note(self) -> None:
        """Notes in the store which change of ACLs this broker has applied."""
        level = logging.WARNING
        while not self._changed.is_set():
            epoch, revision = self._membership.broker_epoch, self._applied_revision
            if epoch < 0 or revision <= epoch:
                return
            note = partial(
                note_acls_seen, broker_id=self._broker_id, broker_epoch=epoch, revision=revision
            )
            try:
                await self._commits.commit(note)
            except (StoreError, KafkaError, TimeoutError) as error:
                _log.log(level, "cannot confirm a change of ACLs, retrying: %s", error)
                level = logging.DEBUG
                await self._env.clock.sleep(_RETRY_S)
            else:
                return

    async def wait_confirmed(self, revision: int) -> list[int]:
        """Waits until all brokers decide by the ACLs of this revision. Returns the brokers that
        have not confirmed it in time."""
        if unconfirmed(self._cluster.image, revision):
            confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((revision, confirmed))
            try:
                async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                    await confirmed
            except TimeoutError:
                pass
            finally:
                self._waiting.remove((revision, confirmed))
        return unconfirmed(self._cluster.image, revision)

    def _on_change(self, changed: Changed) -> None:
        if changed.acls:
            self._seen_changes += 1
            self._changed.set()
        if self._waiting and (changed.acls_seen or changed.brokers):
            for revision, confirmed in self._waiting:
                if not confirmed.done() and not unconfirmed(self._cluster.image, revision):
                    confirmed.set_result(None)
