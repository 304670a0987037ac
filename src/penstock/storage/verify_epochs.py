"""Compares the leader epochs that a log's small files list with those of its batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from penstock.partition.epochs import LeaderEpochs
from penstock.ports import Disk
from penstock.storage.checkpoints import Checkpoint
from penstock.storage.errors import CorruptFile
from penstock.storage.files import LEADER_EPOCHS, LOG_CHECKPOINT
from penstock.storage.findings import RESTORE, Findings, Severity
from penstock.storage.inspect import read_epochs
from penstock.storage.verify_segment import EpochRun, SegmentScan

_REWRITTEN: Final = (
    "only Kafka's tools read it, and the broker writes it again at the next leader epoch"
)


@dataclass(frozen=True, slots=True)
class EpochsVerifier:
    disk: Disk
    directory: str
    findings: Findings
    checkpoint: Checkpoint | None
    scans: list[SegmentScan]
    cut_offset: int
    """Where recovery will cut off the log. What follows is not checked."""

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _runs(self) -> list[EpochRun]:
        """Returns the epoch runs of the whole log. A run may span several segments."""
        runs: list[EpochRun] = []
        for run in (run for scan in self.scans for run in scan.epochs):
            if runs and runs[-1].epoch == run.epoch:
                runs[-1].last_base, runs[-1].end_offset = run.last_base, run.end_offset
            else:
                runs.append(replace(run))
        return runs

    def check_order(self) -> None:
        highest = -1
        for scan in self.scans:
            for run in scan.epochs:
                if run.epoch < highest and run.first_offset < self.cut_offset:
                    self.findings.error(
                        "epoch-falls",
                        scan.path,
                        f"offset {run.first_offset} has leader epoch {run.epoch}, but earlier "
                        f"offsets have {highest}: a former leader wrote it, or the bytes are "
                        f"damaged; {RESTORE}",
                    )
                highest = max(highest, run.epoch)

    def check_files(self, end_offset: int, *, clean: bool) -> None:
        """Compares the stored leader epochs with the batches, as far as the stored ones are
        trusted."""
        checkpoint, path = self.checkpoint, self._path(LEADER_EPOCHS)
        try:
            listed = read_epochs(self.disk, path)
        except CorruptFile as error:
            self.findings.warning("bad-epochs", path, f"{error}; {_REWRITTEN}")
            listed = None
        else:
            flushed = checkpoint.recovery_point if checkpoint else end_offset
            if listed is None and any(
                run.epoch >= 0 and run.first_offset < flushed for run in self._runs()
            ):
                self.findings.warning("no-epochs", path, f"it is missing; {_REWRITTEN}")
        if checkpoint is None:
            if listed is not None:
                self._check_noted(LeaderEpochs(listed), path, Severity.WARNING, end_offset)
            return
        noted = LeaderEpochs(checkpoint.epochs)
        upper = end_offset if clean else min(checkpoint.recovery_point, end_offset)
        self._check_noted(noted, self._path(LOG_CHECKPOINT), Severity.ERROR, upper)
        if clean and listed is not None and tuple(listed) != noted.entries:
            self.findings.warning(
                "stale-epochs", path, f"it differs from the checkpoint; {_REWRITTEN}"
            )

    def _check_noted(self, noted: LeaderEpochs, path: str, severity: Severity, upper: int) -> None:
        runs = [run for run in self._runs() if run.first_offset < upper and run.epoch >= 0]
        for before, run in zip([None, *runs], runs, strict=False):
            follows = before is not None and before.end_offset == run.first_offset
            offset = self._misnoted(noted, run, upper, follows=follows)
            if offset is not None:
                self.findings.add(
                    severity,
                    "wrong-epoch",
                    path,
                    f"it says that leader epoch {noted.epoch_at(offset)} wrote offset {offset}, "
                    f"but the batches have leader epoch {run.epoch} from {run.first_offset} on: "
                    f"one of them is damaged; {RESTORE}",
                )

    def _misnoted(
        self, noted: LeaderEpochs, run: EpochRun, upper: int, *, follows: bool
    ) -> int | None:
        """Returns an offset to which the file assigns the wrong epoch, at either end of a run."""
        start = self.checkpoint.log_start_offset if self.checkpoint else 0
        first = max(run.first_offset, start)
        if run.end_offset <= start or first >= upper:
            return None
        for offset in (first, min(run.last_base, upper - 1)):
            if offset >= first and noted.epoch_at(offset) != run.epoch:
                return offset
        # After a gap, the epoch may have begun with records that compaction has removed.
        before = run.first_offset - 1
        if follows and before >= start and noted.epoch_at(before) == run.epoch:
            return before
        return None
