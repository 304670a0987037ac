"""Interprets the errors of etcd.

Three questions matter: is it worth asking another member, may the request have been carried out,
and what should the operator do. A gRPC status alone answers none of them: `UNAVAILABLE` is returned
before a request was processed ("no leader") and after it was proposed ("request timed out"). So
etcd's message is examined too, and for an unknown message the worse case is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.stores.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from penstock.stores.etcd_address import EtcdAddress

NO_LEADER: Final = "etcdserver: no leader"
LEASE_NOT_FOUND: Final = "etcdserver: requested lease not found"
LOGIN_DISABLED: Final = "etcdserver: authentication is not enabled"
_LOGIN_FAILED: Final = "etcdserver: authentication failed"
_TOKEN_INVALID: Final = (
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "auth: revision in header is old",
    # Authentication was enabled after this broker had connected.
    "etcdserver: user name is empty",
)
_TOO_MANY_REQUESTS: Final = "etcdserver: too many requests"
_NO_SPACE: Final = "etcdserver: mvcc: database space exceeded"
_TOO_MANY_OPERATIONS: Final = "etcdserver: too many operations in txn request"
_TOO_LARGE: Final = ("etcdserver: request is too large", "larger than max")

_MAKE_ROOM: Final = (
    "reads and leases still work, writes fail: compact its history, defragment it, then clear "
    "the alarm (etcdctl compact, etcdctl defrag, etcdctl alarm disarm); to prevent this, set "
    "--auto-compaction-retention, and --quota-backend-bytes as large as etcd recommends"
)
_REFUSED: Final = frozenset(
    {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED"}
)
_NOT_ALLOWED: Final = ("PERMISSION_DENIED", "UNAUTHENTICATED")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The interpretation of an error. `error` is to be raised if the request had no effect;
    `may_have_happened` means that this is unknown.

    `try_others`: the cause is this member or a temporary condition, not the request.
    `token_invalid`: a request with a new token may succeed. This one had no effect.
    """

    error: StoreError
    try_others: bool = False
    may_have_happened: bool = False
    token_invalid: bool = False


def access_advice(address: EtcdAddress) -> str:
    """Returns what to do if etcd denies access to the keys of the cluster."""
    prefix = f"{address.namespace}/"
    who = f"the user {address.user!r}" if address.user else "the user of this broker's certificate"
    advice = (
        f"grant {who} a role with read and write on the keys below {prefix} "
        f"(etcdctl role grant-permission ROLE --prefix=true readwrite {prefix})"
    )
    if address.user:
        return advice
    return f"{advice}, or give the store's address a user and a password_file"


def password_place(address: EtcdAddress) -> str:
    """Returns where the password of the user is."""
    if address.password_env:
        return f"the environment variable {address.password_env}"
    return f"the file {address.password_file}"


def judge(status: str, details: str, endpoint: str, address: EtcdAddress) -> Verdict:
    """Interprets an error of one member. `status` is the name of a gRPC status code."""
    said = f"etcd at {endpoint} reported: {details or status}"
    if details.startswith(NO_LEADER):
        # etcd checks this before it processes a request, because all our requests require a leader.
        return Verdict(StoreUnavailable(said), try_others=True)
    if details.startswith(_TOO_MANY_REQUESTS):
        return Verdict(StoreBusy(f"{said}; nothing was changed, try again"))
    if details.startswith(_NO_SPACE):
        # etcd carries out the write that exceeds the limit, and reports this error anyway.
        error = StoreFull(f"{said}; {_MAKE_ROOM}", may_have_happened=True)
        return Verdict(error, may_have_happened=True)
    if details.startswith(_TOO_MANY_OPERATIONS):
        return Verdict(StoreUnavailable(f"{said}; start it with a larger --max-txn-ops"))
    if any(text in details for text in _TOO_LARGE):
        return Verdict(StoreUnavailable(f"{said}; start it with a larger --max-request-bytes"))
    if status == "DATA_LOSS":
        return Verdict(StoreCorrupt(f"{said}; repair it or restore it from a snapshot"))
    if details.startswith(_LOGIN_FAILED):
        advice = f"check that {password_place(address)} has the password of user {address.user!r}"
        return Verdict(StoreRefused(f"{said}; {advice}"))
    if details.startswith(_TOKEN_INVALID):
        return Verdict(StoreRefused(f"{said}; {access_advice(address)}"), token_invalid=True)
    if status in _NOT_ALLOWED:
        return Verdict(StoreRefused(f"{said}; {access_advice(address)}"))
    if status in _REFUSED:
        return Verdict(StoreUnavailable(f"{said}; etcd must be 3.4 or newer"))
    return Verdict(StoreUnavailable(said), try_others=True, may_have_happened=True)
