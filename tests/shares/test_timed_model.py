"""Share partitions on logs with due times, expiry and ids, with failovers, against a simple model.

The records are real batches, and are read as a broker reads them: from the start offset on, or one
window of deduplication before it.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.shares.events import AcquiredRange, LogBatch
from penstock.shares.record_marks import MarkReader, MarkRules, MarkTable
from penstock.shares.settings import ShareSettings
from penstock.shares.states import AckType, AcquireMode

from .driver import ALL, Driver

WINDOW_MS = 200
RULES = MarkRules(timed=True, dedup_window_ms=WINDOW_MS)
SETTINGS = ShareSettings(in_flight_max=12, delivery_limit=100, record_lock_ms=5_000)


class Job(NamedTuple):
    time_ms: int
    job_id: bytes | None
    due_ms: int
    expires_ms: int | None


class TimedDriver(Driver):
    def __init__(self) -> None:
        super().__init__(SETTINGS)
        self.jobs: list[Job] = []
        self.data: dict[int, memoryview] = {}
        self.accepted: set[int] = set()
        self.expired: set[int] = set()
        self.begin_scan()

    def put(self, specs: list[tuple[bytes | None, int, int | None]], codec: Codec) -> None:
        """Appends a batch. Each record has an id, a delay, and a time to live."""
        now_ms, records = self.now.wall_ms, []
        for job_id, delay_ms, ttl_ms in specs:
            due_ms = now_ms + delay_ms
            expires_ms = None if ttl_ms is None else due_ms + ttl_ms
            headers: list[tuple[str, bytes | None]] = []
            if delay_ms:
                headers.append(("penstock-deliver-at", b"%d" % due_ms))
            if expires_ms is not None:
                headers.append(("penstock-expires-at", b"%d" % expires_ms))
            if job_id is not None:
                headers.append(("penstock-dedup-id", job_id))
            records.append(Record(len(self.jobs), now_ms, None, b"job", tuple(headers)))
            self.jobs.append(Job(now_ms, job_id, due_ms, expires_ms))
        batch = self.append(len(specs))
        self.data[batch.first] = memoryview(build_batch(records, codec=codec))

    # Scans, as `broker.shares.record_scans` makes them

    def begin_scan(self) -> None:
        start = self.machine.start_offset
        time_ms = self.jobs[start].time_ms if start < len(self.jobs) else self.now.wall_ms
        first = next(
            (at for at, job in enumerate(self.jobs) if job.time_ms >= time_ms - WINDOW_MS), start
        )
        self.reader, self.table = MarkReader(RULES), MarkTable(min(first, start))

    def read(self, offset: int) -> tuple[LogBatch, ...]:
        batches = super().read(offset)
        unread = [each for each in self.log if each.last >= self.table.position]
        marks = self.reader.read((each, self.data[each.first]) for each in unread)
        self.table.extend(marks, self.log_end)
        self.table.forget_below(self.machine.start_offset)
        return tuple(part for each in batches for part in self.table.divide(each))

    def fail_over(self, *, written: int = 0, truncate_to: int | None = None) -> None:
        super().fail_over(written=written, truncate_to=truncate_to)
        self.begin_scan()

    # The model

    def is_duplicate(self, offset: int) -> bool:
        job = self.jobs[offset]
        same = [each for each in self.jobs[:offset] if each.job_id == job.job_id]
        return job.job_id is not None and bool(same) and job.time_ms - same[-1].time_ms < WINDOW_MS

    def take(self, max_records: int, mode: AcquireMode) -> tuple[AcquiredRange, ...]:
        ranges = self.fetch("anna", max_records, mode=mode)
        now_ms = self.now.wall_ms
        for first, last, _ in ranges:
            for offset in range(first, last + 1):
                job = self.jobs[offset]
                assert job.due_ms <= now_ms, f"{offset} is delivered before its time"
                assert job.expires_ms is None or now_ms < job.expires_ms, f"{offset} has expired"
                assert not self.is_duplicate(offset), f"{offset} is a duplicate"
                assert offset not in self.accepted, f"{offset} is done"
        return ranges

    def settle(self, ranges: tuple[AcquiredRange, ...], kind: AckType) -> None:
        for first, last, _ in ranges:
            self.ack(first, last, kind)
            if kind is AckType.ACCEPT:
                self.accepted |= set(range(first, last + 1))

    def finish(self) -> None:
        """Takes everything. What was not delivered was a duplicate, or has expired."""
        self.end_session()
        idle = 0
        while idle < 3:
            taken = self.take(ALL, AcquireMode.BATCH_OPTIMIZED)
            self.settle(taken, AckType.ACCEPT)
            if not taken:
                self.wait(1000)
            idle = 0 if taken else idle + 1
        assert self.machine.start_offset == len(self.jobs)
        for offset, job in enumerate(self.jobs):
            may_be_missing = job.expires_ms is not None or self.is_duplicate(offset)
            assert offset in self.accepted or may_be_missing, f"{offset} is lost"


jobs = st.tuples(
    st.sampled_from([None, b"a", b"a", b"b"]),
    st.sampled_from([0, 0, 0, 0, 1, 50, 300, 900]),
    st.sampled_from([None, None, None, None, 1, 100, 400]),
)
puts = st.tuples(
    st.just("put"),
    st.lists(jobs, min_size=1, max_size=4),
    st.sampled_from([Codec.NONE, Codec.GZIP]),
)
takes = st.tuples(
    st.just("take"),
    st.sampled_from([1, 3, ALL]),
    st.sampled_from(list(AcquireMode)),
    st.sampled_from([AckType.ACCEPT, AckType.ACCEPT, AckType.ACCEPT, AckType.RELEASE, None]),
)
waits = st.tuples(st.just("wait"), st.sampled_from([1, 49, 120, 400]))
failovers = st.tuples(st.just("fail over"))


@settings(deadline=None, max_examples=200)
@given(st.lists(puts | takes | waits | failovers, min_size=4, max_size=40))
def test_no_job_comes_early_late_or_twice_and_none_is_lost(steps: list[tuple[object, ...]]) -> None:
    driver = TimedDriver()
    for step in steps:
        match step:
            case ("put", list() as specs, Codec() as codec):
                driver.put(specs, codec)
            case ("take", int() as count, AcquireMode() as mode, kind):
                ranges = driver.take(count, mode)
                if isinstance(kind, AckType):
                    driver.settle(ranges, kind)
            case ("wait", int() as milliseconds):
                driver.wait(milliseconds)
            case _:
                driver.fail_over()
    driver.finish()
