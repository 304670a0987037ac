"""Finishes what a crash interrupted in the directory of a log, before its segments are read."""

from __future__ import annotations

from penstock.storage.files import (
    CLEANED,
    DELETED,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TEMPORARY,
    TRANSACTION_INDEX,
    finish_swap,
    offset_name,
    parse_offset_name,
    parse_swap_name,
)
from penstock.storage.opening import LogOpening
from penstock.storage.producer_snapshots import snapshots
from penstock.storage.scan import BadBatch, scan_headers


class InterruptedOperations:
    """The operations on one log: deletion, compaction, truncation and `Log.start_at`."""

    def __init__(self, opening: LogOpening) -> None:
        self._opening = opening

    def finish(self) -> list[int]:
        """Finishes the operations that a crash interrupted. Returns the base offsets of the
        segments that are left, at least one."""
        opening = self._opening
        self._sweep()
        self._finish_restart()
        self._finish_swaps()
        bases = self._bases()
        bases = self._drop_below_start(bases)
        bases = self._finish_truncation(bases)
        opening.damage = [
            held
            for held in opening.damage
            if held.segment_base in bases or held.end_offset > opening.start
        ]
        bases = self._drop_beyond_hole(bases)
        if not bases:
            base = max(opening.promised or 0, opening.start)
            opening.write_file(offset_name(base, LOG))
            bases = [base]
        return bases

    def _sweep(self) -> None:
        opening = self._opening
        for name in opening.disk.listdir(opening.directory):
            if name.endswith((TEMPORARY, CLEANED, DELETED)):
                opening.unlink(name)

    def _finish_restart(self) -> None:
        """Finishes `Log.start_at`: removes the files that are still there."""
        opening = self._opening
        if opening.checkpoint is None or opening.checkpoint.restarting_at < 0:
            return
        start = opening.checkpoint.restarting_at
        for name in opening.disk.listdir(opening.directory):
            kinds = (*SEGMENT_SUFFIXES, SNAPSHOT)
            if name.endswith(SWAP) or any(
                parse_offset_name(name, kind) is not None for kind in kinds
            ):
                opening.unlink(name)
        opening.write_file(offset_name(start, LOG))
        opening.report.notes.append(f"finished emptying the log: it starts at offset {start}")

    def _finish_swaps(self) -> None:
        opening = self._opening
        for name in opening.disk.listdir(opening.directory):
            swap = parse_swap_name(name)
            if swap is not None:
                finish_swap(opening.disk, opening.directory, name, swap)
                opening.report.notes.append(
                    f"finished the compaction of offsets [{swap[0]}, {swap[1]})"
                )

    def _bases(self) -> list[int]:
        opening = self._opening
        names = opening.disk.listdir(opening.directory)
        bases = [base for name in names if (base := parse_offset_name(name, LOG)) is not None]
        for name in names:
            for suffix in SEGMENT_SUFFIXES[1:]:
                offset = parse_offset_name(name, suffix)
                if offset is None:
                    continue
                if offset not in bases:
                    opening.unlink(name)
                elif suffix == TRANSACTION_INDEX:
                    opening.aborted_files.add(offset)
        return bases

    def _drop_below_start(self, bases: list[int]) -> list[int]:
        """Finishes an interrupted deletion: removes segments below the log start offset."""
        opening = self._opening
        kept = list(bases)
        while len(kept) > 1 and kept[1] <= opening.start:
            opening.remove_segment(kept.pop(0))
        return kept

    def _drop_beyond_hole(self, bases: list[int]) -> list[int]:
        """Removes all segments if the first ones are missing and were never promised to be on
        disk."""
        opening = self._opening
        if opening.checkpoint is None or not bases:
            return bases
        if bases[0] <= max(opening.promised or 0, opening.start):
            return bases
        for base in bases:
            opening.remove_segment(base)
        return []

    def _finish_truncation(self, bases: list[int]) -> list[int]:
        """Finishes an interrupted truncation."""
        opening = self._opening
        if opening.checkpoint is None or opening.checkpoint.truncating_to < 0:
            return bases
        target = opening.checkpoint.truncating_to
        kept = [base for base in bases if base <= target or base == bases[0]]
        for base in bases[len(kept) :]:
            opening.remove_segment(base)
        if kept:
            self._cut_file(kept[-1], target)
        for offset in snapshots(opening.disk, opening.directory):
            if offset > target:
                opening.unlink(offset_name(offset, SNAPSHOT))
        opening.report.notes.append(f"finished the truncation to offset {target}")
        return kept

    def _cut_file(self, base: int, offset: int) -> None:
        opening = self._opening
        file = opening.disk.open(f"{opening.directory}/{offset_name(base, LOG)}")
        try:
            file.drop_cache()
            start, end = 0, file.size()
            holes = [
                (held.start_position, held.end_position)
                for held in opening.damage
                if held.segment_base == base
            ]
            for hole_start, hole_end in (*sorted(holes), (end, end)):
                # Batches after a quarantined range may have to be removed too.
                for position, header in scan_headers(file, start, min(hole_start, end)):
                    if header.last_offset >= offset:
                        file.truncate(position)
                        end = position
                        break
                start = hole_end
                if start >= end:
                    break
            # Sync even if there was nothing to cut: the process that began the truncation may have
            # been killed before its fsync.
            file.fsync()
        except BadBatch:
            # The file is not sound up to the offset. The scan that follows decides what to do.
            pass
        finally:
            file.close()
