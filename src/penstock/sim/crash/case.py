"""One seeded case: dozens of operations, crashes and faults on one log, and checks of the result.

There are four random streams (configuration, workload, crashes, disk faults), so that a draw added
to one does not shift the others. The trace hash covers every operation and the final contents of
every file: two runs of a seed that differ anywhere have different hashes.
"""

from __future__ import annotations

import traceback
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import EIO, EMFILE, ENOSPC
from hashlib import blake2b
from itertools import accumulate
from random import Random  # noqa: TID251 - a simulation is where randomness is made
from typing import Final, TypeAlias

from penstock.records.batch import Codec, stamp
from penstock.records.record import ControlMarker, ControlType, Record, build_batch, control_batch
from penstock.sim.crash.bit_rot import forge_some_segment, rot_some_file
from penstock.sim.crash.config import CaseConfig, draw_config
from penstock.sim.crash.log_calls import LogCalls
from penstock.sim.crash.log_checks import Broken, check_time
from penstock.sim.crash.log_model import ModelBatch, model_batch
from penstock.sim.crash.log_process import DIRECTORY, Flight, LogProcess, LoudLoss
from penstock.sim.disk.disk import SimDisk

Fault: TypeAlias = tuple[str, int, str]
"""A disk call, the errno it fails with, and a part of the path."""
READ_FAULTS: Final[tuple[Fault, ...]] = (("pread", EIO, ""), ("open", EMFILE, ""))
WRITE_FAULTS: Final[tuple[Fault, ...]] = (
    ("pwrite", EIO, ""),
    ("pwrite", ENOSPC, ""),
    ("create", ENOSPC, ""),
    ("create", EMFILE, ""),
    ("open", EMFILE, ""),
    ("truncate", EIO, ""),
)
FLUSH_FAULTS: Final[tuple[Fault, ...]] = (
    ("fsync", EIO, ".log"),
    ("fsync", EIO, ".log"),
    ("fsync", EIO, ""),
    ("sync_directory", EIO, ""),
    ("rename", EIO, ""),
)
ALL_FAULTS: Final = (*READ_FAULTS, *WRITE_FAULTS, *FLUSH_FAULTS, ("unlink", EIO, ""))
FAULTS: Final = {
    "append": WRITE_FAULTS,
    "append_replica": WRITE_FAULTS,
    "roll": WRITE_FAULTS,
    "flush": (*FLUSH_FAULTS, *WRITE_FAULTS[:2], ("open", EMFILE, "")),
    "flush_split": (*FLUSH_FAULTS, ("open", EMFILE, "")),
    "note": (*FLUSH_FAULTS, *WRITE_FAULTS),
    "read": READ_FAULTS,
    "time": READ_FAULTS,
}
"""What can fail in an operation. In operations that are not listed, anything can."""
SURGERY: Final = frozenset(("truncate", "delete", "reopen", "compact", "flush"))
"""Operations in which the order of the disk calls matters most, and so do crashes between them."""


@dataclass(slots=True)
class CaseResult:
    seed: int
    config: CaseConfig
    failure: str | None
    steps: list[str]
    trace_hash: str
    counters: dict[str, int] = field(default_factory=dict)


def run_case(seed: int) -> CaseResult:
    """Runs one case. It is the same every time: replay a failure by its seed."""
    case = Case(seed)
    failure = None
    try:
        case.run()
    except LoudLoss as loss:
        case.process.tell(f"the rot was reported: {loss}")
        case.process.count("rot reported and not served")
    except Broken as broken:
        failure = str(broken)
    except Exception:  # noqa: BLE001 - any other exception from the log is a finding too
        failure = traceback.format_exc()
    return case.result(failure)


class Case:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.config = draw_config(_stream(seed, "circumstances"))
        self.draws = _stream(seed, "workload")
        self.disk = SimDisk(
            _stream(seed, "crashes"),
            _stream(seed, "faults"),
            now_ms=lambda: self.process.now_ms if hasattr(self, "process") else 0,
        )
        secrets = _stream(seed, "secrets")
        self.process = LogProcess(self.config, self.disk, self.draws, secrets)
        self.calls = LogCalls(self.process)
        self.name = ""
        self.epoch = 0
        self.epoch_of_producer: dict[int, int] = {}
        weights = self.config.weights()
        self._names = list(weights)
        self._bounds = list(accumulate(weights.values()))

    def run(self) -> None:
        draws, config = self.draws, self.config
        if draws.random() < 0.1:
            self.process.arm(draws.randrange(0, 12))
        self.process.create()
        self.process.disarm()
        self.process.heal()
        for _ in range(config.operations):
            self.process.now_ms += draws.randrange(0, 40)
            name = self._names[bisect_right(self._bounds, draws.randrange(0, self._bounds[-1]))]
            if (
                not self.process.armed
                and name in SURGERY
                and draws.random() < 2 * config.crash_chance
            ):
                self.process.arm(draws.randrange(0, 12))
            elif not self.process.armed and draws.random() < config.crash_chance / 2:
                self.process.arm(draws.randrange(0, 25))
            self.process.count(name)
            self.name = name
            getattr(self, f"_{name}")()
        self.process.disarm()
        self.process.heal()
        self.process.check()
        self._end()

    def _end(self) -> None:
        """Ends the case with a power loss, which must leave what was promised."""
        self.process.tell("at the end")
        self.process.crash(power=True)
        self.process.recover()

    def result(self, failure: str | None) -> CaseResult:
        digest = blake2b(digest_size=16)
        for line in self.process.steps:
            digest.update(line.encode())
        for path, data in self.disk.files().items():
            digest.update(path.encode() + data)
        counters = {**self.process.counters}
        for name, times in self.disk.counters.items():
            if name.startswith("fault_") and times:
                counters[name] = times
        return CaseResult(
            self.seed, self.config, failure, self.process.steps, digest.hexdigest(), counters
        )

    # Faults

    def _with_fault(self, operation: Callable[[], object]) -> None:
        """Runs the operation, perhaps with one failing disk call."""
        draws = self.draws
        if (
            self.process.fault_armed
            or self.process.armed
            or draws.random() >= self.config.fault_chance
        ):
            operation()
            return
        faults = FAULTS.get(self.name, ALL_FAULTS)
        call, code, path = faults[draws.randrange(0, len(faults))]
        skip = draws.randrange(0, 1 if path else 3)
        self.process.tell(f"the disk fails: {call} {code} after {skip}")
        self.process.fault_armed = True
        self.disk.fail_next(call, code, path_contains=path, skip=skip)
        operation()
        self.process.heal()

    # Operations

    def _append(self) -> None:
        self._with_fault(self._append_one)

    def _append_one(self) -> None:
        self.calls.append(self._batch(), self.epoch)

    def _append_replica(self) -> None:
        draws = self.draws
        batches: list[ModelBatch] = []
        offset = self.process.log.end_offset
        for _ in range(draws.randrange(1, 5)):
            if self.config.gaps and draws.random() < 0.3:
                offset += draws.randrange(1, 5)
            if draws.random() < 0.1:
                self._raise_epoch()
            batch = self._batch(batches)
            stamp(batch, 0, offset, self.epoch)
            batches.append(model_batch(bytes(batch)))
            offset = batches[-1].next_offset
        self._with_fault(lambda: self.calls.append_replica(batches))

    def _flush(self) -> None:
        self._with_fault(lambda: self.calls.flush(checkpoint=self.draws.random() < 0.3))

    def _flush_split(self) -> None:
        """Appends while another thread flushes, between any two of its disk calls."""
        draws = self.draws
        log = self.process.log
        plan = log.begin_flush()
        self.process.tell(f"begin_flush to {plan.end_offset}")
        for _ in range(draws.randrange(0, 3)):
            if self.process.log is log:
                self._append_one()
        if self.process.log is not log:
            return

        def meanwhile() -> None:
            if draws.random() < 0.25:
                self._append_one()

        self.process.watch_calls(meanwhile)
        self._with_fault(lambda: self.calls.finish_flush(plan))

    def _note(self) -> None:
        """Stores what is synced and committed, as the broker does. The committed offset is a
        random one."""
        ends = [batch.next_offset for batch in self.process.model.ledger]
        ends = [end for end in ends if end >= self.process.committed_offset] or [
            self.process.log.end_offset
        ]
        offset = ends[self.draws.randrange(0, len(ends))]
        self._with_fault(lambda: self.calls.note(offset))

    def _roll(self) -> None:
        if self.process.log.active.size:
            self._with_fault(self.calls.roll)

    def _read(self) -> None:
        if self.process.log.damage:
            self.process.check()
        else:
            self._with_fault(lambda: self.calls.attempt_reads(2))

    def _time(self) -> None:
        at_ms = self.process.some_time()
        if self.process.log.damage:
            return
        self._with_fault(
            lambda: self.calls.attempt(
                "time", lambda: check_time(self.process.log, self.process.model, at_ms), Flight()
            )
        )

    def _truncate(self) -> None:
        """Truncates, mostly at the start of a batch, as leaders ask for. Never truncates what is
        compacted: that is below the high watermark, and so all replicas agree on it."""
        log, draws = self.process.log, self.draws
        agreed = self.process.agreed_offset if self.config.transactions else 0
        lowest = min(max(log.log_start_offset, log.cleaned_offset, agreed), log.end_offset)
        offset = draws.randrange(lowest, log.end_offset + 1)
        if draws.random() < 0.8:
            offset = max(lowest, self.process.model.cut_point(offset))
        self._with_fault(lambda: self.calls.truncate(offset))

    def _delete(self) -> None:
        log = self.process.log
        offset = self.draws.randrange(log.log_start_offset, log.end_offset + 1)
        self._with_fault(lambda: self.calls.delete(offset))
        if self.draws.random() < 0.5:
            self.calls.purge()

    def _reopen(self) -> None:
        log = self.process.log
        self._with_fault(self._close_and_open)
        if self.process.log is not log:
            self._maybe_twice()

    def _close_and_open(self) -> None:
        if self.calls.close():
            self.process.recover()

    def _crash(self) -> None:
        self.process.tell("between two operations")
        self.process.crash(power=self.process.draw_power())
        if self.draws.random() < 0.3:
            self.process.arm(self.draws.randrange(0, 20))
        self.process.recover()
        self.process.disarm()
        self._maybe_twice()

    def _maybe_twice(self) -> None:
        if not self.process.armed and not self.process.fault_armed and self.draws.random() < 0.5:
            self.process.check_idempotent()

    def _fill(self) -> None:
        """Leaves almost no free space for some operations, or frees space again."""
        draws = self.draws
        if self.process.fault_armed:
            self.process.heal()
            self.process.tell("there is room on the disk again")
            return
        room = draws.randrange(0, 1500)
        self.disk.capacity_bytes -= self.disk.free_bytes(DIRECTORY) - room
        self.process.fault_armed = True
        self.process.tell(f"only {room} bytes are left on the disk")

    def _rot(self) -> None:
        if self.process.armed or self.process.fault_armed:
            return
        clean = self.draws.random() < 0.4
        if not clean:
            if self.draws.random() < 0.5:
                # Synced and stored, but above the recovery point of the log's own checkpoint.
                self._append_one()
                self.calls.flush(checkpoint=False)
                self._note()
            self.process.crash(power=self.process.draw_power())
        elif not self.calls.close():
            return
        if not (clean and self.draws.random() < 0.3 and forge_some_segment(self.process)):
            rot_some_file(self.process, clean=clean)
        self.process.recover()

    def _compact(self) -> None:
        def meanwhile() -> None:
            log = self.process.log
            for _ in range(self.draws.randrange(0, 3)):
                if self.process.log is log:
                    choice = self.draws.randrange(0, 8)
                    (self._delete if choice == 0 else self._append)()

        self._with_fault(lambda: self.calls.clean(meanwhile))

    def _epoch(self) -> None:
        self._raise_epoch()
        if self.draws.random() < 0.5:
            self.process.log.note_epoch(self.epoch)
            self.process.tell(f"note_epoch {self.epoch}")

    # Batches

    def _raise_epoch(self) -> None:
        self.epoch += self.draws.randrange(1, 3)

    def _batch(self, ahead: list[ModelBatch] | None = None) -> bytearray:
        """Returns the next batch of a producer, or of none. `ahead` are batches that come
        before it."""
        draws, config = self.draws, self.config
        producer_id = draws.randrange(-1, config.producers)
        if producer_id < 0:
            return build_batch(self._records(), codec=self._codec())
        sequence, in_transaction = self._position(producer_id, ahead or [])
        epoch = self.epoch_of_producer.setdefault(producer_id, 0)
        if in_transaction and draws.random() < 0.4:
            kind = ControlType.COMMIT if draws.random() < 0.5 else ControlType.ABORT
            return control_batch(
                ControlMarker(kind, 1),
                producer_id=producer_id,
                producer_epoch=epoch,
                timestamp=self.process.now_ms,
            )
        if not in_transaction and draws.random() < 0.05:
            epoch = self.epoch_of_producer[producer_id] = epoch + 1
            sequence = 0
        return build_batch(
            self._records(),
            codec=self._codec(),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=in_transaction or (config.transactions and draws.random() < 0.4),
        )

    def _position(self, producer_id: int, ahead: list[ModelBatch]) -> tuple[int, bool]:
        """Returns the producer's next sequence number, and whether it is in a transaction."""
        sequence, epoch, open_now = 0, -1, False
        for batch in [*self.process.model.ledger, *ahead]:
            header = batch.header
            if header.producer_id != producer_id:
                continue
            if header.is_control:
                open_now = False
                continue
            sequence, epoch = header.last_sequence + 1, header.producer_epoch
            open_now = header.is_transactional
        if epoch >= 0:
            self.epoch_of_producer[producer_id] = epoch
        return sequence, open_now

    def _codec(self) -> Codec:
        codecs = self.config.codecs
        return codecs[self.draws.randrange(0, len(codecs))]

    def _records(self) -> list[Record]:
        draws, config = self.draws, self.config
        stamp_ms = self.process.now_ms + draws.randrange(-30, 30)
        records = []
        for offset in range(draws.randrange(1, 6)):
            key = b"key-%d" % draws.randrange(0, 6)
            value = draws.getrandbits(32).to_bytes(4, "big") * draws.randrange(
                0, config.value_bytes_max // 4 + 1
            )
            keyless = not config.compact and draws.random() < 0.2
            empty = draws.random() < 0.1
            records.append(
                Record(
                    offset,
                    stamp_ms + draws.randrange(-5, 20),
                    None if keyless else key,
                    None if empty else value,
                )
            )
        return records


def _stream(seed: int, name: str) -> Random:
    return Random(f"{seed} {name}")  # noqa: S311 - repeatable, not secret
