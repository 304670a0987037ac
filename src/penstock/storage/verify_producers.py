"""Verifies a log's producer snapshots and transaction indexes.

Both are derived from the batches. The next start replaces a snapshot that cannot be read, and a
transaction index that does not match the CRC in the checkpoint. A transaction index that matches is
trusted, so it is compared with the markers. If it misses a transaction, aborted records are read as
committed. If it lists a transaction without a marker, it hides everything that the producer wrote
later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from penstock.partition.transactions import AbortedEntry
from penstock.ports import Disk
from penstock.records.batch import BatchHeader, Buffer, CorruptBatch
from penstock.records.record import ControlType, read_control, read_records
from penstock.storage.checkpoints import read_file
from penstock.storage.errors import CorruptFile
from penstock.storage.findings import Findings
from penstock.storage.inspect import Content, FileEntry, read_snapshot, read_transactions

_DERIVED: Final = "the next start rebuilds it"
_REMOVE: Final = "stop the broker, remove the file and start the broker: it rebuilds the file"


class TransactionsVerifier:
    """Follows the transactions of one log through its segments, in order."""

    def __init__(self, disk: Disk, findings: Findings, noted: dict[int, int]) -> None:
        self._disk = disk
        self._findings = findings
        self._noted = noted
        self._open: dict[int, int] = {}
        self._aborted: set[tuple[int, int]] = set()
        """Producer id and marker offset of aborted transactions that have batches in the log."""
        self._markers: set[tuple[int, int]] = set()
        self._is_unsure = False

    def on_batch(self, header: BatchHeader, batch: Buffer) -> None:
        """Processes a transactional batch. Batches must come in the order of the log."""
        producer_id = header.producer_id
        if not header.is_control:
            self._open.setdefault(producer_id, header.base_offset)
        elif header.record_count:
            began = self._open.pop(producer_id, None)
            try:
                kind = read_control(read_records(batch, header)[0]).type
            except CorruptBatch:
                self._is_unsure = True
                return
            if kind == ControlType.ABORT:
                self._markers.add((producer_id, header.base_offset))
                if began is not None:
                    self._aborted.add((producer_id, header.base_offset))

    def end_segment(self, base_offset: int, path: str, *, is_bad: bool, is_believed: bool) -> None:
        """Checks the transaction index of a segment, after all its batches were processed. `path`
        is where the index file would be."""
        self._is_unsure |= is_bad
        aborted, markers, self._aborted, self._markers = self._aborted, self._markers, set(), set()
        try:
            entries = read_transactions(self._disk, path)
        except CorruptFile as error:
            self._findings.warning("bad-transactions", path, f"{error}; {_DERIVED}")
            return
        if not is_believed:
            return
        found = None if entries is None else crc32c(read_file(self._disk, path) or b"")
        if found != self._noted.get(base_offset):
            self._findings.warning(
                "bad-transactions", path, f"it differs from its checksum; {_DERIVED}"
            )
        elif not self._is_unsure:
            self._compare(path, entries or (), aborted, markers)

    def _compare(
        self,
        path: str,
        entries: Sequence[AbortedEntry],
        aborted: set[tuple[int, int]],
        markers: set[tuple[int, int]],
    ) -> None:
        listed = {(entry.producer_id, entry.last_offset) for entry in entries}
        for producer_id, offset in sorted(aborted - listed):
            self._findings.error(
                "wrong-transactions",
                path,
                f"the transaction of producer {producer_id} that ends at offset {offset} was "
                f"aborted, but this file does not list it; {_REMOVE}",
            )
        for producer_id, offset in sorted(listed - markers):
            self._findings.error(
                "wrong-transactions",
                path,
                f"it lists a transaction of producer {producer_id} as aborted at offset {offset}, "
                f"but the log has no abort marker there; {_REMOVE}",
            )


def check_snapshots(
    disk: Disk,
    directory: str,
    entries: Sequence[FileEntry],
    findings: Findings,
    *,
    end_offset: int,
    recovery_point: int,
) -> None:
    for entry in entries:
        if entry.kind.content != Content.PRODUCERS or entry.kind.leftover is not None:
            continue
        path = f"{directory}/{entry.name}"
        try:
            read_snapshot(disk, path)
        except CorruptFile as error:
            findings.warning(
                "bad-snapshot",
                path,
                f"{error}; the next start removes it and replays more of the log instead",
            )
        if entry.kind.base_offset > max(end_offset, recovery_point):
            findings.warning(
                "late-snapshot",
                path,
                f"its offset is beyond the log end offset {end_offset}; the next start removes it",
            )
