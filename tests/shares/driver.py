"""Runs a share partition on a log that is a list of batches, and collects its effects."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from penstock.coordination.effects import LogRecord, Now, SetTimer
from penstock.shares.carried_locks import CarriedLocks
from penstock.shares.events import (
    AckBatch,
    Acknowledge,
    Acknowledged,
    Acquire,
    Acquired,
    AcquiredRange,
    BatchKind,
    Effect,
    Event,
    LogBatch,
    LogStartMoved,
    ProducerIdTaken,
    ReleaseMember,
    TakeProducerId,
    TimerFired,
    WakeFetches,
    Write,
    WriteCommitted,
    WriteDeadLetters,
    WriteFailed,
)
from penstock.shares.formats import Entry, Snapshot, decode, record_of
from penstock.shares.image import ShareImage
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import AckType, AcquireMode
from penstock.shares.stored_states import StoredStates
from penstock.wire.errors import ErrorCode

JOBS = SharePartitionId("jobs", bytes(16), 0)
WALL_AHEAD_MS = 1_000_000
ALL = 1_000_000


def snapshot_record(image: ShareImage) -> LogRecord:
    return record_of(Entry(JOBS, Snapshot(image)))


class Driver:
    """With `holds_writes`, the test commits writes by itself; otherwise they commit at once."""

    def __init__(
        self,
        settings: ShareSettings | None = None,
        *,
        start: int = 0,
        holds_writes: bool = False,
    ) -> None:
        self.settings = settings or ShareSettings()
        self.holds_writes = holds_writes
        self.ticks_ms = 10_000
        self.log: list[LogBatch] = []
        self.log_end = start
        self.writes: list[Write] = []
        self.letters: list[WriteDeadLetters] = []
        self.producer_ids = 0
        """How many were taken."""
        self.answers: dict[object, ErrorCode] = {}
        self.ranges: dict[object, tuple[AcquiredRange, ...]] = {}
        self.timer_ms: int | None = None
        self.wakes = 0
        self.carried: CarriedLocks | None = None
        """What the next leader knows of the one before it."""
        self._tokens = count()
        image = ShareImage.starting_at(start)
        self.state_log: list[LogRecord] = [snapshot_record(image)]
        self.machine = SharePartition(self.settings, image, self.now)

    @property
    def now(self) -> Now:
        return Now(self.ticks_ms, self.ticks_ms + WALL_AHEAD_MS)

    # The log

    def append(
        self,
        records: int,
        kind: BatchKind = BatchKind.DATA,
        *,
        epoch: int = 0,
        due_ms: int = 0,
        expires_ms: int | None = None,
    ) -> LogBatch:
        last = self.log_end + records - 1
        batch = LogBatch(self.log_end, last, epoch, kind, due_ms, expires_ms)
        self.log.append(batch)
        self.log_end += records
        return batch

    def leave_hole(self, offsets: int) -> None:
        self.log_end += offsets

    def read(self, offset: int) -> tuple[LogBatch, ...]:
        return tuple(batch for batch in self.log if batch.last >= offset)

    # Events

    def fetch(
        self,
        member: str = "anna",
        max_records: int = ALL,
        *,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
        batch_size: int = 0,
    ) -> tuple[AcquiredRange, ...]:
        offset = self.machine.next_fetch_offset(self.now)
        if offset is None:
            return ()
        token = next(self._tokens)
        batches = self.read(offset)
        self.handle(Acquire(token, member, offset, batches, max_records, batch_size, mode))
        return self.ranges.pop(token)

    def acknowledge(
        self,
        first: int,
        last: int,
        *types: AckType,
        member: str = "anna",
        is_renew: bool = False,
    ) -> object:
        """Returns the token of the request; `answers` has its error when it is answered."""
        token = next(self._tokens)
        batch = AckBatch(first, last, tuple(map(int, types or (AckType.ACCEPT,))))
        self.handle(Acknowledge(token, member, (batch,), is_renew))
        return token

    def ack(
        self,
        first: int,
        last: int,
        *types: AckType,
        member: str = "anna",
        is_renew: bool = False,
    ) -> ErrorCode:
        token = self.acknowledge(first, last, *types, member=member, is_renew=is_renew)
        return self.answers.pop(token)

    def end_session(self, member: str = "anna", *, with_backoff: bool = False) -> None:
        self.handle(ReleaseMember(member, with_backoff))

    def move_log_start(self, offset: int) -> None:
        self.log = [batch for batch in self.log if batch.last >= offset]
        self.log_end = max(self.log_end, offset)
        self.handle(LogStartMoved(offset))

    def wait(self, milliseconds: int) -> None:
        """Lets time pass, and fires the timer whenever it is due."""
        until = self.ticks_ms + milliseconds
        while self.timer_ms is not None and self.timer_ms <= until:
            self.ticks_ms = max(self.ticks_ms, self.timer_ms)
            self.timer_ms = None
            self.handle(TimerFired())
        self.ticks_ms = until

    def commit(self) -> None:
        """Commits the oldest write."""
        write = self.writes.pop(0)
        self.state_log.append(record_of(Entry(JOBS, write.delta)))
        self.handle(WriteCommitted(write.write_id))

    def fail(self, error: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        """Lets the oldest write fail."""
        self.handle(WriteFailed(self.writes.pop(0).write_id, error))

    def handle(self, event: Event) -> None:
        self._carry_out(self.machine.handle(event, self.now))
        self.machine.verify()

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Acquired():
                    self.ranges[effect.token] = effect.ranges
                case Acknowledged():
                    assert effect.token not in self.answers
                    self.answers[effect.token] = effect.error
                case Write():
                    self.writes.append(effect)
                case WriteDeadLetters():
                    self.letters.append(effect)
                case TakeProducerId():
                    self.producer_ids += 1
                    self.handle(ProducerIdTaken(self.producer_ids))
                case WakeFetches():
                    self.wakes += 1
                case SetTimer():
                    self.timer_ms = effect.at_ms
        while self.writes and not self.holds_writes:
            self.commit()

    # Failover

    def replayed(self) -> ShareImage:
        states = StoredStates()
        for offset, record in enumerate(self.state_log):
            states.apply(decode(record), offset)
        state = states.get(JOBS)
        assert state is not None
        return state.image

    def fail_over(self, *, written: int = 0, truncate_to: int | None = None) -> None:
        """Another leader loads the state log, which has the first `written` writes under way."""
        self.state_log += [record_of(Entry(JOBS, write.delta)) for write in self.writes[:written]]
        self.writes.clear()
        self.letters.clear()
        self.timer_ms = None
        image = self.replayed()
        if truncate_to is not None:
            image.truncate(truncate_to)
            self.state_log.append(snapshot_record(image))
        self.machine = SharePartition(self.settings, image, self.now)
        if self.carried is not None:
            self.machine.put_back(self.carried)
            self.carried = None
        self._carry_out(self.machine.on_loaded(self.now))
        self.machine.verify()

    def load_again(self, *, written: int = 0, ends: str = "") -> None:
        """The leader reads the state log again, which has the first `written` writes under way.

        `ends` is a member whose session has ended meanwhile.
        """
        locks = self.machine.locks
        self.carried = locks.ended(ends, self.ticks_ms) if ends else locks
        self.fail_over(written=written)
