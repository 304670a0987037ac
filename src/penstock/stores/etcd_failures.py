"""What an error of etcd means for the caller.

Three questions decide everything: is it worth asking another member, may the request have been
carried out, and what should whoever runs this do about it. A gRPC status alone answers none of
them: `UNAVAILABLE` is said before a request was looked at ("no leader") and after it was proposed
("request timed out"). So etcd's own words count, and where they are not known the worse is assumed.
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
    "reads and leases go on, writes do not: compact its history, defragment it, then clear the "
    "alarm (etcdctl compact, etcdctl defrag, etcdctl alarm disarm); to prevent it set "
    "--auto-compaction-retention, and --quota-backend-bytes as large as etcd recommends"
)
_REFUSED: Final = frozenset(
    {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED"}
)
_NOT_ALLOWED: Final = ("PERMISSION_DENIED", "UNAUTHENTICATED")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`error` is for a request that had no effect; `may_have_happened` says that this is not known.

    `try_others`: the fault lies with this member or this moment, not with the request.
    """

    error: StoreError
    try_others: bool = False
    may_have_happened: bool = False


def judge(status: str, details: str, endpoint: str) -> Verdict:
    """`status` is the name of a gRPC status code."""
    said = f"etcd at {endpoint} said: {details or status}"
    if details.startswith(NO_LEADER):
        # Checked before a request is looked at, since all of ours demand a leader.
        return Verdict(StoreUnavailable(said), try_others=True)
    if details.startswith(_TOO_MANY_REQUESTS):
        return Verdict(StoreBusy(f"{said}; nothing was done, try again"))
    if details.startswith(_NO_SPACE):
        # etcd carries out the very write that crosses the limit and says this nevertheless.
        error = StoreFull(f"{said}; {_MAKE_ROOM}", may_have_happened=True)
        return Verdict(error, may_have_happened=True)
    if details.startswith(_TOO_MANY_OPERATIONS):
        return Verdict(StoreUnavailable(f"{said}; start it with a larger --max-txn-ops"))
    if any(text in details for text in _TOO_LARGE):
        return Verdict(StoreUnavailable(f"{said}; start it with a larger --max-request-bytes"))
    if status == "DATA_LOSS":
        return Verdict(StoreCorrupt(f"{said}; repair it or restore it from a snapshot"))
    if status in _NOT_ALLOWED or "user name is empty" in details:
        advice = "grant our certificate's user read and write on the namespace"
        return Verdict(StoreUnavailable(f"{said}; {advice}"))
    if status in _REFUSED:
        return Verdict(StoreUnavailable(f"{said}; etcd must be 3.4 or newer"))
    return Verdict(StoreUnavailable(said), try_others=True, may_have_happened=True)
