"""Copies the records of one partition of a delay topic to its target, when they are due. Pure.

The shell asks for the `next_step`, carries it out, and reports the result:

    Scan            read records from an offset on; `on_scanned`
    Gather          `take` records that are due, read them, divide them into batches; `plan`
    TakeProducerId  `on_producer_id`
    Store           store the state; `on_stored`. If its outcome is unknown, the state is read
                    again, and this object goes on if it can `resume`
    Send            send the planned batches; `on_sent`. If the outcome is unknown, ask again
    Wait            nothing to do until a time, or until the log or the target has changed

Records are copied in the order of their due times, then of their offsets. A record that arrives
when later ones have been copied is *late*. It comes next: the cursor's `end` moves up over late
records, in the order of their offsets, before its due time moves on.

Invariant: nothing is sent that is not planned in the stored state, and there is no new plan before
all batches of the last one have been written. So the target has every batch of earlier plans, and
recognizes those of the current one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from penstock.delays.copy_state import CopyState, PlannedBatch, Target, is_copied
from penstock.delays.due_window import DueWindow
from penstock.schedule.cursor import DueEntry, ScheduleCursor

WINDOW_RECORDS: Final = 20_000
LATE_RECORDS_MAX: Final = 5_000
"""The log is not read further while so many late records wait."""


class Scan(NamedTuple):
    offset: int


class Gather(NamedTuple):
    """Records are due."""


class TakeProducerId(NamedTuple):
    pass


class Store(NamedTuple):
    state: CopyState


class Send(NamedTuple):
    state: CopyState
    """With the planned batches. It is stored."""


class NeedTarget(NamedTuple):
    """Records are due, and there is no topic for them."""


class Wait(NamedTuple):
    until_ms: int | None
    """When the next record is due. None: no record waits."""


Step: TypeAlias = Scan | Gather | TakeProducerId | Store | Send | NeedTarget | Wait


class View(NamedTuple):
    """What the shell knows."""

    now_ms: int
    log_start: int
    readable_end: int
    """The last stable offset."""
    target: Target | None
    """Where new batches go. None: there is no such topic."""
    is_planned_target_gone: bool
    """Whether there is a plan, and the topic of `CopyState.target` was deleted."""


class Copying:
    """See the module's docstring."""

    def __init__(
        self,
        state: CopyState,
        *,
        is_stored: bool = True,
        window_records: int = WINDOW_RECORDS,
        late_max: int = LATE_RECORDS_MAX,
    ) -> None:
        self.state = state
        self._stored = state if is_stored else None
        self._window_records = window_records
        self._late_max = late_max
        self._window = DueWindow(window_records)
        self._late: deque[DueEntry] = deque()
        """Due at a time that the cursor has passed already. In order of their offsets."""
        self._scanned: int | None = None
        """Records below it are in the window, or late, or copied. None: nothing was read yet."""
        self._goal = 0
        """Records below it are read before any that is not late is copied."""
        self._has_scanned = False
        self._taken: list[DueEntry] = []
        self._takes_late = False
        self._is_refused_for_good = False

    # What is known

    @property
    def waiting(self) -> int:
        """The number of records that are known and not copied."""
        planned = sum(len(batch.offsets) for batch in self.state.planned)
        known = len(self._late) + len(self._window) + self._window.left_out
        return planned + len(self._taken) + known

    def overdue_since_ms(self, now_ms: int) -> int | None:
        """Returns since when the record that comes next has been due. None: none is due."""
        if self.state.planned:
            return self.state.planned[0].made_ms
        due_ms = self._late[0].due_ms if self._late else -1
        if due_ms < 0 and self._window.first is not None:
            due_ms = self._window.first.due_ms
        return due_ms if 0 < due_ms <= now_ms else None

    # Decisions

    def next_step(self, view: View) -> Step:
        if self.state.planned:
            return self._finish_plan(view)
        if self._scanned is None or (self._window.is_used_up and not self._late):
            self._begin_scan(view)
        assert self._scanned is not None
        # Retention may have deleted the next records.
        self._scanned = max(self._scanned, min(view.log_start, view.readable_end))
        may_scan = self._scanned < view.readable_end and len(self._late) < self._late_max
        is_behind = self._scanned < self._goal
        if is_behind and self.state != self._stored:
            # Reading may take long. Meanwhile nobody has to send the last batches again.
            return Store(self.state)
        if may_scan and (is_behind or not self._has_scanned):
            return self._scan(self._scanned)
        self._has_scanned = False
        first = None if is_behind else self._window.first
        if self._late or (first is not None and first.due_ms <= view.now_ms):
            return self._begin_plan(view)
        if may_scan:
            return self._scan(self._scanned)
        if self.state != self._stored:
            return Store(self.state)
        return Wait(None if first is None else first.due_ms)

    def _finish_plan(self, view: View) -> Step:
        is_moved = self.state.target != view.target
        if is_moved and (view.is_planned_target_gone or self._is_refused_for_good):
            if view.target is None:
                return NeedTarget()
            if view.is_planned_target_gone:
                # A request for the deleted topic may reach a new one of the same name. With the
                # same numbers, the new topic recognizes what it has got in this way.
                self.state = self.state._replace(target=view.target)
            else:
                self.state = self.state.in_new_epoch(view.target)
            self._is_refused_for_good = False
        if self.state.producer_id < 0:
            return TakeProducerId()
        if self.state != self._stored:
            return Store(self.state)
        if any(max(each.offsets) >= view.readable_end for each in self.state.planned):
            # The high watermark of a new leader may be behind that of the one before.
            return Wait(None)
        return Send(self.state)

    def _begin_plan(self, view: View) -> Step:
        if view.target is None:
            return NeedTarget()
        if self.state.target != view.target or self.state.is_broken:
            # It is stored with the plan.
            self.state = self.state.in_new_epoch(view.target)
        return TakeProducerId() if self.state.producer_id < 0 else Gather()

    def _begin_scan(self, view: View) -> None:
        """Reads the log from the first record on that may not have been copied."""
        start = None if self._scanned is None else self._window.floor()
        cursor = self.state.cursor
        # The last stable offset of a new leader may be behind that of the one before.
        self._goal = max(view.readable_end, cursor.end, self._scanned or 0)
        self._scanned = cursor.floor if start is None else start
        self._window = DueWindow(self._window_records)
        self._late.clear()

    def _scan(self, offset: int) -> Scan:
        self._has_scanned = True
        return Scan(offset)

    # Reports

    def on_scanned(self, entries: Iterable[DueEntry], end: int) -> None:
        """All records up to `end` were read. Those without a due time are due at 0."""
        cursor = self.state.cursor
        for entry in entries:
            if is_copied(cursor, entry):
                continue
            if entry <= cursor.due:
                self._late.append(entry)
            else:
                self._window.add(entry)
        self._scanned = end

    def on_producer_id(self, producer_id: int) -> None:
        self.state = self.state._replace(producer_id=producer_id, producer_epoch=0, sequence=0)

    def take(self, count: int, now_ms: int) -> list[int]:
        """Returns the offsets of the next records that are due, up to `count`, in order."""
        if not self._taken:
            self._takes_late = bool(self._late)
        found: list[DueEntry] = []
        while len(found) < count:
            if self._takes_late:
                if not self._late:
                    break
                found.append(self._late.popleft())
            else:
                first = self._window.first
                if first is None or first.due_ms > now_ms:
                    break
                found.append(self._window.pop())
        self._taken += found
        return [due.offset for due in found]

    def plan(
        self,
        batches: Sequence[Sequence[int]],
        missing: Collection[int],
        now_ms: int,
        epoch_of: Callable[[int], int],
    ) -> None:
        """Plans batches of records that were taken, in order. `missing` are not in the log.

        Records that were taken and are in neither are given back. `epoch_of` returns the leader
        epoch of the record at an offset.
        """
        taken, self._taken = self._taken, []
        count = sum(map(len, batches))
        used = [due for due in taken if due.offset not in missing]
        self._give_back(used[count:])
        if not count:
            return
        at = 0
        planned: list[PlannedBatch] = []
        cursor = self.state.cursor
        assert self._scanned is not None
        for batch in batches:
            at += len(batch)
            if not self._takes_late:
                due_ms, due_offset = used[at - 1]
                cursor = ScheduleCursor(cursor.floor, self._scanned, due_ms, due_offset)
            else:
                is_last = at == count and not self._late
                end = self._scanned if is_last else used[at - 1].offset + 1
                cursor = cursor._replace(end=end)
            planned.append(PlannedBatch(tuple(batch), cursor, now_ms))
        floor = max(cursor.floor, self._floor(cursor.end))
        cursor = cursor._replace(floor=floor)
        planned[-1] = planned[-1]._replace(after=cursor)
        self.state = self.state._replace(
            planned=tuple(planned), end_epoch=epoch_of(cursor.end - 1) if cursor.end else -1
        )

    def _give_back(self, dues: Sequence[DueEntry]) -> None:
        if self._takes_late:
            self._late.extendleft(reversed(dues))
            return
        for due in dues:
            self._window.add(due)

    def _floor(self, end: int) -> int:
        floors = [end, self._window.floor(), self._late[0].offset if self._late else None]
        return min(each for each in floors if each is not None)

    def on_missing(self, index: int) -> None:
        """Records of a planned batch are not in the log any more: it cannot be sent."""
        self.state = self.state.without_batches_from(index)
        self._scanned = None

    def on_stored(self, state: CopyState) -> None:
        self._stored = state

    def resume(self, stored: CopyState) -> bool:
        """This is what is stored, after a store with an unknown outcome. Returns whether to go on:
        it was stored, or it was not. Otherwise somebody else has stored a state."""
        if self._taken or stored not in (self.state, self._stored):
            return False
        self._stored = stored
        return True

    def on_sent(self, written: int, *, is_refused: bool) -> None:
        """The first batches of the plan are in the target. If the next one was refused, because
        the target expects another sequence number, it is not there."""
        self.state = self.state.written(written)
        self._is_refused_for_good = False
        if is_refused and self.state.planned:
            self.state = self.state.in_new_epoch(self.state.target)

    def on_refused_for_good(self, written: int) -> None:
        """The target has refused a batch for what is in it. It stays planned. If the topic gets
        another target, it goes there."""
        self.state = self.state.written(written)
        self._is_refused_for_good = True
