"""Plays the scripts in `tests/scripts/partition`: one partition machine on broker 1.

A line at the margin is an event, what the machine decides or returns is indented below. Text above
the first empty line says what the script shows. Broker 1 has broker epoch 11, broker 2 has 12, and
so on. replica.lag.time.max.ms is 30 s. The log obeys at once, except that it syncs only at
`flushed`.

    replicas 1 2, isr 1 2, min.insync 2, durability fsync
                                the partition, before anything else
    log 0-4 of epoch 3, high watermark 5
                                what the log has at the start, all synced
    lead epoch 5                the metadata names broker 1 the leader; `isr 1` may follow
    follow 2 in epoch 6         ... or another broker
    resign                      the broker loses its lease
    append 3                    a client's batch of three records
    append 3, producer 7 sequence 0
                                of an idempotent producer; `epoch 1` may follow
    append 3, producer 7 sequence 0, transactional
    append 3, producer 7 sequence 0, verified
                                again, with the guard of the last `verify`
    refused producer 7 sequence 0
                                a batch was refused elsewhere, with a retriable error
    commit producer 7           the marker that ends its transaction
    request a waits for 3       a produce request with acks=all
    request b waits for own disk 3
                                a produce request with acks=1
    flushed                     everything written is synced
    an earlier flush ends       it has not synced the last changes
    the log forgets its newest epoch
                                it was being truncated
    the disk fails
    2 fetches from 3            a follower has everything below offset 3
    wait 11 s
    set min.insync 1, set durability replicated
    show
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from penstock.metadata.model import Partition
from penstock.partition.decisions import (
    Answer,
    Append,
    Do,
    Effect,
    NoteEpoch,
    Refuse,
    Verify,
)
from penstock.partition.epochs import LeaderEpochs
from penstock.partition.follower import FollowerRules
from penstock.partition.guards import Verification
from penstock.partition.machine import PartitionMachine
from penstock.partition.producer_errors import ProducerRefused
from penstock.partition.producer_state import Duplicate
from penstock.partition.producers import ProducerStates
from penstock.records.batch import TRANSACTIONAL, BatchHeader
from penstock.records.record import ControlType
from penstock.wire.errors import ErrorCode

ME = 1
LAG_MAX_MS = 30_000
WORDS = {
    Do.FLUSH: "flush",
    Do.TELL_READERS: "tell readers",
    Do.TELL_FOLLOWERS: "tell followers",
}


class ScriptLog:
    """A log without records."""

    def __init__(self) -> None:
        self.log_start_offset = 0
        self.end_offset = 0
        self.recovery_point = 0
        self.needs_flush = False
        self.failure: str | None = None
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()


class Player:
    def __init__(self) -> None:
        self.log = ScriptLog()
        self.now_ms = 0
        self.high_watermark = 0
        self.min_insync = 1
        self.by_disk = True
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.partition_epoch = 0
        self.guard: int | None = None
        self.machine: PartitionMachine[str] | None = None
        self.output: list[str] = []
        ids = r"([\d ]+?)"
        batch = r"append (\d+)(?:, producer (\d+) sequence (\d+)(?: epoch (\d+))?"
        self.events: tuple[tuple[str, Callable[..., None]], ...] = (
            (rf"replicas {ids}, isr {ids}, min\.insync (\d+), durability (\w+)", self._partition),
            (r"log 0-(\d+) of epoch (\d+), high watermark (\d+)", self._log),
            (rf"lead epoch (\d+)(?:, isr {ids})?", self._lead),
            (r"follow (\d+) in epoch (\d+)", self._follow),
            (r"resign", lambda: self._effects(self.it.resign())),
            (batch + r"(?:, (transactional|verified))?)?", self._append),
            (r"refused producer (\d+) sequence (\d+)", self._refused),
            (r"commit producer (\d+)", self._commit),
            (r"request (\w+) waits for (\d+)", self._wait),
            (r"request (\w+) waits for own disk (\d+)", self._wait_disk),
            (r"flushed", self._flushed),
            (r"an earlier flush ends", lambda: self._effects(self.it.on_flushed())),
            (r"the log forgets its newest epoch", self._forget_epoch),
            (r"the disk fails", self._fail),
            (r"(\d+) fetches from (\d+)", self._fetch),
            (r"wait (\d+) s", self._pass),
            (r"set min\.insync (\d+)", self._set_min_insync),
            (r"set durability (\w+)", self._set_durability),
            (r"show", self._show),
        )

    def play(self, line: str) -> list[str]:
        self.output = []
        for pattern, act in self.events:
            found = re.fullmatch(pattern, line)
            if found is not None:
                act(*found.groups())
                return self.output
        raise AssertionError(f"no such event: {line}")

    @property
    def it(self) -> PartitionMachine[str]:
        if self.machine is None:
            self.machine = PartitionMachine(
                self.log,
                high_watermark=self.high_watermark,
                counts_synced=self.by_disk,
                min_insync_replicas=self.min_insync,
                follower_rules=lambda backoff_ms: FollowerRules(backoff_ms=backoff_ms),
            )
        return self.machine

    def say(self, text: str) -> None:
        self.output.append(text)

    # The beginning

    def _partition(self, replicas: str, isr: str, min_insync: str, durability: str) -> None:
        self.replicas, self.isr = ids_in(replicas), ids_in(isr)
        self.min_insync, self.by_disk = int(min_insync), durability == "fsync"

    def _log(self, last: str, epoch: str, high_watermark: str) -> None:
        self.log.end_offset = self.log.recovery_point = int(last) + 1
        self.log.epochs.assign(int(epoch), 0)
        self.high_watermark = int(high_watermark)

    # Roles

    def _state(self, leader: int, epoch: int) -> Partition:
        self.partition_epoch += 1
        members = tuple(10 + each for each in self.isr)
        return Partition(
            self.replicas, self.isr, (), leader, epoch, self.partition_epoch, 10 + leader, members
        )

    def _lead(self, epoch: str, isr: str | None) -> None:
        self.isr = ids_in(isr) if isr else self.isr
        brokers = {each: 10 + each for each in self.replicas}
        state = self._state(ME, int(epoch))
        self._effects(self.it.lead(ME, 10 + ME, state, brokers, self.now_ms, LAG_MAX_MS))

    def _follow(self, leader: str, epoch: str) -> None:
        self._effects(self.it.follow(self._state(int(leader), int(epoch))))

    # Batches

    def _append(
        self,
        count: str,
        producer: str | None,
        sequence: str | None,
        epoch: str | None,
        kind: str | None,
    ) -> None:
        header = BatchHeader(
            0, 0, -1, 2, 0, TRANSACTIONAL if kind else 0, int(count) - 1, 0, 0,
            int(producer or -1), int(epoch or 0) if producer else -1,
            int(sequence or 0) if producer else -1, int(count),
        )  # fmt: skip
        verification = None
        if kind == "verified":
            assert self.guard is not None
            verification = Verification(self.guard)
        decision = self.it.append(header, self.now_ms, verification)
        match decision:
            case Append(leader_epoch):
                self._write(header, leader_epoch)
            case Duplicate(base_offset, last_offset):
                self.say(f"duplicate of {base_offset}-{last_offset}")
            case Refuse(error):
                code = ErrorCode(error.code) if isinstance(error, ProducerRefused) else error.code
                self.say(f"refuse {code.name}")
            case Verify():
                self.guard = decision.begin()
                self.say(f"verify producer {decision.producer_id} epoch {decision.producer_epoch}")

    def _write(self, header: BatchHeader, leader_epoch: int) -> None:
        log = self.log
        written = header._replace(base_offset=log.end_offset)
        log.end_offset = written.next_offset
        log.needs_flush = True
        log.epochs.assign(leader_epoch, written.base_offset)
        if written.producer_id >= 0:
            log.producers.update(written)
        self.say(f"append {written.base_offset}-{written.last_offset} of epoch {leader_epoch}")
        self._effects(self.it.on_appended(log.end_offset))

    def _refused(self, producer: str, sequence: str) -> None:
        self.it.retry_window.note(int(producer), 0, int(sequence), self.now_ms)

    def _commit(self, producer: str) -> None:
        log = self.log
        header = BatchHeader(
            log.end_offset, 0, -1, 2, 0, TRANSACTIONAL, 0, 0, 0, int(producer), 0, -1, 1
        )
        log.producers.on_control(header, ControlType.COMMIT, 0)
        log.end_offset += 1
        log.needs_flush = True
        self.say(f"marker {header.base_offset}")
        self._effects(self.it.on_appended(log.end_offset))

    # Waiting

    def _wait(self, name: str, end_offset: str) -> None:
        self._told(name, self.it.wait_for_commit(int(end_offset), name))

    def _wait_disk(self, name: str, end_offset: str) -> None:
        self._told(name, self.it.wait_for_own_disk(int(end_offset), name))

    def _told(self, name: str, outcome: ErrorCode | None) -> None:
        if outcome is not None:
            self.say(f"answer {name}: {outcome.name}")

    # The log, the followers, the time, the settings

    def _flushed(self) -> None:
        self.log.recovery_point, self.log.needs_flush = self.log.end_offset, False
        self._effects(self.it.on_flushed())

    def _forget_epoch(self) -> None:
        self.log.epochs.truncate_from_end(self.log.end_offset)

    def _fail(self) -> None:
        self.log.failure = "the disk failed"
        self._effects(self.it.on_flushed())

    def _fetch(self, replica: str, offset: str) -> None:
        broker_epoch = 10 + int(replica)
        self._effects(
            self.it.on_follower_fetch(int(replica), broker_epoch, int(offset), self.now_ms, 0)
        )

    def _pass(self, seconds: str) -> None:
        self.now_ms += int(seconds) * 1000

    def _set_min_insync(self, value: str) -> None:
        self.min_insync = int(value)
        self._configure()

    def _set_durability(self, value: str) -> None:
        self.by_disk = value == "fsync"
        self._configure()

    def _configure(self) -> None:
        self._effects(
            self.it.configure(
                counts_synced=self.by_disk,
                min_insync_replicas=self.min_insync,
                follower_rules=lambda backoff_ms: FollowerRules(backoff_ms=backoff_ms),
            )
        )

    def _show(self) -> None:
        it = self.it
        role = "no role"
        if it.leadership is not None:
            role = f"leads epoch {it.leadership.epoch} from {it.leadership.start_offset}"
        elif it.follower is not None:
            role = f"follows {it.follower.leader} in epoch {it.follower.epoch}"
        elif it.is_beginning:
            role = "about to lead"
        self.say(
            f"{role}, log end {self.log.end_offset}, high watermark {it.high_watermark}, "
            f"last stable offset {it.last_stable_offset}"
        )

    def _effects(self, effects: Sequence[Effect[str]]) -> None:
        for effect in effects:
            match effect:
                case NoteEpoch(epoch):
                    self.say(f"note epoch {epoch}")
                    if epoch > self.log.epochs.latest:
                        self.log.epochs.assign(epoch, self.log.end_offset)
                        self.log.needs_flush = True
                case Answer(waits, code):
                    for wait in waits:
                        self.say(f"answer {wait}: {code.name if code else 'NONE'}")
                case Do():
                    self.say(WORDS[effect])


def ids_in(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split())


def perform(script: str) -> str:
    """Plays the events of a script. Returns it with the effects that they really have."""
    player = Player()
    head, blank, body = script.partition("\n\n")
    lines = [head, ""] if blank else []
    for line in (body if blank else script).splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {effect}" for effect in player.play(line)]
    return "\n".join(lines) + "\n"
