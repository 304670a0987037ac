"""What a metadata store can answer instead of a result. The same tree for every store.

    StoreError
      StoreBusy           others held the store for too long; nothing was done, try again
      StoreUnavailable    it cannot be opened, written or reached; the message says what to do
        StoreUnreachable  it gives no answer at the moment; nothing was done, try again later
        StoreFull         it has no room for a write; reads and renewals go on, try again later
        OutcomeUnknown    it went away after it was told to commit: read to learn what is true
      StoreCorrupt        what lies there is not a store, or is damaged
      StoreClosed         this handle was closed
      LeaseNotFound       a key was to be put under a lease that has expired; nothing was done
      RevisionNotKept     a watch asked for changes that are no longer kept: read afresh

Unless the message says that the outcome is unknown, a call that raised changed nothing.
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of all of them; see the module."""

    retriable = False


class StoreBusy(StoreError):
    retriable = True


class StoreUnavailable(StoreError):
    pass


class StoreUnreachable(StoreUnavailable):
    retriable = True


class StoreFull(StoreUnavailable):
    """The store refused a write because it is full. The message says how to make room.

    `may_have_happened`: the store may have made the change that filled it. It is not under way any
    more, so a read tells. etcd says this of the write that crosses its quota.
    """

    retriable = True

    def __init__(self, message: str, *, may_have_happened: bool = False) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class OutcomeUnknown(StoreUnavailable):
    """Never to be answered by committing again unread: the first commit may have been made."""


class StoreCorrupt(StoreError):
    pass


class StoreClosed(StoreError):
    pass


class LeaseNotFound(StoreError):
    def __init__(self, lease: int) -> None:
        super().__init__(f"lease {lease} has expired or was revoked: grant another one")
        self.lease = lease


class RevisionNotKept(StoreError):
    def __init__(self, from_revision: int, first_kept: int) -> None:
        super().__init__(
            f"changes from revision {from_revision} on were asked for and are kept from "
            f"{first_kept} on: read everything afresh and watch from there"
        )
        self.from_revision = from_revision
        self.first_kept = first_kept
