"""The numbers that share groups use on the wire and on disk."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class RecordState(IntEnum):
    """The state of a record in a share partition, as Kafka numbers it."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Given up; the dead letter is not written yet."""
    ARCHIVED = 4


DONE: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""States that a record never leaves."""


class AckType(IntEnum):
    """What a member says about a record."""

    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquireMode(IntEnum):
    """How strictly a share fetch limits the number of records (KIP-1206)."""

    BATCH_OPTIMIZED = 0
    """A batch of the log is acquired as a whole, even if that is more than the limit."""
    RECORD_LIMIT = 1


class GiveUpReason(IntEnum):
    """Why a record was given up. Stored with a record in the state ARCHIVING."""

    NONE = 0
    REJECTED = 1
    DELIVERY_LIMIT = 2
    EXPIRED = 3
    LENGTH_LIMIT = 4
