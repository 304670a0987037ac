"""The flushes of one log. Each has three steps, and only the second may run on another thread.

    plan = log.begin_flush()     collects what must reach the disk, pins the files
    plan.run()                   fsyncs
    log.end_flush(plan)          moves the recovery point

A failed fsync takes the log offline: repeating it could falsely succeed. `flusher` runs the flushes
of all logs.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.storage.errors import DiskTrouble
from penstock.storage.files import SNAPSHOT
from penstock.storage.flush_plan import FlushPlan, lacks_descriptors
from penstock.storage.log_state import LogState


class LogFlusher:
    """Makes what was appended durable."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def begin_flush(self, *, checkpoint: bool = False) -> FlushPlan:
        """Returns what must be synced so that everything up to the log end offset survives a power
        loss.

        Includes a checkpoint if files were created or removed, so that recovery starts from there.
        """
        state = self._state
        if state.failure is not None:
            state.refuse()
        if state.flushing is not None:
            raise RuntimeError(f"{state.directory} is being flushed: wait until the flush ends")
        plan = FlushPlan(state.disk, state.directory, state.end_offset)
        try:
            for path in state.dirty:
                plan.handles.append(state.pool.pin(path))
        except OSError as error:
            self._unpin(plan)
            raise DiskTrouble(f"{path} could not be opened for a flush: {error}") from error
        plan.dirty = tuple(state.dirty)
        plan.passing = [path for path in state.dirty if path.endswith(SNAPSHOT)]
        plan.indexed_offset = state.active.base_offset
        if state.epochs_dirty:
            plan.epochs = state.epochs.entries
        if state.names_dirty or state.epochs_dirty or checkpoint:
            plan.checkpoint = replace(
                state.checkpoint(state.end_offset), indexed_offset=plan.indexed_offset
            )
            # The checkpoint replaces the one that the last clean stop wrote, so the next stop must
            # write one again.
            state.changed = True
        state.dirty = {}
        state.dirty_active = None
        state.names_dirty = state.epochs_dirty = False
        state.flushing = plan
        return plan

    def end_flush(self, plan: FlushPlan) -> None:
        """Records a flush that has ended: moves the recovery point."""
        state = self._state
        self._unpin(plan)
        # Segments sealed while the flush ran are synced by the next one.
        rolled = state.active.base_offset > plan.indexed_offset
        state.unindexed_offset = plan.indexed_offset if rolled else None
        state.recovery_point = max(state.recovery_point, plan.end_offset)
        if plan.checkpoint is not None and not plan.unnoted:
            state.noted_point = plan.checkpoint.recovery_point
        # The disk had no space for the checkpoint. The next start reads more than necessary.
        state.names_dirty |= plan.unnoted
        state.epochs_dirty |= plan.unnoted

    def put_off_flush(self, plan: FlushPlan, error: BaseException) -> DiskTrouble:
        """Ends a flush that could not open a file. Everything in its plan must be flushed again."""
        state = self._state
        self._unpin(plan)
        state.dirty = dict.fromkeys((*plan.dirty, *state.dirty))
        state.names_dirty |= plan.checkpoint is not None
        state.epochs_dirty |= plan.epochs is not None
        trouble = DiskTrouble(f"{state.directory} could not be flushed: {error}")
        trouble.__cause__ = error
        return trouble

    def fail_flush(self, plan: FlushPlan, error: BaseException) -> None:
        """Takes the log offline after a failed fsync. The kernel may have dropped the dirty pages,
        and a second fsync would not report it."""
        state = self._state
        self._unpin(plan)
        state.fail(f"fsync failed: {error}")

    def _unpin(self, plan: FlushPlan) -> None:
        state = self._state
        for handle in plan.handles:
            state.pool.unpin(handle)
        for path in plan.passing:
            state.pool.forget(path)
        state.flushing = None

    def flush(self, *, checkpoint: bool = False) -> None:
        """Runs the three steps of a flush. Blocking."""
        state = self._state
        plan = self.begin_flush(checkpoint=checkpoint)
        try:
            plan.run()
        except OSError as error:
            if lacks_descriptors(error):
                raise self.put_off_flush(plan, error) from error
            self.fail_flush(plan, error)
            state.refuse()
        self.end_flush(plan)
