"""A process with one log open on a simulated disk: it crashes, opens the log again, and is checked.

The process can die at any disk call. `arm` sets a countdown that decreases with each call that
changes the disk. At zero `Crashed` is raised inside whatever the log is doing. It is not an
`Exception`, so no code on the way handles it, and disk calls of `finally` blocks raise it again:
code of a dead process must do nothing. Then the machine loses power or only the process is killed,
a new process opens the log, and the model says whether the result is one of the allowed states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random  # noqa: TID251 - only for the type: instances are seeded

from penstock.sim.crash.config import CaseConfig, CaseDraws
from penstock.sim.crash.log_checks import (
    Broken,
    check_bounds,
    check_committed,
    check_contents,
    check_epochs,
    check_indexes,
    check_producers,
    check_read,
    check_time,
    read_all,
)
from penstock.sim.crash.log_model import LogModel, ModelBatch, Outcome, thinned_wrongly
from penstock.sim.crash.sealed_logs import TOPIC_KEY, SealedLogs
from penstock.sim.disk.disk import SimDisk
from penstock.sim.disk.faults import DiskFaults
from penstock.storage.creation import create_log
from penstock.storage.data_keys import KeyUnavailable
from penstock.storage.errors import CorruptFile, StorageError, disk_trouble
from penstock.storage.files import FilePool
from penstock.storage.index import IndexCache
from penstock.storage.log import Log
from penstock.storage.offset_checkpoint import OFFSETS, LogOffsets, read_offsets, write_offsets
from penstock.storage.opening import LogResources, RecoveryReport
from penstock.storage.recovery import open_log
from penstock.storage.space import SpaceGuard

ROOT = "/data"
TOPIC = "orders"
TOPIC_ID = "1b6f3c1e"
DIRECTORY = f"{ROOT}/{TOPIC}-0"
START_MS = 1_700_000_000_000
CHANGING = frozenset(
    ("create", "pwrite", "truncate", "fsync", "rename", "unlink", "mkdir", "sync_directory")
)
"""The calls that change the disk, so that a crash before and after them differs."""


class Crashed(BaseException):
    """The process is dead."""


class LoudLoss(Exception):
    """Rot was found and reported as it must be. The case has nothing left to prove."""


@dataclass(slots=True)
class Flight:
    """The operation that the log is in the middle of."""

    appending: Sequence[ModelBatch] = ()
    truncating_to: int | None = None
    deleting_before: int | None = None
    cleaning: bool = False


class LogProcess:
    def __init__(
        self, config: CaseConfig, disk: SimDisk, draws: CaseDraws, secrets: Random
    ) -> None:
        self.config = config
        self.disk = disk
        self.draws = draws
        self.sealed = SealedLogs(TOPIC_ID, config.page_bytes, secrets)
        self._key_name = "" if config.encryption == "off" else TOPIC_KEY
        self.model = LogModel()
        self.now_ms = START_MS
        self.steps: list[str] = []
        self.counters: dict[str, int] = {}
        self.log: Log
        self.pool: FilePool
        self.rotted: set[str] = set()
        self.cache_is_intact = False
        """No power loss and no failed fsync since the log was last opened."""
        self.committed_offset = 0
        self._notes: dict[LogOffsets, tuple[ModelBatch, ...]] = {}
        """By stored offsets of the log: the batches that were committed at that time."""
        self.uncleanable_offset = 0
        self.agreed_offset = 0
        """No leader ever asks for a truncation below this offset: compaction has relied on
        markers there."""
        self.between_calls: Callable[[], None] | None = None
        """Runs between the disk calls of a flush: what the event loop does meanwhile."""
        self.flight = Flight()
        self._fuse = -1
        self.fault_armed = False
        self.faults = DiskFaults(short_write=config.short_write_chance)
        self._created = False
        self._outcome: Outcome | None = None

    def tell(self, line: str) -> None:
        self.steps.append(line)

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + by

    # Crashes

    def arm(self, calls: int) -> None:
        """Crashes the process at a disk call, after this many calls that change the disk."""
        self._fuse = calls
        self.disk.observe(self._before_call)

    def disarm(self) -> None:
        self._fuse = -1
        self.disk.observe(None if self.between_calls is None else self._before_call)

    @property
    def armed(self) -> bool:
        return self._fuse >= 0

    def watch_calls(self, between: Callable[[], None] | None) -> None:
        self.between_calls = between
        self.disk.observe(self._before_call if between or self.armed else None)

    def _before_call(self, operation: str, path: str) -> None:
        if self.between_calls is not None:
            between, self.between_calls = self.between_calls, None
            between()
            self.between_calls = between
        if not self.armed or operation not in CHANGING:
            return
        if self._fuse == 0:
            raise Crashed
        self._fuse -= 1
        if self._fuse == 0 and operation == "pwrite" and self.draws.random() < 0.3:
            # Killed inside the call: part of the data is in the page cache.
            self.disk.shorten_next(1 + self.draws.randrange(0, 80), path_contains=path)

    def crash(self, *, power: bool) -> None:
        """Kills the process, perhaps with a power loss. Nothing runs until `recover`."""
        if self._outcome is None:
            flight = self.flight
            self._outcome = self.model.outcome(
                appending=flight.appending,
                truncating_to=flight.truncating_to,
                deleting_before=flight.deleting_before,
                cleaning=flight.cleaning,
            )
        self.flight = Flight()
        self.between_calls = None
        self.disarm()
        self._outcome.power_lost |= power
        if power:
            self.disk.power_loss()
        else:
            self.disk.kill()
        self.cache_is_intact &= not power
        self.count("power losses" if power else "kills")
        self.tell("  power is lost" if power else "  the process is killed")

    def draw_power(self) -> bool:
        return self.draws.random() < self.config.power_share

    # Opening

    def create(self) -> None:
        """Creates the log. A crash in the middle leaves no log or an empty one."""
        while not self._created:
            try:
                resources = self._resources()
                self.disk.mkdir(ROOT)
                self.disk.sync_directory("/")
                self.log = create_log(
                    resources,
                    ROOT,
                    TOPIC,
                    0,
                    topic_id=TOPIC_ID,
                    config=self.config.log_config(self._key_name),
                    now_ms=self.now_ms,
                )
                self._created = self.cache_is_intact = True
            except Crashed:
                self.tell("creation is interrupted")
                self.crash(power=self.draw_power())
                self._outcome = None
        self.tell("created")

    def _resources(self) -> LogResources:
        disk = self.sealed.disk(self.disk)
        self.pool = FilePool(disk, self.config.handles_max)
        return LogResources(
            self.pool, IndexCache(200), SpaceGuard(disk, ROOT, self.config.reserve_bytes)
        )

    def pending(self) -> Outcome:
        """Returns the states that the next opening may find."""
        if self._outcome is None:
            self._outcome = self.model.outcome()
        return self._outcome

    def excuse_loss_from(self, offset: int) -> None:
        """Allows a loss from this offset on: bytes rotted there that look like a torn tail."""
        outcome = self.pending()
        outcome.end_min_kill = min(outcome.end_min_kill, offset)
        outcome.end_min_power = min(outcome.end_min_power, offset)

    def note(self, committed: int) -> None:
        """Stores what is synced and what is committed, for the next opening."""
        log = self.log
        noted = LogOffsets(TOPIC_ID, log.generation, log.recovery_point, committed)
        self._notes[noted] = tuple(
            batch for batch in self.model.ledger if batch.next_offset <= committed
        )
        self.committed_offset = committed
        with disk_trouble("the offset checkpoint could not be written"):
            write_offsets(self.disk, ROOT, {DIRECTORY.rpartition("/")[2]: noted})
        log.on_offsets_noted(noted.generation)

    def known(self) -> LogOffsets | None:
        """Returns the stored offsets that the next opening uses."""
        try:
            return read_offsets(self.disk, ROOT).get(DIRECTORY.rpartition("/")[2])
        except CorruptFile as error:
            if OFFSETS not in self.rotted:
                raise Broken(f"the offset checkpoint cannot be decoded: {error}") from error
            return None

    def _open(self) -> RecoveryReport:
        self.log, report = open_log(
            self._resources(),
            DIRECTORY,
            self.config.log_config(self._key_name),
            self.now_ms,
            known=self.known(),
            cache_is_intact=self.cache_is_intact,
        )
        self.cache_is_intact = True
        return report

    def recover(self) -> None:
        """Opens the log until it works, checks the result, and continues with it."""
        outcome = self.pending()
        while True:
            self.now_ms += 10
            try:
                known = self.known()
                self._open_without_keys()
                report = self._open()
                break
            except Crashed:
                self.count("crashes while opening")
                self.tell("opening is interrupted")
                self.crash(power=self.draw_power())
            except OSError as error:
                self._open_failed(error)
            except StorageError as error:
                if self.rotted:
                    raise LoudLoss(f"{type(error).__name__}: {error}") from error
                raise Broken(f"the log does not open: {type(error).__name__}: {error}") from error
        self._outcome = None
        self._note(report)
        self._judge(outcome)
        self._judge_committed(known)

    def _open_without_keys(self) -> None:
        """In some encrypted cases, first opens the log while the key provider is down. If that
        fails, it must have changed nothing that counts."""
        if self.config.encryption == "mixed":
            self._key_name = TOPIC_KEY if self.draws.random() < 0.5 else ""
        if self.config.encryption == "off" or self.draws.random() >= 0.15:
            return
        self.sealed.keys.is_down = True
        intact = self.cache_is_intact
        try:
            self._open()
            self.count("opened without its key")
        except KeyUnavailable as error:
            self.tell(f"opening fails: {error}")
            self.count("keys missed")
        finally:
            self.sealed.keys.is_down = False
            self.cache_is_intact = intact
        self.disk.kill()

    def _open_failed(self, error: OSError) -> None:
        """Handles a failed opening. A disk fault may prevent it, but only as long as the
        fault lasts."""
        if not self.fault_armed:
            raise Broken(f"the log does not open: {error!r}") from error
        self.tell(f"opening fails: {error}")
        self.count("failed openings")
        # It may have been an fsync, and the broker has noted that a log failed.
        self.cache_is_intact = False
        self.crash(power=False)
        self.heal()

    def heal(self) -> None:
        self.disk.heal()
        self.disk.set_faults(self.faults)
        self.disk.capacity_bytes = 1 << 40
        self.fault_armed = False

    def _note(self, report: RecoveryReport) -> None:
        self.count("opened cleanly" if report.clean else "recovered")
        self.count("tails cut", bool(report.cut_bytes))
        self.count("quarantines", bool(report.damage))
        self.tell(
            f"opened {'cleanly' if report.clean else 'by scanning'}: "
            f"[{self.log.log_start_offset}, {self.log.end_offset}) in "
            f"{[segment.base_offset for segment in self.log.segments]}, "
            f"cut {report.cut_bytes}, notes {report.notes}"
        )

    # Checking the result

    def _judge(self, outcome: Outcome) -> None:
        log, model = self.log, self.model
        check_bounds(log)
        if log.damage and not self.rotted & {".log", "penstock-checkpoint"}:
            raise Broken(f"damage is reported although no bit was flipped: {log.damage}")
        kept = [batch for batch in outcome.ledger if batch.base_offset < outcome.end_min]
        if kept and log.end_offset < kept[-1].next_offset:
            kind = "power loss" if outcome.power_lost else "kill"
            raise Broken(
                f"offsets [{log.end_offset}, {kept[-1].next_offset}), "
                f"{'flushed' if outcome.power_lost else 'written'}, are lost by a {kind}"
            )
        start_min = 0 if "penstock-checkpoint" in self.rotted else outcome.start_min
        if not start_min <= log.log_start_offset <= outcome.start_max:
            raise Broken(
                f"the log starts at {log.log_start_offset}, not in "
                f"[{start_min}, {outcome.start_max}]"
            )
        ends = {batch.next_offset for batch in outcome.ledger}
        ends.update((model.end, outcome.end_min_kill, log.log_start_offset))
        if log.end_offset not in ends and not log.damage:
            raise Broken(f"the log ends at {log.end_offset}, but no batch ends there")
        if log.log_start_offset < outcome.start_min:
            self._check_moved_start(outcome)
        model.adopt(outcome, log.log_start_offset, log.end_offset)
        self.check(may_be_cleaned=outcome.may_be_cleaned)

    def _judge_committed(self, known: LogOffsets | None) -> None:
        """Checks that the restored high watermark covers only committed batches, and all that
        was stored."""
        log, offset = self.log, self.log.restored_high_watermark
        self.committed_offset = offset
        if known is None:
            if offset:
                raise Broken(f"no offsets were stored, but the high watermark is {offset}")
            return
        committed = {batch.base_offset: batch for batch in self._notes[known]}
        for batch in self.model.ledger:
            was = committed.get(batch.base_offset)
            if batch.base_offset < offset and (was is None or was.data != batch.data):
                raise Broken(f"the high watermark is {offset}, but {batch} was not committed")
        if log.generation == known.generation and not self.rotted:
            due = min(known.high_watermark, log.end_offset)
            if offset != due:
                raise Broken(f"the high watermark is {offset}, but {due} was stored")
            self.count("high watermarks restored", offset > 0)
        elif not self.rotted:
            self.count("high watermarks restored after a truncation", offset > 0)

    def _check_moved_start(self, outcome: Outcome) -> None:
        """Checks a log that lost its checkpoint: it begins where its files do, and the rest must
        be correct."""
        found, refused = read_all(self.log, lambda: 1000)
        kept = [batch for batch in found if batch.base_offset >= outcome.start_max]
        due = [batch for batch in outcome.contents if batch.base_offset >= outcome.start_max]
        due = [batch for batch in due if batch.next_offset <= self.log.end_offset]
        if not outcome.may_be_cleaned:
            check_contents(self.log, due, kept, refused)
        raise LoudLoss(f"the checkpoint was rebuilt, and the log starts at {self.log}")

    def check(self, *, may_be_cleaned: bool = False) -> None:
        """Checks everything about the open log, against the model and against itself.

        The process does not crash meanwhile, although reading may write: a wrong index is repaired
        when it is found.
        """
        fuse = self._fuse
        self.disarm()
        try:
            self._check(may_be_cleaned=may_be_cleaned)
        except StorageError as error:
            if not self.rotted:
                raise Broken(f"a check was refused: {type(error).__name__}: {error}") from error
            raise LoudLoss(f"{type(error).__name__}: {error}") from error
        if fuse >= 0:
            self.arm(fuse)

    def _check(self, *, may_be_cleaned: bool) -> None:
        log, model = self.log, self.model
        self.disk.heal()
        self.disk.set_faults(self.faults)
        check_bounds(log)
        found, refused = read_all(log, lambda: self.draws.randrange(1, 1000))
        if refused and not self.rotted:
            raise Broken(f"reads of {refused} were refused although no bit was flipped")
        if may_be_cleaned:
            self._adopt_cleaned(found)
        check_contents(log, model.readable(), found, refused)
        if refused:
            raise LoudLoss(f"offsets {refused} are refused")
        damaged = bool(log.damage)
        if not damaged:
            check_indexes(log, rotted=bool(self.rotted))
        if not damaged and ".log" not in self.rotted:
            check_producers(log, model)
        if not damaged and "penstock-checkpoint" not in self.rotted:
            check_epochs(log, model)
        if not damaged and log.end_offset > log.log_start_offset:
            self.check_reads(12 if self.rotted else 3)
        self._check_handles()

    def check_reads(self, times: int) -> None:
        log, draws = self.log, self.draws
        span = log.end_offset - log.log_start_offset + 1
        for _ in range(times):
            offset = log.log_start_offset + draws.randrange(0, span)
            upper = None
            if draws.random() < 0.5:
                upper = log.log_start_offset + draws.randrange(0, span)
            check_read(log, self.model, offset, draws.randrange(0, 1500), upper)
            if self.config.transactions:
                self.count(
                    "committed reads amid aborted", log.aborted_entries(offset, offset + 9) != []
                )
                check_committed(log, self.model, offset, draws.randrange(0, 1500))
            if draws.random() < 0.4:
                check_time(log, self.model, self.some_time())

    def some_time(self) -> int:
        return START_MS + self.draws.randrange(-10, max(1, self.now_ms - START_MS) + 20)

    def _adopt_cleaned(self, found: list[ModelBatch]) -> None:
        model = self.model
        before = model.readable()
        wrong = thinned_wrongly(
            before, found, self.uncleanable_offset, self.now_ms, model.aborted()
        )
        if wrong:
            raise Broken(wrong)
        if [batch.data for batch in found] != [batch.data for batch in before]:
            below = [batch for batch in model.contents if batch.last_offset < model.log_start]
            model.contents = [*below, *found]
            self.count("compactions seen")

    def _check_handles(self) -> None:
        open_paths = self.disk.open_paths()
        if len(open_paths) > len(self.pool):
            raise Broken(f"{len(open_paths)} files are open, but the pool has {len(self.pool)}")

    def check_idempotent(self) -> None:
        """Checks that opening once more, with nothing in between, changes neither files nor log."""
        before, files = self._state(), self.sealed.contents(self.disk)
        self.disk.kill()
        self.now_ms += 10
        report = self._open()
        self.count("opened twice")
        self.tell("opened once more")
        after = self._state()
        if before != after:
            raise Broken(f"opening twice differs: {before} and then {after}")
        if report.cut_bytes:
            raise Broken(f"opening twice cut {report.cut_bytes} bytes the second time")
        again = self.sealed.contents(self.disk)
        if files != again:
            changed = sorted(
                path for path in files.keys() | again.keys() if files.get(path) != again.get(path)
            )
            raise Broken(f"opening twice changed {changed}")

    def _state(self) -> tuple[object, ...]:
        log = self.log
        return (
            log.log_start_offset,
            log.end_offset,
            log.recovery_point,
            log.cleaned_offset,
            log.epochs.entries,
            tuple(replace(held, reason="") for held in log.damage),
            tuple(sorted(log.producers.entries(5))),
            tuple((segment.base_offset, segment.size) for segment in log.segments),
            tuple(log.aborted_entries(log.log_start_offset, log.end_offset)),
        )
