"""A delay topic with leaders that crash, in virtual time. Each record is to be copied once.

Leaders run `Copying` a step at a time. They send the batches of a plan as `letter_sender` does: the
next one when the last one is written. Their requests to the target are delayed, repeated and lost,
and so are the answers. As in the broker, each batch of a request is processed by itself, in any
order: it is written or refused, or it fails, whatever happens to the others. A leader that was
replaced goes on until the coordinator refuses it. The coordinator stores bytes, and fences as a
share coordinator does. The target has the real rules for idempotent producers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import NamedTuple

from penstock.delays.copy_state import BATCHES_MAX, CopyState, PlannedBatch, Target, lost_from
from penstock.delays.copying import (
    Copying,
    Gather,
    NeedTarget,
    Scan,
    Send,
    Step,
    Store,
    TakeProducerId,
    View,
    Wait,
)
from penstock.delays.formats import decode, encode
from penstock.partition.producer_errors import DuplicateSequence, ProducerRefused
from penstock.partition.producers import ProducerStates
from penstock.records.batch import read_header
from penstock.records.record import Record, build_batch
from penstock.schedule.cursor import DueEntry, ScheduleCursor

BATCHES_PER_REQUEST = 1
"""How many batches of a plan a leader sends at once."""


class Batch(NamedTuple):
    producer_id: int
    epoch: int
    sequence: int
    offsets: tuple[int, ...]
    """Of the records in the delay topic."""


class Outcome(Enum):
    WRITTEN = auto()
    OUT_OF_SEQUENCE = auto()
    FAILED = auto()
    """It was not written this time. There were too few in-sync replicas, or it was too large."""


class TargetPartition:
    """A partition of the target."""

    def __init__(self) -> None:
        self.copied: list[int] = []
        self.producers = ProducerStates()
        self.refused = 0

    def restart(self) -> None:
        """Another replica leads. It knows the last five batches of each producer."""
        entries = self.producers.entries(5)
        self.producers = ProducerStates()
        self.producers.load(entries)

    def write(self, batch: Batch) -> Outcome:
        base = len(self.copied)
        records = [Record(base + n, 0, None, b"") for n in range(len(batch.offsets))]
        header = read_header(
            build_batch(
                records,
                producer_id=batch.producer_id,
                producer_epoch=batch.epoch,
                base_sequence=batch.sequence,
            )
        )
        try:
            seen = self.producers.check(header)
        except DuplicateSequence:
            return Outcome.WRITTEN
        except ProducerRefused:
            self.refused += 1
            return Outcome.OUT_OF_SEQUENCE
        if seen is None:
            self.producers.update(header)
            self.copied += batch.offsets
        return Outcome.WRITTEN


@dataclass(eq=False)
class Leader:
    epoch: int
    read_id: int
    copying: Copying
    request: Request | None = None
    is_over: bool = False


@dataclass(eq=False)
class Request:
    leader: Leader
    batches: list[Batch]
    """Those of the plan that were not sent before. The first of them are in this request."""
    target: Target
    written_before: int = 0
    """How many batches of the plan were written with earlier requests."""
    answer: list[Outcome] | None = None

    @property
    def sent(self) -> list[Batch]:
        return self.batches[:BATCHES_PER_REQUEST]


@dataclass
class CopyWorld:
    random: Random
    window_records: int = 3
    late_max: int = 3
    now_ms: int = 1_000
    log: list[int | None] = field(default_factory=list)
    """The due times. None: the record belongs to an aborted transaction."""
    log_start: int = 0
    readable: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Leader epochs and their first offsets."""
    targets: dict[Target, TargetPartition] = field(default_factory=dict)
    target: Target | None = field(default_factory=lambda: Target(b"t" * 16, 0))
    requests: list[Request] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    ends: dict[int, tuple[DueEntry, int]] = field(default_factory=dict)
    """For each record that was planned in order: its place, and how far the log was read."""

    def __post_init__(self) -> None:
        self.stored = encode(CopyState(ScheduleCursor.starting_at(0)))
        self.leader_epoch = self.reads = self.producer_ids = 0
        self.zombies: list[Leader] = []
        self.leader = self.elect()

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    # Leaders

    def elect(self) -> Leader:
        self.leader_epoch += 1
        if self.log:
            self.epochs.append((self.leader_epoch, len(self.log)))
        # A new leader learns the high watermark only after a while.
        self.readable = self.random.randint(min(self.log_start, self.readable), self.readable)
        return self.load(self.leader_epoch)

    def load(self, epoch: int) -> Leader:
        self.reads += 1
        state = decode(self.stored)
        known = [each for each in self.epochs if each[0] <= state.end_epoch]
        log_epoch = known[-1][0] if known else -1
        later = [first for each, first in self.epochs if each > state.end_epoch]
        end = (later[0] if later else len(self.log)) if known else -1
        lost = lost_from(state, log_epoch, end, len(self.log))
        if lost is not None:
            self.count("cut")
            state = state.cut(lost, self.epoch_of(lost - 1))
        copying = Copying(
            state,
            is_stored=lost is None,
            window_records=self.window_records,
            late_max=self.late_max,
        )
        return Leader(epoch, self.reads, copying)

    def epoch_of(self, offset: int) -> int:
        return max((epoch for epoch, first in self.epochs if first <= offset), default=-1)

    def crash(self) -> None:
        self.count("crashes")
        if self.random.random() < 0.5:
            self.zombies.append(self.leader)
        else:
            self.leader.is_over = True
        if self.random.random() < 0.5:
            # The broker led the target as well.
            self.restart_targets()
        self.leader = self.elect()

    def restart_targets(self) -> None:
        for partition in self.targets.values():
            partition.restart()

    def view(self, leader: Leader) -> View:
        planned = leader.copying.state.target
        return View(
            self.now_ms,
            self.log_start,
            self.readable,
            self.target,
            planned.partition >= 0 and planned not in self.targets,
        )

    def step(self, leader: Leader) -> Step | None:
        """Carries out one step. Returns None if the leader is over, or waits for the target."""
        if leader.is_over or leader.request is not None:
            return None
        copying = leader.copying
        step = copying.next_step(self.view(leader))
        match step:
            case Scan(offset):
                end = min(self.readable, offset + self.random.randint(1, 4))
                found = [(due, each) for each, due in enumerate(self.log[:end]) if each >= offset]
                copying.on_scanned([DueEntry(d, o) for d, o in found if d is not None], end)
            case TakeProducerId():
                self.producer_ids += 1
                copying.on_producer_id(self.producer_ids)
            case Gather():
                self.gather(copying)
            case Store(state):
                self.store(leader, state)
            case Send(state):
                self.send(leader, state)
            case NeedTarget() | Wait():
                pass
        return step

    def gather(self, copying: Copying) -> None:
        random, batches, missing = self.random, list[list[int]](), set[int]()
        wanted = random.randint(1, BATCHES_MAX)
        for _ in range(wanted):
            for offset in copying.take(random.randint(1, 4), self.now_ms):
                if offset < self.log_start:
                    missing.add(offset)
                    self.count("missing")
                elif batches and len(batches[-1]) < 3 and random.random() < 0.6:
                    batches[-1].append(offset)
                else:
                    batches.append([offset])
        copying.plan(batches[:wanted], missing, self.now_ms, self.epoch_of)

    def store(self, leader: Leader, state: CopyState) -> None:
        chance = self.random.random()
        if leader.read_id != self.reads:
            self.count("fenced")
            leader.is_over = True
            return
        if chance < 0.9:
            self.stored = encode(state)
            self.note(state)
        if chance < 0.8:
            leader.copying.on_stored(state)
            return
        # It failed, or it is unknown whether it was stored: the state is read again.
        self.count("store_unknown" if chance < 0.9 else "store_failed")
        leader.is_over = True
        found = decode(self.stored)
        if self.random.random() < 0.5 and leader.copying.resume(found):
            self.count("resumed")
            self.reads += 1
            self.leader = Leader(leader.epoch, self.reads, leader.copying)
        else:
            self.leader = self.load(leader.epoch)

    def note(self, state: CopyState) -> None:
        for batch in state.planned:
            for offset in batch.offsets:
                due = self.log[offset] if offset < len(self.log) else None
                entry = DueEntry(due or 0, offset)
                if entry > state.cursor.due:
                    self.ends.setdefault(offset, (entry, batch.after.end))

    def send(self, leader: Leader, state: CopyState) -> None:
        for index, batch in enumerate(state.planned):
            if any(not self.log_start <= offset < self.readable for offset in batch.offsets):
                self.count("plan_missing")
                leader.copying.on_missing(index)
                return
        leader.request = Request(leader, batches_of(state), state.target)
        self.requests.append(leader.request)

    # The network

    def move(self, request: Request) -> None:
        chance = self.random.random()
        self.requests.remove(request)
        if request.answer is None:
            if chance < 0.1:
                self.count("lost")
                self.give_up(request)
                return
            partition = self.targets.get(request.target)
            if partition is None:
                self.give_up(request)
                return
            answer = self.process(partition, request.sent)
            if self.random.random() < 0.2:
                self.count("unanswered")
                self.give_up(request)
                return
            if self.random.random() < 0.15:
                # It is delivered once more, later.
                self.count("repeated")
                again = Request(request.leader, request.sent, request.target)
                self.requests.append(again)
            request.answer = answer
            self.requests.append(request)
        elif request.leader.request is request:
            self.go_on(request, request.answer)

    def process(self, partition: TargetPartition, batches: list[Batch]) -> list[Outcome]:
        """Processes each batch of a request by itself. A large one is checked on a thread, so those
        after it may be written before it."""
        found: dict[int, Outcome] = {}
        for number in self.random.sample(range(len(batches)), len(batches)):
            if self.random.random() < 0.05:
                self.count("failed")
                found[number] = Outcome.FAILED
            else:
                found[number] = partition.write(batches[number])
        return [found[number] for number in range(len(batches))]

    def go_on(self, request: Request, answer: list[Outcome]) -> None:
        """The leader has an answer: it sends the next batches, or reports what was written."""
        leader = request.leader
        first = next((each for each in answer if each is not Outcome.WRITTEN), None)
        written = len(answer) if first is None else answer.index(first)
        left = request.batches[written:]
        count = request.written_before + written
        if first is None and left:
            leader.request = Request(leader, left, request.target, count)
            self.requests.append(leader.request)
            return
        leader.request = None
        leader.copying.on_sent(count, is_refused=first is Outcome.OUT_OF_SEQUENCE)

    def give_up(self, request: Request) -> None:
        """The leader does not know what happened: it sends again."""
        if request.leader.request is request:
            request.leader.request = None

    def time_out(self, leader: Leader) -> None:
        """The leader sends again while its request is still on the way."""
        if leader.request is not None:
            self.count("timed_out")
            leader.request = None

    # Events

    def append(self) -> None:
        chance = self.random.random()
        if chance < 0.1:
            self.log.append(None)
        elif chance < 0.25:
            self.log.append(0)
        else:
            self.log.append(max(1, self.now_ms + self.random.randint(-40, 80)))

    def act(self) -> None:
        random, chance = self.random, self.random.random()
        if chance < 0.2:
            self.append()
        elif chance < 0.3:
            self.readable = random.randint(self.readable, len(self.log))
        elif chance < 0.35:
            self.now_ms += random.randint(1, 40)
        elif chance < 0.37:
            self.crash()
        elif chance < 0.5 and self.requests:
            # The batches of a plan take a request each.
            for _ in range(random.randint(1, 6)):
                if self.requests:
                    self.move(random.choice(self.requests))
        elif chance < 0.52:
            self.time_out(self.leader)
        elif chance < 0.54:
            self.restart_targets()
        elif chance < 0.6 and self.zombies:
            zombie = random.choice(self.zombies)
            self.step(zombie)
        else:
            self.step(self.leader)

    def settle(self) -> None:
        """Lets the leader finish, and everything that is on its way arrive."""
        self.readable = len(self.log)
        self.now_ms += 1_000
        for _ in range(100_000):
            if self.leader.is_over:
                self.leader = self.load(self.leader_epoch)
            if self.leader.request is not None and self.leader.request in self.requests:
                self.move(self.leader.request)
                continue
            self.readable = len(self.log)
            if isinstance(self.step(self.leader), Wait) and self.leader.request is None:
                break
        else:
            raise AssertionError(f"the leader never finishes: {self.leader.copying.state}")
        for zombie in self.zombies:
            for _ in range(50):
                self.step(zombie)
        for _ in range(10_000):
            if not self.requests:
                break
            self.move(self.random.choice(self.requests))

    def check(self, partition: TargetPartition) -> None:
        """Each record was copied once, and in order, unless it was late."""
        copied = partition.copied
        wanted = [each for each, due in enumerate(self.log) if due is not None]
        assert len(set(copied)) == len(copied), f"copied twice: {copied}"
        assert sorted(copied) == wanted, f"copied {sorted(copied)} of {wanted}"
        highest: tuple[DueEntry, int] | None = None
        for offset in copied:
            entry = DueEntry(self.log[offset] or 0, offset)
            if highest is not None and entry < highest[0]:
                assert offset >= highest[1], f"{entry} was copied after {highest[0]}: {copied}"
            place = self.ends.get(offset)
            if place is not None and (highest is None or place[0] > highest[0]):
                highest = place


def batches_of(state: CopyState) -> list[Batch]:
    def batch(sequence: int, planned: PlannedBatch) -> Batch:
        return Batch(state.producer_id, state.producer_epoch, sequence, planned.offsets)

    return [*map(batch, state.sequences(), state.planned)]
