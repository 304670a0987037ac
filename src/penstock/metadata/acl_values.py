"""The stored form of ACLs: one value for each resource pattern, and what brokers note about them.

A value that cannot be read must not stop the broker, and must not be ignored either: an ACL that is
missing may be a DENY. So it is read as `StoredAcls` with a problem, and the broker refuses every
request that ACLs decide (`broker.access.authorization`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.metadata.keys import pattern_of
from penstock.metadata.stored_fields import (
    MetadataInvalid,
    count_field,
    decode_fields,
    encode_fields,
)
from penstock.security.acls import (
    AclBinding,
    StoredAclInvalid,
    decode_acls,
    encode_acls,
)


@dataclass(frozen=True, slots=True, eq=False)
class StoredAcls:
    """The ACLs of one resource pattern. Each time the value changes, it is a new object."""

    bindings: frozenset[AclBinding]
    problem: str | None = None
    """Why the stored value cannot be read; None if it can."""


def read_acls(key: str, value: bytes) -> StoredAcls:
    """Reads the value of an ACL key."""
    try:
        pattern = pattern_of(key)
        bindings = decode_acls(value)
    except StoredAclInvalid as error:
        return StoredAcls(frozenset(), f"{key} in the metadata store: {error}")
    except MetadataInvalid as error:
        return StoredAcls(frozenset(), str(error))
    if any(binding.pattern != pattern for binding in bindings):
        return StoredAcls(
            frozenset(), f"{key} in the metadata store: it has ACLs of other resources"
        )
    return StoredAcls(bindings)


def encode_pattern_acls(bindings: Iterable[AclBinding]) -> bytes:
    """Returns the value for the ACLs of one resource pattern."""
    return encode_acls(bindings).encode()


@dataclass(frozen=True, slots=True)
class AclSeen:
    """A broker's note: up to which change of ACLs it decides, in its current registration."""

    broker_epoch: int
    revision: int


_SEEN_FIELDS = frozenset({"broker_epoch", "revision"})


def encode_acl_seen(seen: AclSeen) -> bytes:
    return encode_fields({"broker_epoch": seen.broker_epoch, "revision": seen.revision})


def decode_acl_seen(key: str, value: bytes) -> AclSeen:
    fields = decode_fields(key, value, _SEEN_FIELDS)
    return AclSeen(count_field(key, fields, "broker_epoch"), count_field(key, fields, "revision"))


def encode_acl_version(previous: int) -> bytes:
    """Returns the value that is written with a change of ACLs. `previous` is the revision of the
    change before it."""
    return encode_fields({"previous": previous})
