"""Hypothesis searches for the shortest sequence of events that breaks a share partition.

After every event the machine is compared with `record_model`. At the end everything is delivered
and accepted: no record is lost, none is accepted twice, and a new leader finds the same state.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.shares.events import BatchKind
from penstock.shares.settings import ShareSettings
from penstock.shares.states import DONE, AckType, AcquireMode, RecordState
from penstock.wire.errors import ErrorCode

from .driver import WALL_AHEAD_MS, Driver
from .letter_topic import LetterTopic
from .record_model import RecordModel

MEMBERS = st.sampled_from(["anna", "ben", "cleo"])
ACK_TYPES = st.sampled_from([AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.GAP])
LOCK_MS = 1000


class SharePartitionMachine(RuleBasedStateMachine):
    """Writes stay under way until a rule commits them, or lets them fail."""

    @initialize(
        limit=st.sampled_from([2, 2, 3, 5]),
        window=st.sampled_from([1, 5, 20, 1000]),
        backoff_ms=st.sampled_from([0, 300]),
        dead_letters=st.booleans(),
    )
    def start(self, limit: int, window: int, backoff_ms: int, dead_letters: bool) -> None:
        rules = ShareSettings(
            record_lock_ms=LOCK_MS,
            delivery_limit=limit,
            in_flight_max=window,
            backoff_ms=backoff_ms,
            backoff_max_ms=backoff_ms * 4,
            dead_letter_topic="dlq.jobs" if dead_letters else "",
        )
        self.letter_topic = LetterTopic()
        self.driver = Driver(rules, holds_writes=True)
        self.model = RecordModel(rules)
        self.known_writes: set[int] = set()
        self.batch_max = 0

    def note_writes(self, *, released: bool = False) -> None:
        """The model follows new writes. With `released`, they release what members hold."""
        for write in self.driver.writes:
            if write.write_id not in self.known_writes:
                self.known_writes.add(write.write_id)
                self.model.on_write(write.write_id, write.delta, WALL_AHEAD_MS, is_release=released)

    @rule(
        sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
        kind=st.sampled_from([*[BatchKind.DATA] * 4, BatchKind.CONTROL, BatchKind.ABORTED]),
        hole=st.sampled_from([0, 0, 0, 2]),
    )
    def append(self, sizes: list[int], kind: BatchKind, hole: int) -> None:
        self.driver.leave_hole(hole)
        for size in sizes:
            self.model.on_append(self.driver.append(size, kind))
            self.batch_max = max(self.batch_max, size + hole)

    @rule(
        member=MEMBERS,
        max_records=st.integers(1, 12),
        mode=st.sampled_from(AcquireMode),
        batch_size=st.integers(0, 4),
    )
    def fetch(self, member: str, max_records: int, mode: AcquireMode, batch_size: int) -> None:
        driver, machine = self.driver, self.driver.machine
        offset = machine.next_fetch_offset(driver.now)
        before = (machine.start_offset, machine.end_offset, machine.occupancy())
        ranges = driver.fetch(member, max_records, mode=mode, batch_size=batch_size)
        self.model.on_acquired(member, ranges, driver.ticks_ms)
        if mode is AcquireMode.RECORD_LIMIT:
            assert sum(last - first + 1 for first, last, _ in ranges) <= max_records
        if offset is not None and driver.read(offset):
            after = (machine.start_offset, machine.end_offset, machine.occupancy())
            assert after != before, "there was something to acquire, and nothing happened"

    @rule(member=MEMBERS, data=st.data(), types=st.lists(ACK_TYPES, min_size=1, max_size=6))
    def acknowledge(self, member: str, data: st.DataObject, types: list[AckType]) -> None:
        driver, machine = self.driver, self.driver.machine
        first = data.draw(st.integers(self.model.log_start, max(machine.end_offset, 1)))
        last = first + (len(types) - 1 if len(types) > 1 else data.draw(st.integers(0, 8)))
        window = (machine.start_offset, machine.end_offset)
        is_allowed = self.model.may_acknowledge(member, first, last, *window)
        is_all_done = last < window[0]
        token = driver.acknowledge(first, last, *types, member=member)
        if not is_allowed:
            assert driver.answers.pop(token) is ErrorCode.INVALID_RECORD_STATE
        elif is_all_done:
            assert driver.answers.pop(token) is ErrorCode.NONE
        else:
            assert token not in driver.answers
            for index, offset in enumerate(range(first, last + 1)):
                if offset >= window[0]:
                    kind = types[index] if len(types) > 1 else types[0]
                    expected = self.model.target_of(offset, kind)
                    self.note_writes()
                    assert self.model.get(offset).target is expected

    @rule(member=MEMBERS, data=st.data(), size=st.integers(1, 5))
    def renew(self, member: str, data: st.DataObject, size: int) -> None:
        driver, machine = self.driver, self.driver.machine
        window = (machine.start_offset, machine.end_offset)
        first = data.draw(st.integers(window[0], max(window[1], window[0])))
        is_allowed = self.model.may_acknowledge(member, first, first + size - 1, *window)
        error = driver.ack(first, first + size - 1, AckType.RENEW, member=member, is_renew=True)
        assert error is (ErrorCode.NONE if is_allowed else ErrorCode.INVALID_RECORD_STATE)
        if is_allowed:
            for offset in range(first, first + size):
                self.model.get(offset).lock_until_ms = driver.ticks_ms + LOCK_MS

    @rule(member=MEMBERS, with_backoff=st.booleans())
    def end_session(self, member: str, with_backoff: bool) -> None:
        self.driver.end_session(member, with_backoff=with_backoff)
        self.note_writes(released=True)
        self.model.on_released(member, self.driver.ticks_ms)

    @rule(milliseconds=st.sampled_from([1, 200, 999, 1000, 5000]))
    def wait(self, milliseconds: int) -> None:
        self.driver.wait(milliseconds)
        self.note_writes(released=True)

    @precondition(lambda self: self.driver.writes)
    @rule()
    def commit(self) -> None:
        write_id = self.driver.writes[0].write_id
        self.driver.commit()
        self.model.on_committed(write_id)

    @precondition(lambda self: self.driver.writes)
    @rule()
    def fail(self) -> None:
        self.model.on_failed(self.driver.writes[0].write_id)
        self.driver.fail()

    @precondition(lambda self: self.driver.letters)
    @rule()
    def write_dead_letters(self) -> None:
        order = self.driver.letters[-1]
        self.driver.letters.clear()
        self.driver.handle(self.letter_topic.write(order))

    @precondition(lambda self: self.driver.letters)
    @rule(count=st.integers(1, 5))
    def write_dead_letters_without_an_answer(self, count: int) -> None:
        self.letter_topic.write(self.driver.letters[-1], count)

    @rule(distance=st.integers(1, 8))
    def move_log_start(self, distance: int) -> None:
        offset = min(self.model.log_start + distance, self.driver.log_end)
        self.model.log_start = offset
        self.driver.move_log_start(offset)

    @rule(written=st.integers(0, 3))
    def fail_over(self, written: int) -> None:
        for position, write in enumerate(self.driver.writes):
            if position < written:
                self.model.on_committed(write.write_id)
            else:
                self.model.on_failed(write.write_id)
        self.driver.fail_over(written=written)
        self.driver.move_log_start(self.model.log_start)
        self.known_writes.clear()
        self.model.on_failover(self.driver.ticks_ms)

    @invariant()
    def the_model_agrees(self) -> None:
        self.note_writes()
        driver, machine = self.driver, self.driver.machine
        machine.verify()
        start, end = machine.start_offset, machine.end_offset
        self.model.check(machine.spans, start, end, driver.ticks_ms)
        places = sum(1 if span.is_passed_over else len(span) for span in machine.spans)
        assert len(machine.spans) <= places
        assert places < driver.settings.in_flight_max + self.batch_max + 1
        undone = sum(
            offset in self.model.data
            for span in machine.spans
            if span.state not in DONE
            for offset in range(span.first, span.last + 1)
        )
        assert undone < 2 * driver.settings.in_flight_max
        assert all(count == 1 for count in self.model.accepted.values())
        touched = sum(1 for record in self.model.records.values() if record.count)
        assert len(machine.spans) <= 2 * touched + 2 * len(driver.log) + 2

    @invariant()
    def a_new_leader_would_find_the_same(self) -> None:
        image = self.driver.replayed()
        stored = {
            offset: (span.state, span.delivery_count)
            for span in image.spans
            for offset in range(span.first, span.last + 1)
        }
        for offset in self.model.data:
            record = self.model.get(offset)
            if offset < self.model.log_start:
                continue
            if offset < image.start_offset:
                assert record.stored_state in DONE, offset
            else:
                expected = (record.stored_state, record.stored_count)
                assert stored.get(offset, (RecordState.AVAILABLE, 0)) == expected, offset

    def teardown(self) -> None:
        """Everything is delivered and accepted in the end."""
        if not hasattr(self, "driver"):
            return
        driver, machine = self.driver, self.driver.machine
        rounds = 0
        while machine.start_offset < driver.log_end:
            rounds += 1
            assert rounds < 1000, "records are stuck"
            if driver.writes:
                self.commit()
            elif driver.letters:
                self.write_dead_letters()
            else:
                self.fetch("dora", 100, AcquireMode.BATCH_OPTIMIZED, 0)
                self.note_writes()
                held = [span for span in machine.spans if span.is_held_by("dora")]
                for span in [(span.first, span.last) for span in held]:
                    driver.acknowledge(*span, member="dora")
                if not held:
                    self.wait(LOCK_MS)
            self.the_model_agrees()
        letters = self.letter_topic.offsets
        assert len(set(letters)) == len(letters), "a dead letter was written twice"
        for offset in self.model.data:
            if offset >= self.model.log_start:
                assert (offset in self.model.accepted) != (offset in self.model.given_up)
                assert offset not in letters or offset in self.model.given_up


TestSharePartitionModel = SharePartitionMachine.TestCase
TestSharePartitionModel.settings = settings(
    deadline=None,
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
