"""Hypothesis searches for the shortest sequence of calls and crashes that breaks the log.

The model and the checks are those of the crash cases. Here the sequence is not drawn from a seed
but searched, and shrunk when it fails.
"""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.sim.crash.config import CaseConfig
from penstock.sim.crash.log_calls import LogCalls
from penstock.sim.crash.log_checks import check_bounds
from penstock.sim.crash.log_process import LogProcess
from penstock.sim.disk.disk import SimDisk

FRACTIONS = st.integers(0, 100)
VALUES = st.lists(st.binary(max_size=60) | st.none(), min_size=1, max_size=3)


class LogMachine(RuleBasedStateMachine):
    compact = False

    @initialize(
        seed=st.integers(0, 1000),
        segment_bytes=st.sampled_from([200, 500, 2000]),
        index_interval_bytes=st.sampled_from([0, 100]),
    )
    def start(self, seed: int, segment_bytes: int, index_interval_bytes: int) -> None:
        config = CaseConfig(
            operations=0,
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            segment_index_bytes=1 << 20,
            handles_max=4,
            reserve_bytes=0,
            codecs=(Codec.NONE,),
            producers=1,
            transactions=False,
            compact=self.compact,
            value_bytes_max=60,
            gaps=False,
            crash_chance=0.0,
            power_share=0.5,
            fault_chance=0.0,
            short_write_chance=0.0,
            without=(),
        )
        disk = SimDisk(Random(seed), Random(seed + 1))
        self.process = LogProcess(config, disk, Random(seed + 2), Random(seed + 3))
        self.calls = LogCalls(self.process)
        self.process.create()
        self.epoch = 0

    def offset_at(self, fraction: int) -> int:
        log = self.process.log
        return log.log_start_offset + (log.end_offset - log.log_start_offset) * fraction // 100

    @rule(values=VALUES, key=st.integers(0, 3), with_producer=st.booleans())
    def append(self, values: list[bytes | None], key: int, with_producer: bool) -> None:
        records = [
            Record(number, self.process.now_ms + number, b"key-%d" % key, value)
            for number, value in enumerate(values)
        ]
        sequence = sum(
            len(batch.records) and batch.header.last_offset_delta + 1
            for batch in self.process.model.ledger
            if batch.header.has_producer
        )
        batch = build_batch(records)
        if with_producer:
            batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
        self.process.now_ms += 7
        self.calls.append(batch, self.epoch)

    @rule()
    def lead_anew(self) -> None:
        self.epoch += 1

    @rule(checkpoint=st.booleans())
    def flush(self, checkpoint: bool) -> None:
        self.calls.flush(checkpoint=checkpoint)

    @rule()
    def roll(self) -> None:
        self.calls.roll()

    @rule(fraction=FRACTIONS)
    def truncate(self, fraction: int) -> None:
        self.calls.truncate(max(self.offset_at(fraction), self.process.log.cleaned_offset))

    @rule(fraction=FRACTIONS, purge=st.booleans())
    def retain(self, fraction: int, purge: bool) -> None:
        self.calls.delete(self.offset_at(fraction))
        if purge:
            self.calls.purge()

    @precondition(lambda self: self.compact)
    @rule()
    def compact_log(self) -> None:
        self.calls.clean(lambda: None)

    @rule(calls=st.integers(0, 15))
    def be_about_to_die(self, calls: int) -> None:
        self.process.arm(calls)

    @rule(power=st.booleans(), twice=st.booleans())
    def crash_and_recover(self, power: bool, twice: bool) -> None:
        self.process.crash(power=power)
        self.process.recover()
        if twice:
            self.process.check_idempotent()

    @rule()
    def stop_and_start(self) -> None:
        if self.calls.close():
            self.process.recover()

    @precondition(lambda self: self.process.log.end_offset > self.process.log.log_start_offset)
    @rule()
    def read(self) -> None:
        self.process.check_reads(3)

    @invariant()
    def bounds_hold(self) -> None:
        check_bounds(self.process.log)

    def teardown(self) -> None:
        if hasattr(self, "process"):
            self.process.disarm()
            self.process.check()


class CompactedLogMachine(LogMachine):
    compact = True


QUICK = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLog = LogMachine.TestCase
TestLog.settings = QUICK
TestCompactedLog = CompactedLogMachine.TestCase
TestCompactedLog.settings = QUICK
