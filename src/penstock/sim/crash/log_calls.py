"""A log on a simulated disk together with its model: every call on the log is applied to both.

A call that a disk fault prevents must leave the log as it was (`DiskFull`, `DiskTrouble`) or
offline until it is opened again (`LogOffline`). No other error may be raised. A call that a crash
interrupts ends with the log open again, recovered and checked.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.records.batch import stamp
from penstock.sim.crash.log_checks import Broken
from penstock.sim.crash.log_model import ModelBatch, model_batch
from penstock.sim.crash.log_process import Crashed, Flight, LogProcess, LoudLoss
from penstock.storage.cleaner import CleanTask, begin_clean
from penstock.storage.errors import DiskFull, DiskTrouble, LogDamaged, LogOffline, StorageError
from penstock.storage.flush_plan import FlushPlan, lacks_descriptors


class LogCalls:
    """The calls on the log of one process."""

    def __init__(self, process: LogProcess) -> None:
        self._process = process
        self._depth = 0

    def attempt(
        self, name: str, call: Callable[[], object], flight: Flight, *, may_fail: bool = False
    ) -> bool:
        """Runs a call and returns whether it succeeded. If the log went down in it, it is up
        again afterwards."""
        outer, self._process.flight = self._process.flight, flight
        nested = self._depth > 0
        self._depth += 1
        try:
            call()
        except Crashed:
            if nested:
                raise
            self._process.tell(f"{name} is interrupted")
            self._process.count(f"crashes in {name.split(maxsplit=1)[0]}")
            self._process.crash(power=self._process.draw_power())
            self._process.recover()
            return False
        except (DiskFull, DiskTrouble) as error:
            if not self._process.fault_armed:
                raise Broken(f"{name}: {type(error).__name__} without a fault: {error}") from error
            self._process.tell(f"{name}: {error}")
            self._process.count(
                "calls refused for a full disk" if isinstance(error, DiskFull) else "calls refused"
            )
            self._process.flight = outer
            return False
        except StorageError as error:
            if nested:
                raise
            self._process.tell(f"{name}: {type(error).__name__}: {error}")
            self._refused(error)
            return False
        except OSError as error:
            if may_fail:
                raise
            raise Broken(f"{name} raised an OSError: {error!r}") from error
        finally:
            self._depth -= 1
        self._process.flight = outer
        self._process.tell(name)
        return True

    def _refused(self, error: StorageError) -> None:
        # A truncation replays what is left, and gives up the log if that turns out to be damaged.
        met_rot = not isinstance(error, LogOffline) or isinstance(error.__context__, LogDamaged)
        if self._process.rotted and met_rot:
            raise LoudLoss(f"{type(error).__name__}: {error}") from error
        if not self._process.fault_armed:
            raise Broken(f"refused without a fault: {type(error).__name__}: {error}") from error
        self._process.count("went offline" if isinstance(error, LogOffline) else "calls failed")
        # The broker notes at once that a log failed, and does not trust the page cache from
        # then on.
        self._process.cache_is_intact = False
        self._process.heal()
        if isinstance(error, LogOffline):
            self._must_stay_offline()
        self._process.crash(power=self._process.draws.random() < 0.5)
        # After a failed fsync the page cache shows bytes that the disk may not have. Only what had
        # been promised before can be required.
        outcome = self._process.pending()
        outcome.end_min_kill = outcome.end_min_power
        self._process.recover()

    def _must_stay_offline(self) -> None:
        log = self._process.log
        for call in (lambda: log.read(log.end_offset, 1), log.begin_flush):
            try:
                call()
            except LogOffline:
                continue
            raise Broken("an offline log accepts calls again without being reopened")

    def append(self, batch: bytearray, epoch: int) -> bool:
        expected = bytearray(batch)
        stamp(expected, 0, self._process.log.end_offset, epoch)
        coming = model_batch(bytes(expected))
        appended: list[tuple[int, int]] = []

        def call() -> None:
            appended.append(self._process.log.append(batch, epoch, self._process.now_ms))

        if not self.attempt(f"append {coming}", call, Flight(appending=[coming])):
            return False
        if appended[0] != (coming.base_offset, coming.last_offset):
            raise Broken(f"append returned {appended[0]} for {coming}")
        self._process.model.append(coming)
        return True

    def append_replica(self, batches: list[ModelBatch]) -> None:
        chunk = b"".join(batch.data for batch in batches)
        name = f"append_replica {' '.join(map(str, batches))}"
        life, log = (
            self._process.disk.counters["kill"] + self._process.disk.counters["power_loss"],
            self._process.log,
        )
        done = self.attempt(
            name, lambda: log.append_replica(chunk, self._process.now_ms), Flight(appending=batches)
        )
        if (
            done
            or life
            == self._process.disk.counters["kill"] + self._process.disk.counters["power_loss"]
        ):
            # A disk that fills up in the middle keeps the batches before.
            for batch in batches:
                if batch.base_offset < log.end_offset:
                    self._process.model.append(batch)
            if self._process.model.end != log.end_offset:
                raise Broken(f"the log ends at {log.end_offset} after {name}")

    def flush(self, *, checkpoint: bool) -> None:
        end, log = self._process.log.end_offset, self._process.log
        if self.attempt("flush", lambda: log.flush(checkpoint=checkpoint), Flight()):
            self.flushed(end)

    def flushed(self, end: int) -> None:
        if self._process.log.recovery_point < end:
            raise Broken(
                f"after a flush to {end} the recovery point is {self._process.log.recovery_point}"
            )
        # Waiting producers are acknowledged up to the recovery point, even if that is above the
        # flushed end.
        self._process.model.flushed(self._process.log.recovery_point)

    def finish_flush(self, plan: FlushPlan) -> None:
        """Runs a flush plan as a thread does, and then what the event loop does."""
        log = self._process.log

        def call() -> None:
            try:
                plan.run()
            except OSError as error:
                if lacks_descriptors(error):
                    self._process.watch_calls(None)
                    raise log.put_off_flush(plan, error) from error
                log.fail_flush(plan, error)
                raise LogOffline(f"{log.failure}") from error

        if self.attempt("flush on a thread", call, Flight()):
            self._process.watch_calls(None)
            log.end_flush(plan)
            self.flushed(plan.end_offset)
            self._process.tell(f"end_flush to {plan.end_offset}")

    def note(self, committed: int) -> None:
        process = self._process
        self.attempt(f"note {committed}", lambda: process.note(committed), Flight())

    def roll(self) -> None:
        log = self._process.log
        self.attempt("roll", lambda: log.roll(self._process.now_ms), Flight())

    def attempt_reads(self, times: int) -> None:
        self.attempt("read", lambda: self._process.check_reads(times), Flight())

    def truncate(self, offset: int) -> None:
        log = self._process.log
        before = log.end_offset
        if self.attempt(
            f"truncate_to {offset}", lambda: log.truncate_to(offset), Flight(truncating_to=offset)
        ):
            lowest = max(self._process.model.cut_point(offset), log.log_start_offset)
            if not lowest <= log.end_offset <= max(offset, lowest):
                raise Broken(f"after a truncation to {offset} the log ends at {log.end_offset}")
            self._process.model.truncate(log.end_offset)
            self._process.check()
        elif self._process.log is log and log.end_offset != before:
            raise Broken("a truncation that failed for lack of disk space has cut the log")

    def delete(self, offset: int) -> None:
        log = self._process.log
        if self.attempt(
            f"delete_before {offset}",
            lambda: log.delete_before(offset),
            Flight(deleting_before=offset),
        ):
            self._process.model.delete_before(offset)
            self._process.check()

    def purge(self) -> None:
        self.attempt("purge", self._process.log.purge, Flight())

    def clean(self, meanwhile: Callable[[], None]) -> None:
        """Runs one round of compaction, with other calls on the log while its thread works."""
        log = self._process.log
        # What compaction considers decided must stay so, after any power loss and with any
        # next leader.
        stable = self._process.model.stable_end(log.noted_point)
        tasks: list[CleanTask | None] = []

        def begin() -> None:
            tasks.append(
                begin_clean(
                    log,
                    now_ms=self._process.now_ms,
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
        self._process.uncleanable_offset = min(stable, log.active.base_offset)
        self._process.agreed_offset = max(self._process.agreed_offset, log.noted_point)
        if not self._run_clean(task):
            return
        meanwhile()
        if self._process.log is not log:
            return
        if (
            not self._process.armed
            and self._process.config.crash_chance
            and self._process.draws.random() < 0.4
        ):
            self._process.arm(self._process.draws.randrange(0, 9 * len(task.done) + 2))
        joined = max((len(replaced) for _, replaced in task.done), default=0)
        if not self._process.armed and self._process.config.crash_chance and joined > 1:
            # While joined segments are removed one after the other, only a completed swap preserves
            # their contents. This moment is too short to be hit by chance alone. The clock replaces
            # a random draw here, so that other cases stay the same.
            self._process.arm(5 + self._process.now_ms % (4 * joined + 4))
        flight = Flight(cleaning=True)
        # Also below the log start, where no client reads: producers are replayed from there.
        self._process.model.compacted = True
        self.attempt("install the compacted", lambda: task.install(log), flight)
        if self._process.log is log:
            # If the disk was too full to store the round, the round was swapped in all the same.
            self._process.check(may_be_cleaned=True)

    def _run_clean(self, task: CleanTask) -> bool:
        try:
            return self.attempt("compact", task.run, Flight(), may_fail=True)
        except OSError as error:
            self._process.tell(f"compacting fails: {error}")
            return False

    def close(self) -> bool:
        end, log = self._process.log.end_offset, self._process.log
        if not self.attempt("close", log.close, Flight()):
            return False
        self._process.model.flushed(end)
        self._process.pool.close()
        if self._process.disk.open_paths():
            raise Broken(f"closed, and files are still open: {self._process.disk.open_paths()}")
        return True
