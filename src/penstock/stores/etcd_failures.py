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
    StoreUnavailable,
)

NO_LEADER: Final = "etcdserver: no leader"
LEASE_NOT_FOUND: Final = "etcdserver: requested lease not found"
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
    """

    error: StoreError
    try_others: bool = False
    may_have_happened: bool = False


def judge(status: str, details: str, endpoint: str) -> Verdict:
    """Interprets an error. `status` is the name of a gRPC status code."""
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
    if status in _NOT_ALLOWED or "user name is empty" in details:
        advice = "grant the user of this broker's certificate read and write on the namespace"
        return Verdict(StoreUnavailable(f"{said}; {advice}"))
    if status in _REFUSED:
        return Verdict(StoreUnavailable(f"{said}; etcd must be 3.4 or newer"))
    return Verdict(StoreUnavailable(said), try_others=True, may_have_happened=True)
