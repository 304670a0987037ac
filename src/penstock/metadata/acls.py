"""Decisions about ACLs: what CreateAcls and DeleteAcls change, and what brokers note about it.

A change is worked out from a snapshot of the stored ACLs (`AclSnapshot`), which may be done on a
thread: with many ACLs it takes long. The result is an `AclPlan`. Its `decide` makes the decision on
the current image, and raises `AclsOutdated` if the ACLs that it changes are no longer those of the
snapshot: then the caller works it out again. DeleteAcls is one commit, so it takes effect as a
whole or not at all. CreateAcls may take several.

Every change also writes `ACL_VERSION_KEY`, even one that finds everything as it should be. So
changes have an order, and the revision of that key names the last one. Brokers note under their
leases up to which change they decide (`note_acls_seen`). A change is in force everywhere when
`unconfirmed` is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Generic, TypeVar

from penstock.metadata.acl_values import (
    AclSeen,
    StoredAcls,
    encode_acl_seen,
    encode_acl_version,
    encode_pattern_acls,
)
from penstock.metadata.decisions import Change, Decision, Guard
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import (
    ACL_VERSION_KEY,
    ROLES_KEY,
    acl_key,
    acl_seen_key,
    broker_key,
)
from penstock.security.acl_filters import (
    CHANGES_MAX,
    AclFilter,
    CreateResult,
    DeleteResult,
    create_acls,
    delete_acls,
)
from penstock.security.acls import AclBinding, AclRefused, check_binding
from penstock.security.roles import (
    RoleBook,
    StoredRolesInvalid,
    decode_roles,
    encode_roles,
    record_created_acls,
)
from penstock.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")

COMMIT_PATTERNS_MAX: Final = 98
"""How many resource patterns one commit changes. etcd accepts 128 operations in a transaction; the
version and the roles may be among them."""
COMMIT_BYTES_MAX: Final = 1 << 20
"""How large the ACLs of one resource pattern, and of one commit, may be. etcd accepts requests of
1.5 MiB."""


class AclsOutdated(KafkaError):
    """The stored ACLs are no longer those that the change was worked out from."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.REQUEST_TIMED_OUT,
            "Other changes of the ACLs kept conflicting with this one: try again.",
        )


@dataclass(frozen=True, slots=True)
class AclSnapshot:
    """The stored ACLs and roles at one moment."""

    by_key: Mapping[str, StoredAcls]
    stored_roles: bytes | None
    revision: int
    """The revision of the last change of ACLs that it contains."""

    @property
    def problem(self) -> str | None:
        """Why some of the stored ACLs cannot be read; None if all can."""
        return next((each.problem for each in self.by_key.values() if each.problem), None)

    def bindings(self) -> frozenset[AclBinding]:
        return frozenset(chain.from_iterable(each.bindings for each in self.by_key.values()))

    def count(self) -> int:
        return sum(len(each.bindings) for each in self.by_key.values())

    def of_key(self, key: str) -> frozenset[AclBinding]:
        held = self.by_key.get(key)
        return frozenset() if held is None else held.bindings


def snapshot_of(image: ClusterImage) -> AclSnapshot:
    return AclSnapshot(dict(image.acls), image.stored_roles, image.acl_revision)


def require_readable(snapshot: AclSnapshot) -> None:
    """Raises `KafkaError` if some stored ACLs cannot be read."""
    if snapshot.problem is not None:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"Some stored ACLs cannot be read, so only super users have access: "
            f"{snapshot.problem}.",
        )


def role_book(stored: bytes | None) -> RoleBook:
    """Returns the roles and assignments, or raises `KafkaError` if they cannot be read."""
    if stored is None:
        return RoleBook()
    try:
        return decode_roles(stored)
    except StoredRolesInvalid as error:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"{ROLES_KEY} in the metadata store: {error}."
        ) from error


@dataclass(frozen=True, slots=True)
class AclPlan(Generic[R]):
    """A change of ACLs, worked out from a snapshot."""

    snapshot: AclSnapshot
    values: Mapping[str, bytes | None]
    """The new value of each key that changes; None deletes it."""
    result: R
    roles: bytes | None = None
    """The new value of the roles, if it changes."""

    def decide(self, image: ClusterImage) -> Decision[R]:
        """Returns the decision on this image, or raises `AclsOutdated`."""
        held = self.snapshot.by_key
        if image.stored_roles != self.snapshot.stored_roles or any(
            image.acls.get(key) is not held.get(key) for key in self.values
        ):
            raise AclsOutdated
        version = encode_acl_version(image.acl_revision)
        values = {**self.values, ACL_VERSION_KEY: version}
        guards: tuple[Guard, ...] = ()
        if self.roles is None:
            guards = (Guard(ROLES_KEY, image.revision_of(ROLES_KEY)),)
        else:
            values[ROLES_KEY] = self.roles
        changes = tuple(Change(key, value, image.revision_of(key)) for key, value in values.items())
        return Decision(changes, self.result, guards)


def _value(bindings: frozenset[AclBinding]) -> bytes | None:
    return encode_pattern_acls(bindings) if bindings else None


# Creation


def refused_entries(
    entries: Mapping[int, AclBinding], snapshot: AclSnapshot
) -> dict[int, CreateResult]:
    """Returns the results of entries that are not valid, or of all if there are too many."""
    results: dict[int, CreateResult] = {}
    added: set[AclBinding] = set()
    for number, acl in entries.items():
        try:
            check_binding(acl)
        except AclRefused as refused:
            results[number] = CreateResult(refused.code, str(refused))
            continue
        if acl not in snapshot.of_key(acl_key(acl.pattern)):
            added.add(acl)
    if len(added) > CHANGES_MAX:
        refusal = CreateResult(
            ErrorCode.POLICY_VIOLATION,
            f"the request creates more than {CHANGES_MAX} ACLs: use several requests",
        )
        return dict.fromkeys(entries, refusal)
    return results


def plan_creation(
    snapshot: AclSnapshot, entries: Mapping[int, AclBinding]
) -> AclPlan[dict[int, CreateResult]]:
    """Plans the creation of as many entries as fit into one commit, at least one.

    The result has the entries that are dealt with: the caller plans the others next.
    """
    require_readable(snapshot)
    keys = {number: acl_key(acl.pattern) for number, acl in entries.items()}
    touched = list(dict.fromkeys(keys.values()))[:COMMIT_PATTERNS_MAX]
    numbers = [number for number, key in keys.items() if key in set(touched)]
    existing = frozenset(chain.from_iterable(snapshot.of_key(key) for key in touched))
    outcome = create_acls(existing, [entries[number] for number in numbers])
    results = dict(zip(numbers, outcome.results, strict=True))
    values, refused, left_out = _fitting(snapshot, touched, outcome.added)
    for number in numbers:
        if keys[number] in refused and results[number].code == ErrorCode.NONE:
            results[number] = refused[keys[number]]
        elif keys[number] in left_out:
            del results[number]
    created = [entries[each] for each, result in results.items() if not result.code]
    return AclPlan(snapshot, values, results, _roles_after(snapshot, created))


def _fitting(
    snapshot: AclSnapshot, touched: Sequence[str], added: frozenset[AclBinding]
) -> tuple[dict[str, bytes | None], dict[str, CreateResult], set[str]]:
    """Returns the values for a commit, the keys that grow too large, and those for another
    commit."""
    added_to: dict[str, set[AclBinding]] = {}
    for acl in added:
        added_to.setdefault(acl_key(acl.pattern), set()).add(acl)
    values: dict[str, bytes | None] = {}
    refused: dict[str, CreateResult] = {}
    left_out: set[str] = set()
    size = 0
    for key in touched:
        if key not in added_to:
            continue
        value = encode_pattern_acls(snapshot.of_key(key) | added_to[key])
        if len(key) + len(value) > COMMIT_BYTES_MAX:
            refused[key] = CreateResult(
                ErrorCode.POLICY_VIOLATION,
                f"the ACLs of one resource pattern would take more than {COMMIT_BYTES_MAX} bytes: "
                "use User:*, or ACLs on other names or prefixes",
            )
        elif size + len(key) + len(value) > COMMIT_BYTES_MAX:
            left_out.add(key)
        else:
            values[key] = value
            size += len(key) + len(value)
    return values, refused, left_out


def _roles_after(snapshot: AclSnapshot, created: Sequence[AclBinding]) -> bytes | None:
    """Returns the roles after these ACLs were created by hand, if that changes them."""
    if snapshot.stored_roles is None or not created:
        return None
    book = role_book(snapshot.stored_roles)
    after = record_created_acls(book, created)
    return None if after is book else encode_roles(after).encode()


# Deletion


def plan_deletion(
    snapshot: AclSnapshot, filters: Sequence[AclFilter]
) -> AclPlan[tuple[DeleteResult, ...]]:
    """Plans the deletion of what the filters select, in one commit. If that is too much for one
    commit, nothing is deleted."""
    require_readable(snapshot)
    outcome = delete_acls(snapshot.bindings(), filters)
    removed_from: dict[str, set[AclBinding]] = {}
    for acl in sorted(outcome.removed):
        removed_from.setdefault(acl_key(acl.pattern), set()).add(acl)
    values = {key: _value(snapshot.of_key(key) - acls) for key, acls in removed_from.items()}
    size = sum(len(key) + len(value or b"") for key, value in values.items())
    if len(values) > COMMIT_PATTERNS_MAX or size > COMMIT_BYTES_MAX:
        refusal = DeleteResult(
            ErrorCode.INVALID_REQUEST,
            f"the filters select ACLs of {len(values)} resource patterns, but one request can "
            f"change at most {COMMIT_PATTERNS_MAX} patterns with {COMMIT_BYTES_MAX} bytes: nothing "
            "was deleted; use narrower filters and several requests",
        )
        return AclPlan(snapshot, {}, (refusal,) * len(filters))
    return AclPlan(snapshot, values, outcome.results)


# Confirmation


def note_acls_seen(
    image: ClusterImage, broker_id: int, broker_epoch: int, revision: int
) -> Decision[None]:
    """Notes that a broker decides by the ACLs of this revision. Does nothing if it is not
    registered with this epoch, or has noted that already."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        return Decision((), None)
    held = image.acls_seen.get(broker_id)
    if held is not None and held.broker_epoch == broker_epoch and held.revision >= revision:
        return Decision((), None)
    key = acl_seen_key(broker_id)
    value = encode_acl_seen(AclSeen(broker_epoch, revision))
    change = Change(key, value, image.revision_of(key), leased=True)
    return Decision((change,), None, (Guard(broker_key(broker_id), broker_epoch),))


def unconfirmed(image: ClusterImage, revision: int) -> list[int]:
    """Returns the brokers that may still decide by older ACLs than those of this revision.

    A broker that registered later than that had to apply them before it served clients.
    """
    return sorted(
        broker_id
        for broker_id, broker in image.brokers.items()
        if broker.broker_epoch <= revision and not _has_seen(image, broker_id, revision)
    )


def _has_seen(image: ClusterImage, broker_id: int, revision: int) -> bool:
    seen = image.acls_seen.get(broker_id)
    epoch = image.brokers[broker_id].broker_epoch
    return seen is not None and seen.broker_epoch == epoch and seen.revision >= revision
