"""Closes a log in three steps, like a flush, and stores what the next start may trust.

A clean stop stores the size of the last segment and the CRCs of its indexes, so that the next start
does not read the log.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.storage.checkpoints import CleanStop
from penstock.storage.files import SNAPSHOT, offset_name, write_all
from penstock.storage.flush_plan import FlushPlan
from penstock.storage.log_files import LogFiles
from penstock.storage.log_flusher import LogFlusher
from penstock.storage.log_state import LogState
from penstock.storage.producer_snapshots import file_crc, snapshot_of


class LogClosing:
    """Closes a log, cleanly or at once."""

    __slots__ = ("_files", "_flusher", "_state")

    def __init__(self, state: LogState, files: LogFiles, flusher: LogFlusher) -> None:
        self._state = state
        self._files = files
        self._flusher = flusher

    def close(self) -> None:
        """Closes the log cleanly: flushes it and stores what the next start may trust. Blocking."""
        state = self._state
        plan = self.begin_close()
        if plan is not None:
            try:
                plan.run()
            except OSError as error:
                self._flusher.fail_flush(plan, error)
                state.refuse()
        self.end_close(plan)

    def begin_close(self) -> FlushPlan | None:
        """Runs the first of the three steps of `close`, as with a flush. Returns None if the second
        step is not needed."""
        state = self._state
        active = state.active
        never_used = (
            len(state.segments) == 1
            and active.size == 0
            and active.base_offset == state.end_offset == state.log_start_offset
            and state.noted_point == state.end_offset
        )
        if state.failure is not None or never_used or not (state.changed or state.needs_flush):
            return None
        try:
            active.seal()
            snapshot = f"{state.directory}/{offset_name(state.end_offset, SNAPSHOT)}"
            file = state.pool.create(snapshot)
            file.truncate(0)
            write_all(file, snapshot_of(state.producers), 0)
            state.dirty[snapshot] = None
            stop = CleanStop(
                active.base_offset,
                active.size,
                state.end_offset,
                file_crc(state.disk, active.index.path),
                file_crc(state.disk, active.time_index.path),
            )
        except OSError as error:
            state.fail(f"the log could not be closed: {error}")
            state.refuse()
        plan = self._flusher.begin_flush(checkpoint=True)
        if plan.checkpoint is not None:
            plan.checkpoint = replace(plan.checkpoint, clean_stop=stop)
        return plan

    def end_close(self, plan: FlushPlan | None) -> None:
        """Runs the last step of `close`, after the plan from `begin_close` was run."""
        state = self._state
        if plan is not None:
            self._flusher.end_flush(plan)
            if plan.unnoted and plan.checkpoint is not None:
                self._files.write_checkpoint(plan.checkpoint)
            state.changed = False
        self.abandon("it was closed")

    def abandon(self, reason: str) -> None:
        """Closes every file. Later calls are refused."""
        state = self._state
        for segment in state.segments:
            self._files.forget(segment)
        state.failure = state.failure or reason
