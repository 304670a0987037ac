"""A log on a simulated disk together with its model: every call on the log is applied to both.

A call that a disk fault prevents must leave the log as it was (`DiskFull`, `DiskTrouble`) or
offline until it is opened again (`LogOffline`). No other error may be raised. A call that a crash
interrupts ends with the log open again, recovered and checked.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.records.batch import stamp
from penstock.sim.crash.config import CaseConfig, CaseDraws
from penstock.sim.crash.log_checks import Broken
from penstock.sim.crash.log_model import ModelBatch, model_batch
from penstock.sim.crash.log_process import Crashed, Flight, LogProcess, LoudLoss
from penstock.sim.disk.disk import SimDisk
from penstock.storage.cleaner import CleanTask, begin_clean
from penstock.storage.errors import DiskFull, DiskTrouble, LogDamaged, LogOffline, StorageError
from penstock.storage.flush import FlushPlan, lacks_descriptors


class LogRig(LogProcess):
    def __init__(self, config: CaseConfig, disk: SimDisk, draws: CaseDraws) -> None:
        super().__init__(config, disk, draws)
        self._depth = 0

    def attempt(
        self, name: str, call: Callable[[], object], flight: Flight, *, may_fail: bool = False
    ) -> bool:
        """Runs a call and returns whether it succeeded. If the log went down in it, it is up
        again afterwards."""
        outer, self.flight = self.flight, flight
        nested = self._depth > 0
        self._depth += 1
        try:
            call()
        except Crashed:
            if nested:
                raise
            self.tell(f"{name} is interrupted")
            self.count(f"crashes in {name.split(maxsplit=1)[0]}")
            self.crash(power=self.draw_power())
            self.recover()
            return False
        except (DiskFull, DiskTrouble) as error:
            if not self.fault_armed:
                raise Broken(f"{name}: {type(error).__name__} without a fault: {error}") from error
            self.tell(f"{name}: {error}")
            self.count(
                "calls refused for a full disk" if isinstance(error, DiskFull) else "calls refused"
            )
            self.flight = outer
            return False
        except StorageError as error:
            if nested:
                raise
            self.tell(f"{name}: {type(error).__name__}: {error}")
            self._refused(error)
            return False
        except OSError as error:
            if may_fail:
                raise
            raise Broken(f"{name} raised an OSError: {error!r}") from error
        finally:
            self._depth -= 1
        self.flight = outer
        self.tell(name)
        return True

    def _refused(self, error: StorageError) -> None:
        # A truncation replays what is left, and gives up the log if that turns out to be damaged.
        met_rot = not isinstance(error, LogOffline) or isinstance(error.__context__, LogDamaged)
        if self.rotted and met_rot:
            raise LoudLoss(f"{type(error).__name__}: {error}") from error
        if not self.fault_armed:
            raise Broken(f"refused without a fault: {type(error).__name__}: {error}") from error
        self.count("went offline" if isinstance(error, LogOffline) else "calls failed")
        # The broker notes at once that a log failed, and does not trust the page cache from
        # then on.
        self.cache_is_intact = False
        self.heal()
        if isinstance(error, LogOffline):
            self._must_stay_offline()
        self.crash(power=self.draws.random() < 0.5)
        # After a failed fsync the page cache shows bytes that the disk may not have. Only what had
        # been promised before can be required.
        outcome = self.pending()
        outcome.end_min_kill = outcome.end_min_power
        self.recover()

    def _must_stay_offline(self) -> None:
        log = self.log
        for call in (lambda: log.read(log.end_offset, 1), log.begin_flush):
            try:
                call()
            except LogOffline:
                continue
            raise Broken("an offline log accepts calls again without being reopened")

    def append(self, batch: bytearray, epoch: int) -> bool:
        expected = bytearray(batch)
        stamp(expected, 0, self.log.end_offset, epoch)
        coming = model_batch(bytes(expected))
        appended: list[tuple[int, int]] = []

        def call() -> None:
            appended.append(self.log.append(batch, epoch, self.now_ms))

        if not self.attempt(f"append {coming}", call, Flight(appending=[coming])):
            return False
        if appended[0] != (coming.base_offset, coming.last_offset):
            raise Broken(f"append returned {appended[0]} for {coming}")
        self.model.append(coming)
        return True

    def append_replica(self, batches: list[ModelBatch]) -> None:
        chunk = b"".join(batch.data for batch in batches)
        name = f"append_replica {' '.join(map(str, batches))}"
        life, log = self.disk.counters["kill"] + self.disk.counters["power_loss"], self.log
        done = self.attempt(
            name, lambda: log.append_replica(chunk, self.now_ms), Flight(appending=batches)
        )
        if done or life == self.disk.counters["kill"] + self.disk.counters["power_loss"]:
            # A disk that fills up in the middle keeps the batches before.
            for batch in batches:
                if batch.base_offset < log.end_offset:
                    self.model.append(batch)
            if self.model.end != log.end_offset:
                raise Broken(f"the log ends at {log.end_offset} after {name}")

    def flush(self, *, checkpoint: bool) -> None:
        end, log = self.log.end_offset, self.log
        if self.attempt("flush", lambda: log.flush(checkpoint=checkpoint), Flight()):
            self.flushed(end)

    def flushed(self, end: int) -> None:
        if self.log.recovery_point < end:
            raise Broken(f"after a flush to {end} the recovery point is {self.log.recovery_point}")
        # Waiting producers are acknowledged up to the recovery point, even if that is above the
        # flushed end.
        self.model.flushed(self.log.recovery_point)

    def finish_flush(self, plan: FlushPlan) -> None:
        """Runs a flush plan as a thread does, and then what the event loop does."""
        log = self.log

        def call() -> None:
            try:
                plan.run()
            except OSError as error:
                if lacks_descriptors(error):
                    self.watch_calls(None)
                    raise log.put_off_flush(plan, error) from error
                log.fail_flush(plan, error)
                raise LogOffline(f"{log.failure}") from error

        if self.attempt("flush on a thread", call, Flight()):
            self.watch_calls(None)
            log.end_flush(plan)
            self.flushed(plan.end_offset)
            self.tell(f"end_flush to {plan.end_offset}")

    def note(self, committed: int) -> None:
        call = super().note
        self.attempt(f"note {committed}", lambda: call(committed), Flight())

    def roll(self) -> None:
        log = self.log
        self.attempt("roll", lambda: log.roll(self.now_ms), Flight())

    def attempt_reads(self, times: int) -> None:
        self.attempt("read", lambda: self.check_reads(times), Flight())

    def truncate(self, offset: int) -> None:
        log = self.log
        before = log.end_offset
        if self.attempt(
            f"truncate_to {offset}", lambda: log.truncate_to(offset), Flight(truncating_to=offset)
        ):
            lowest = max(self.model.cut_point(offset), log.log_start_offset)
            if not lowest <= log.end_offset <= max(offset, lowest):
                raise Broken(f"after a truncation to {offset} the log ends at {log.end_offset}")
            self.model.truncate(log.end_offset)
            self.check()
        elif self.log is log and log.end_offset != before:
            raise Broken("a truncation that failed for lack of disk space has cut the log")

    def delete(self, offset: int) -> None:
        log = self.log
        if self.attempt(
            f"delete_before {offset}",
            lambda: log.delete_before(offset),
            Flight(deleting_before=offset),
        ):
            self.model.delete_before(offset)
            self.check()

    def purge(self) -> None:
        self.attempt("purge", self.log.purge, Flight())

    def clean(self, meanwhile: Callable[[], None]) -> None:
        """Runs one round of compaction, with other calls on the log while its thread works."""
        log = self.log
        # What compaction considers decided must stay so, after any power loss and with any
        # next leader.
        stable = self.model.stable_end(log.noted_point)
        tasks: list[CleanTask | None] = []

        def begin() -> None:
            tasks.append(
                begin_clean(
                    log,
                    now_ms=self.now_ms,
                    last_stable_offset=stable,
                    map_bytes_max=4000,
                    force=True,
                )
            )

        if not self.attempt("begin to compact", begin, Flight()):
            return
        task = tasks[0]
        if task is None:
            return
        self.uncleanable_offset = min(stable, log.active.base_offset)
        self.agreed_offset = max(self.agreed_offset, log.noted_point)
        if not self._run_clean(task):
            return
        meanwhile()
        if self.log is not log:
            return
        if not self.armed and self.config.crash_chance and self.draws.random() < 0.4:
            self.arm(self.draws.randrange(0, 9 * len(task.done) + 2))
        joined = max((len(replaced) for _, replaced in task.done), default=0)
        if not self.armed and self.config.crash_chance and joined > 1:
            # While joined segments are removed one after the other, only a completed swap preserves
            # their contents. This moment is too short to be hit by chance alone. The clock replaces
            # a random draw here, so that other cases stay the same.
            self.arm(5 + self.now_ms % (4 * joined + 4))
        flight = Flight(cleaning=True)
        # Also below the log start, where no client reads: producers are replayed from there.
        self.model.compacted = True
        self.attempt("install the compacted", lambda: task.install(log), flight)
        if self.log is log:
            # If the disk was too full to store the round, the round was swapped in all the same.
            self.check(may_be_cleaned=True)

    def _run_clean(self, task: CleanTask) -> bool:
        try:
            return self.attempt("compact", task.run, Flight(), may_fail=True)
        except OSError as error:
            self.tell(f"compacting fails: {error}")
            return False

    def close(self) -> bool:
        end, log = self.log.end_offset, self.log
        if not self.attempt("close", log.close, Flight()):
            return False
        self.model.flushed(end)
        self.pool.close()
        if self.disk.open_paths():
            raise Broken(f"closed, and files are still open: {self.disk.open_paths()}")
        return True
