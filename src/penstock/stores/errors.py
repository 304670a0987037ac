"""The errors of a metadata store. Every store uses the same tree.

    StoreError
      StoreBusy           other processes held the store for too long; nothing was done, retry
      StoreUnavailable    it cannot be opened, written or reached; the message says what to do
        StoreUnreachable  it does not answer at the moment; nothing was done, retry later
        StoreRefused      it does not accept this broker's login or rights; nothing was done
        StoreFull         it has no space for a write; reads and renewals continue, retry later
        OutcomeUnknown    it went away during a commit: read to find out what happened
      StoreCorrupt        the data is not a store, or is damaged
      StoreClosed         this handle was closed
      LeaseNotFound       the lease of a key to be written has expired; nothing was done
      RevisionNotKept     a watch requested changes that are no longer kept: read everything again

Unless the message says that the outcome is unknown, or `may_have_happened` is set, a call that
raised changed nothing.
"""

from __future__ import annotations


class StoreError(Exception):
    """The base of all store errors; see the module docstring."""

    retriable = False


class StoreBusy(StoreError):
    retriable = True


class StoreUnavailable(StoreError):
    pass


class StoreUnreachable(StoreUnavailable):
    retriable = True


class StoreRefused(StoreUnavailable):
    """The store did not accept the login of this broker, or its user lacks a right.

    Retriable: a running broker keeps serving and tries again, because an operator who changes a
    password or a role changes one side first. A broker that starts ends with this error.
    """

    retriable = True


class StoreFull(StoreUnavailable):
    """The store refused a write because it is full. The message says how to free space.

    `may_have_happened`: the store may have carried out the write that filled it. The write is no
    longer in progress, so a read shows the outcome. etcd reports this for the write that exceeds
    its quota.
    """

    retriable = True

    def __init__(self, message: str, *, may_have_happened: bool = False) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class OutcomeUnknown(StoreUnavailable):
    """Do not commit again without reading first: the first commit may have succeeded."""


class StoreCorrupt(StoreError):
    pass


class StoreClosed(StoreError):
    pass


class LeaseNotFound(StoreError):
    def __init__(self, lease: int) -> None:
        super().__init__(f"lease {lease} has expired or was revoked: grant a new one")
        self.lease = lease


class RevisionNotKept(StoreError):
    def __init__(self, from_revision: int, first_kept: int) -> None:
        super().__init__(
            f"the changes from revision {from_revision} on are no longer kept, only those from "
            f"revision {first_kept} on: read everything again and watch from there"
        )
        self.from_revision = from_revision
        self.first_kept = first_kept
