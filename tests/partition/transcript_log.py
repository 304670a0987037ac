"""A replica in a transcript: its log as a list of batches, and what the running broker knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.partition.epochs import LeaderEpochs
from penstock.partition.follower import BatchSpan, Fetch, FetchAnswer, Follower, LogView
from penstock.partition.leadership import AlterIsr, Leadership


class ReplicaLog:
    """Batches without their records. An offset and its epoch identify a record."""

    def __init__(self) -> None:
        self.start = 0
        self.batches: list[BatchSpan] = []
        self.synced = 0
        self.epochs = LeaderEpochs()

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.start

    def append(self, batch: BatchSpan) -> None:
        self.epochs.assign(batch.leader_epoch, batch.base_offset)
        self.batches.append(batch)

    def write(self, count: int, epoch: int) -> None:
        self.append(BatchSpan(self.end, self.end + count, epoch, count))

    def read(self, offset: int) -> tuple[BatchSpan, ...]:
        """Returns the batches from this offset on. The first one is sent whole, even if it begins
        below the offset."""
        return tuple(batch for batch in self.batches if batch.next_offset > offset)

    def sync(self) -> None:
        self.synced = self.end

    def cut(self, offset: int) -> None:
        """Removes everything at or above the offset. Batches are not split: one that contains the
        offset goes, too."""
        self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
        self.synced = min(self.synced, self.end)
        self.epochs.truncate_from_end(self.end)

    def start_at(self, offset: int) -> None:
        self.batches = []
        self.start = self.synced = offset
        self.epochs.clear()

    def delete_before(self, offset: int) -> None:
        assert self.start <= offset <= self.end
        self.batches = [batch for batch in self.batches if batch.next_offset > offset]
        self.start = offset
        self.epochs.truncate_from_start(offset)

    def lose_unsynced(self) -> None:
        self.cut(self.synced)
        self.forget_epochs()

    def forget_epochs(self) -> None:
        """Reads the epochs from the batches, as a broker does after a crash."""
        self.epochs = LeaderEpochs()
        for batch in self.batches:
            self.epochs.assign(batch.leader_epoch, max(batch.base_offset, self.start))


@dataclass
class Flight:
    """A fetch on its way to the leader, or its answer on the way back."""

    fetch: Fetch
    broker_epoch: int
    answer: FetchAnswer | None = None


@dataclass
class Shown:
    """What the transcript last said about a leader."""

    isr: frozenset[int]
    maximal_isr: frozenset[int]
    high_watermark: int


@dataclass
class Broker:
    id: int
    up: bool = True
    broker_epoch: int = -1
    lossless_since: int = -1
    keeps_all: bool = True
    """False if records may be lost since the last start."""
    hears: bool = True
    """False while metadata does not arrive."""
    log: ReplicaLog = field(default_factory=ReplicaLog)
    high_watermark: int = 0
    leadership: Leadership | None = None
    follower: Follower | None = None
    sent: Fetch | None = None
    """The fetch that the follower waits for."""
    flights: list[Flight] = field(default_factory=list)
    retry_ms: int = 0
    full_disk: bool = False
    proposal: AlterIsr | None = None
    lost_proposal: AlterIsr | None = None
    """A proposal that the leader has given up, and that may still reach the controller."""
    waiting: list[int] = field(default_factory=list)
    """Log ends that producers wait for."""
    shown: Shown | None = None

    def view(self, *, by_disk: bool) -> LogView:
        log = self.log
        return LogView(log.start, log.end, log.synced if by_disk else log.end, log.epochs)

    def leave_role(self) -> None:
        """Ends the role; the high watermark is kept for the next one."""
        if self.leadership is not None:
            self.high_watermark = self.leadership.high_watermark
        if self.follower is not None:
            self.high_watermark = self.follower.high_watermark
        self.high_watermark = min(self.high_watermark, self.log.end)
        self.leadership = self.follower = self.sent = self.shown = self.proposal = None
        self.retry_ms = 0

    def stop(self) -> None:
        self.leave_role()
        self.up = False
        self.waiting = []
        self.high_watermark = self.log.start
        self.log.forget_epochs()
