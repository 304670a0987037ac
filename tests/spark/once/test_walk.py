"""Simulates the exactly-once sink's protocol, with the real coordinator, under faults.

The producer state of partitions is real as well. Drivers crash or continue as zombies, tasks run
twice at the same time, the network loses and repeats requests, and coordinators and leaders crash
at any moment.

A run is what Spark does between a start and a crash: for each batch a plan, tasks that write in
their own transactions, and a commit. The next run begins with the first batch that the checkpoint
does not record as done, while its predecessor may still run. At the end every batch up to the
stored progress is readable exactly once, completely and in order, none beyond it, and no
transaction is open.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import pytest

from penstock.client.model import OpenTransaction
from penstock.coordination.effects import Token
from penstock.coordination.in_flight import AppendsInFlight
from penstock.coordination.invariants import InvariantViolated
from penstock.spark.once import protocol
from penstock.spark.once.protocol import (
    Batch,
    CountHomes,
    End,
    FindOpen,
    NotCommitted,
    NoteProgress,
    Plan,
    Progress,
    Question,
    ReadProgress,
    Refused,
    SinkRefused,
    Steps,
    TakeOver,
    begin,
    commit,
    give_up,
    tasks_pattern,
)
from penstock.spark.options import MissingProgress
from penstock.txns import multi_commit
from penstock.txns.effects import EndedTogether
from penstock.txns.patterns import IdPattern
from penstock.txns.transaction import Producer, State
from penstock.wire.errors import ErrorCode
from txns.network import Network
from txns.world import OFFSETS

T = TypeVar("T")
OFFSETS_PARTITION = f"{OFFSETS.topic}-{OFFSETS.partition}"
DATA = ("out-0", "out-1")
TASKS = 3
SINK = "daily sink"
QUERY = "the query"
TIMEOUT_MS = 4000
AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

Send = Callable[[Callable[[Any], None]], None]
"""Sends a request; its argument receives the answer."""


class Failed(Exception):
    """This run is over; Spark starts another."""


class Walk(Network):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, (*DATA, OFFSETS_PARTITION))
        self.late_share = 0.05
        self.done = 0
        """The checkpoint: batches below this number are recorded as committed."""
        self.runs: list[Process] = []
        self.repeated = 0
        self.given_up = 0
        self.start()

    def start(self) -> None:
        self.runs.append(Process(self, self.run()))

    # What Spark does

    def run(self) -> Generator[Send, Any, None]:
        while True:
            batch = Batch(QUERY, self.done)
            plan = yield from self.follow(begin(SINK))
            members: list[OpenTransaction] = []
            try:
                yield from self.write(plan, batch, members)
                if not (yield from self.follow(commit(plan, batch, members, "fail"))):
                    self.repeated += 1
            except (NotCommitted, Refused):
                if self.random.random() < 0.7:
                    self.given_up += 1
                    yield from self.follow(give_up(SINK, plan if members else None))
                raise Failed from None
            if self.random.random() < 0.1:
                raise Failed  # The driver crashes before the checkpoint is written.
            self.done = max(self.done, batch.number + 1)

    def write(
        self, plan: Plan, batch: Batch, members: list[OpenTransaction]
    ) -> Generator[Send, Any, None]:
        if not plan.is_due(batch, "fail"):
            return
        for task in range(TASKS):
            name = plan.task_id(task)
            producer = yield from self.init(name)
            for row in range(2):
                where = DATA[(task + row) % len(DATA)]
                value = f"{batch.number}/{task}/{row}"
                yield from self.produce(name, producer, where, value)
            members.append(OpenTransaction(name, *producer))
        if self.random.random() < 0.05:  # An attempt that was believed dead.
            yield from self.init(plan.task_id(self.random.randrange(TASKS)))

    # The protocol's requests, each repeated until it has a final answer

    def follow(self, steps: Steps[T]) -> Generator[Send, Any, T]:
        try:
            question = next(steps)
            while True:
                try:
                    answer = yield from self.answer(question)
                except Refused as refused:
                    question = steps.throw(refused)
                else:
                    question = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def answer(self, question: Question) -> Generator[Send, Any, object]:
        match question:
            case TakeOver(name, current):
                expected = None if current is None else Producer(*current[1:])
                return OpenTransaction(name, *(yield from self.init(name, expected)))
            case CountHomes():
                return 5
            case ReadProgress():
                return (yield from self.read_progress())
            case NoteProgress(transaction, _, progress):
                value = f"{progress.batches} {progress.query_id}"
                producer = Producer(*transaction[1:])
                yield from self.produce(
                    transaction.transactional_id, producer, OFFSETS_PARTITION, value
                )
            case FindOpen(sink):
                return (yield from self.find_open(IdPattern(tasks_pattern(sink))))
            case End(members, committed, sink):
                yield from self.end(members, committed, sink)
        return None

    def read_progress(self) -> Generator[Send, Any, Progress | None]:
        """Sends OffsetFetch with require_stable."""
        partition = self.partitions[OFFSETS_PARTITION]

        def send(answered: Callable[[Any], None]) -> None:
            def arrive() -> None:
                stable = partition.last_stable_offset == len(partition.log)
                values = partition.committed() if stable else None
                self.wire.append(lambda: answered(values))

            self.wire.append(arrive)

        while True:
            values = yield send
            if values is not None:
                break
        if not values:
            return None
        batches, _, query_id = values[-1].partition(" ")
        return Progress(int(batches), query_id)

    def find_open(self, pattern: IdPattern) -> Generator[Send, Any, tuple[OpenTransaction, ...]]:
        def send(answered: Callable[[Any], None]) -> None:
            def arrive() -> None:
                found = tuple(
                    OpenTransaction(name, each.producer_id, each.producer_epoch)
                    for name, each in self.world.shard.state.image.transactions.items()
                    if each.state is State.ONGOING and pattern.matches(name)
                )
                self.wire.append(lambda: answered(found))

            self.wire.append(arrive)

        found: tuple[OpenTransaction, ...] = yield send
        return found

    def init(self, name: str, expected: Producer | None = None) -> Generator[Send, Any, Producer]:
        def send(answered: Callable[[Any], None]) -> None:
            self.ask(
                lambda: self.world.send_init(name, expected, TIMEOUT_MS),
                lambda token: answered(self.world.replies[token]),
            )

        while True:
            answer = yield send
            if not answer.error_code:
                return Producer(answer.producer_id, answer.producer_epoch)
            _check(answer.error_code)

    def produce(
        self, name: str, producer: Producer, where: str, value: str
    ) -> Generator[Send, Any, None]:
        partition = self.partitions[where]

        def send(answered: Callable[[Any], None]) -> None:
            def arrive() -> None:
                header = partition.header(producer, 0)
                guard = partition.states.begin_verification(header, 0)
                if guard is None:
                    code = partition.append(header, value, 0)
                    self.wire.append(lambda: answered(code))
                    return

                def verified(token: Token) -> None:
                    (code,) = self.world.added(token).values()
                    if code is ErrorCode.NONE:
                        code = partition.append(header, value, guard)
                    self.wire.append(lambda: answered(code))

                self.ask(lambda: self.world.send_add(name, producer, [where], version=5), verified)

            self.wire.append(arrive)

        while True:
            code = yield send
            if code is ErrorCode.NONE:
                return
            if code is not ErrorCode.INVALID_TXN_STATE:  # A new leader does not have this guard.
                _check(code)

    def end(
        self, members: tuple[OpenTransaction, ...], committed: bool, sink: str | None
    ) -> Generator[Send, Any, None]:
        producers = {member.transactional_id: Producer(*member[1:]) for member in members}
        offsets = None if sink is None else OFFSETS

        def send(answered: Callable[[Any], None]) -> None:
            self.ask(
                lambda: self.world.send_end_together(producers, commit=committed, offsets=offsets),
                lambda token: answered(self.world.replies[token]),
            )

        while True:
            answer = yield send
            assert isinstance(answer, EndedTogether)
            if answer.code is ErrorCode.NONE:
                return
            _check(answer.code)

    # The environment

    def step(self) -> None:
        self.settle()
        roll = self.random.random()
        running = [run for run in self.runs if not run.is_over]
        if not running:
            self.start()
        elif roll < 0.88:
            self.deliver()
        elif roll < 0.984:
            self.random.choice(running).nudge()
        elif roll < 0.995:
            self.disturb()
        elif roll < 0.998:
            # The driver is lost, or only believed lost: then it continues next to its successor.
            running[0].is_over = len(running) > 1 or self.random.random() < 0.6
            self.start()
        self.pump()
        self.verify()

    def check(self) -> None:
        self.verify_nothing_hangs()
        noted = [value.split(" ", 1) for value in self.partitions[OFFSETS_PARTITION].committed()]
        assert all(query_id == QUERY for _, query_id in noted)
        batches = [int(number) - 1 for number, _ in noted]
        assert batches == list(range(len(batches)))
        assert self.done <= len(batches)
        read = [value for where in DATA for value in self.partitions[where].committed()]
        wanted = [
            f"{batch}/{task}/{row}"
            for batch in batches
            for task in range(TASKS)
            for row in range(2)
        ]
        assert sorted(read) == sorted(wanted)
        for where in DATA:
            order = [int(value.split("/")[0]) for value in self.partitions[where].committed()]
            assert order == sorted(order)


def _check(code: int) -> None:
    if code not in AGAIN:
        raise Refused(ErrorCode(code), ErrorCode(code).name)


class Process:
    """A run with one request in flight, which is repeated occasionally until it is answered."""

    def __init__(self, walk: Walk, run: Generator[Send, Any, None]) -> None:
        self.walk = walk
        self.run = run
        self.is_over = False
        self.asked = 0
        self.waits = False
        self.send = next(run)
        self.nudge()

    def nudge(self) -> None:
        """Sends the request, or repeats it because its answer takes long."""
        if not self.waits or self.walk.random.random() < 0.05:
            self.waits = True
            self.asked += 1
            asked = self.asked
            self.send(lambda answer: self.answered(asked, answer))

    def answered(self, asked: int, answer: object) -> None:
        if self.is_over or asked != self.asked or not self.waits:
            return
        self.waits = False
        try:
            self.send = self.run.send(answer)
        except (Failed, Refused):
            self.is_over = True
        except SinkRefused as refused:
            assert isinstance(refused.__cause__, Refused), refused
            self.is_over = True


def walked(seed: int, steps: int = 3000) -> Walk:
    walk = Walk(seed)
    for _ in range(steps):
        walk.step()
    for run in walk.runs:
        run.is_over = True
    walk.heal(TIMEOUT_MS)
    walk.check()
    return walk


@pytest.mark.parametrize("seeds", [range(first, first + 5) for first in range(0, 20, 5)], ids=str)
def test_every_batch_is_stored_exactly_once(seeds: range) -> None:
    """And enough batches were committed, repeated and given up, in enough runs, for
    the test to be meaningful."""
    committed = runs = repeated = given_up = 0
    for seed in seeds:
        walk = walked(seed)
        committed += len(walk.partitions[OFFSETS_PARTITION].committed())
        runs += len(walk.runs)
        repeated += walk.repeated
        given_up += walk.given_up
    assert committed > 8
    assert runs > 20
    assert repeated > 0
    assert given_up > 5


# Planted bugs that the simulation must find


def decisions_are_written_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """The coordinator appends each member's decision separately."""
    start = AppendsInFlight.start

    def apart(self, records, outcome, now):  # type: ignore[no-untyped-def]
        if not isinstance(outcome, multi_commit.PreparedMultiCommit):
            start(self, records, outcome, now)
            return
        parts = zip(records, outcome.transactions, outcome.ending.due, strict=True)
        for record, transaction, name in parts:
            judged = [each for each in outcome.ending.judged if each[0].transactional_id == name]
            token = outcome.ending.token if transaction is outcome.transactions[-1] else object()
            alone = multi_commit.Ending(outcome.ending.is_commit, judged, token)
            start(self, [record], multi_commit.PreparedMultiCommit(alone, (transaction,)), now)

    patch.setattr(AppendsInFlight, "start", apart)


def fenced_members_are_left_out(patch: pytest.MonkeyPatch) -> None:
    """Members that can be committed are committed, and fenced ones are left out."""
    patch.setattr(multi_commit, "_why_not_commit", multi_commit._why_not_abort)


def members_are_ended_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """The driver requests each member's commit separately."""

    def apart(plan, batch, members, missing):  # type: ignore[no-untyped-def]
        for question in _commit_questions(plan, batch, members, missing):
            if isinstance(question, End):
                for member in question.members:
                    yield End((member,), committed=True)
            else:
                yield question
        return plan.is_due(batch, missing)

    patch.setitem(globals(), "commit", apart)


def the_driver_is_no_member(patch: pytest.MonkeyPatch) -> None:
    """The progress is committed separately, after the rows."""

    def apart(plan, batch, members, missing):  # type: ignore[no-untyped-def]
        for question in _commit_questions(plan, batch, members, missing):
            if isinstance(question, End):
                yield End(question.members[1:], committed=True)
                yield End(question.members[:1], committed=True)
            else:
                yield question
        return plan.is_due(batch, missing)

    patch.setitem(globals(), "commit", apart)


def progress_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Every batch is written and committed, whether or not it was done before."""
    patch.setattr(Plan, "is_due", lambda *_: True)


def progress_is_read_before_the_sink_is_taken_over(patch: pytest.MonkeyPatch) -> None:
    """A commit by the previous driver in between is missed."""

    def too_early(sink: str) -> Steps[Plan]:
        progress = yield ReadProgress(sink)
        driver = yield TakeOver(protocol.driver_id(sink))
        yield from protocol._abort_open(sink)
        return Plan(sink, driver, progress, 5)

    patch.setitem(globals(), "begin", too_early)


def a_refused_commit_passes_for_one(patch: pytest.MonkeyPatch) -> None:
    def careless(plan, batch, members, missing):  # type: ignore[no-untyped-def]
        try:
            return (yield from commit_as_it_is(plan, batch, members, missing))
        except NotCommitted:
            return True

    commit_as_it_is = commit
    patch.setitem(globals(), "commit", careless)


def progress_is_one_behind(patch: pytest.MonkeyPatch) -> None:
    """Stores the number of the batch instead of the number of batches."""
    patch.setattr(protocol, "Progress", lambda batches, query_id: Progress(batches - 1, query_id))


def _commit_questions(
    plan: Plan, batch: Batch, members: list[OpenTransaction], missing: MissingProgress
) -> Generator[Question, None, None]:
    """Yields the requests of the real commit; the caller raises refusals."""
    steps = protocol.commit(plan, batch, members, missing)
    try:
        question = next(steps)
        while True:
            yield question
            question = steps.send(None)
    except StopIteration:
        return


@pytest.mark.parametrize(
    "plant",
    [
        decisions_are_written_one_by_one,
        fenced_members_are_left_out,
        members_are_ended_one_by_one,
        the_driver_is_no_member,
        progress_is_not_asked,
        progress_is_read_before_the_sink_is_taken_over,
        a_refused_commit_passes_for_one,
        progress_is_one_behind,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 40 seeds, which pass without the bug."""
    plant(monkeypatch)
    for seed in range(40):
        try:
            walked(seed)
        except (AssertionError, InvariantViolated):
            return
    pytest.fail(f"{plant.__name__} went unnoticed")
