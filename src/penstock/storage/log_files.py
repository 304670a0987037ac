"""Changes to whole files of a log: the checkpoint, and the files of segments that are removed.

None of them may overlap a flush. The caller waits until the running flush has ended.
"""

from __future__ import annotations

from contextlib import suppress
from errno import EDQUOT, ENOSPC

from penstock.storage.checkpoints import Checkpoint, encode_checkpoint, write_atomic
from penstock.storage.errors import DiskFull, disk_trouble
from penstock.storage.files import DELETED, LOG_CHECKPOINT
from penstock.storage.log_state import LogState
from penstock.storage.segment import Segment


class LogFiles:
    """Writes the checkpoint of a log and removes its files."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def check_idle(self) -> None:
        """Raises an error if the log is offline or a flush is running."""
        state = self._state
        if state.failure is not None:
            state.refuse()
        if state.flushing is not None:
            raise RuntimeError(f"{state.directory} is being flushed: wait until the flush ends")

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replaces the checkpoint, durably. Uses the reserved space if the disk is full."""
        state = self._state
        data = encode_checkpoint(checkpoint)
        try:
            try:
                write_atomic(state.disk, state.directory, LOG_CHECKPOINT, data)
            except OSError as error:
                if error.errno not in (ENOSPC, EDQUOT) or not state.space.give_up_ballast():
                    raise
                write_atomic(state.disk, state.directory, LOG_CHECKPOINT, data)
        except OSError as error:
            if error.errno in (ENOSPC, EDQUOT):
                state.space.check()
                raise DiskFull(
                    f"no disk space for a checkpoint: {state.space.explain()}"
                ) from error
            state.fail(f"the checkpoint could not be written: {error}")
            state.refuse()
        state.noted_point = checkpoint.recovery_point

    def forget(self, segment: Segment) -> None:
        """Closes the files of a segment that is no longer read from or written to."""
        state = self._state
        segment.cuts += 1
        for path in segment.files.paths():
            state.pool.forget(path)
            state.dirty.pop(path, None)
        segment.index.clear()

    def retire(self, segment: Segment) -> None:
        """Renames the files of a segment that was removed from the log. `purge` unlinks them."""
        state = self._state
        self.forget(segment)
        for path in segment.files.paths():
            if state.disk.exists(path):
                state.disk.rename(path, path + DELETED)

    def drop(self, path: str) -> None:
        """Removes one file."""
        state = self._state
        state.pool.forget(path)
        state.dirty.pop(path, None)
        if state.disk.exists(path):
            state.disk.unlink(path)

    def purge(self) -> int:
        """Unlinks deleted files. Blocking; may run on any thread. Returns the number of files
        removed."""
        state = self._state
        with disk_trouble(f"deleted segments of {state.directory} could not be removed"):
            doomed = [
                name for name in state.disk.listdir(state.directory) if name.endswith(DELETED)
            ]
            for name in doomed:
                # Another thread may be purging at the same time.
                with suppress(FileNotFoundError):
                    state.disk.unlink(f"{state.directory}/{name}")
        return len(doomed)
