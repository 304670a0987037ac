"""The errors of tiered storage.

TierError
  StoreError          an object store failed
    AlreadyExists     a create found the name taken, or the server says so
    NotFound          there is no object of this name
    Throttled         nothing was changed; try again later
    OutcomeUnknown    there was no answer: the change may have happened, or may still happen
    Refused           the store does not allow it; trying again does not help
  CorruptObject       bytes fail their checksum, or have an unknown format
  Fenced              another leader has claimed the partition
  Overtaken           the chain went on while a commit was stalled: its outcome is unknown
  EditRefused         the change does not fit the manifest: a bug of the caller, or an old state
"""

from __future__ import annotations


class TierError(Exception):
    """The base of all errors that tiered storage raises deliberately."""


class StoreError(TierError):
    """An object store failed."""


class AlreadyExists(StoreError):
    """A create found the name taken.

    Some servers also say so when a competing create failed, and clients that repeat a request when
    the first one succeeded. Read the name to find out.
    """


class NotFound(StoreError):
    """There is no object of this name."""


class Throttled(StoreError):
    """The store is busy, full or not reachable. Nothing was changed."""


class OutcomeUnknown(StoreError):
    """There was no answer to a write. It may have happened, and may still happen later."""


class Refused(StoreError):
    """The store does not allow it: no permission, no bucket, or the store is not suitable."""


class CorruptObject(TierError):
    """The bytes of an object are damaged, or a newer version wrote them. The message says why."""


class Fenced(TierError):
    """Another leader has claimed the partition, or its topic is gone. Stop uploading."""


class Overtaken(TierError):
    """The boundary passed the manifest that a stalled writer created. The outcome is unknown.

    Open the chain again and compare.
    """


class EditRefused(TierError):
    """A change does not fit the manifest: its offsets leave a gap, or cut an entry."""
