"""Skips the batches of aborted transactions, for consumers that read committed records. Pure.

The response to a fetch of committed records lists the transactions that were aborted within its
range, by producer and first offset. From that offset to the abort marker the producer's
transactional batches are skipped. After the marker the producer may have begun another transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.records.batch import BatchHeader
from penstock.records.record import ControlType, read_records

_KEY_TYPE: Final = slice(2, 4)
"""The bytes of a control record's key that hold its type, after the version."""
_ABORT: Final = ControlType.ABORT.to_bytes(2, "big")


class AbortedTransaction(NamedTuple):
    """The producer's batches from `first_offset` to its abort marker are skipped."""

    producer_id: int
    first_offset: int


class AbortedProducers:
    """Follows a partition's transactions, batch by batch in order, and skips aborted ones."""

    __slots__ = ("_aborting", "_to_come")

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda item: item.first_offset, reverse=True)
        self._aborting: set[int] = set()

    def passes(self, batch: memoryview, header: BatchHeader, bytes_max: int) -> bool:
        """Returns whether the reader gets this batch: it is neither a marker nor aborted."""
        while self._to_come and self._to_come[-1].first_offset <= header.last_offset:
            self._aborting.add(self._to_come.pop().producer_id)
        if header.is_control:
            if header.producer_id in self._aborting and _is_abort(batch, header, bytes_max):
                self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)


def _is_abort(batch: memoryview, header: BatchHeader, bytes_max: int) -> bool:
    """Returns whether this control batch is an abort marker. There may be other kinds."""
    return any(
        record.key is not None and record.key[_KEY_TYPE] == _ABORT
        for record in read_records(batch, header, max_bytes=bytes_max)
    )
