"""The exactly-once sink, as its design has it, over the joint end of transactions: drivers that die
or hang on as zombies, tasks that are run again beside themselves, a network that loses and repeats,
coordinators and leaders that die at any moment.

A run is what Spark does between a start and a crash: batch after batch, tasks that write in their
own transactions, then the driver's commit. The next run begins with the batch that the checkpoint
does not know to be done; its predecessor may be alive. When the dust has settled every batch up to
the group's offset is read exactly once and whole, in order, none beyond it, and nothing is open.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from penstock.txns import together
from penstock.txns.core import Core
from penstock.txns.effects import EndedTogether, Token
from penstock.txns.transaction import InvariantViolated, Producer
from penstock.wire.errors import ErrorCode

from .network import Network
from .world import OFFSETS

OFFSETS_PLACE = f"{OFFSETS.topic}-{OFFSETS.partition}"
DATA = ("out-0", "out-1")
TASKS = 3
DRIVER = "sink#driver"
TIMEOUT_MS = 4000
WAIT_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

Send = Callable[[Callable[[Any], None]], None]
"""Puts a request on the wire, with what to do with its answer."""
Run = Generator[Send, Any, None]


class Failed(Exception):
    """The batch cannot be committed by this run."""


class Sink(Network):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, (*DATA, OFFSETS_PLACE))
        self.late_share = 0.05
        self.done = 0
        """The checkpoint: batches below this are known to be committed."""
        self.runs: list[Process] = []
        self.committed_answers = 0
        self.start()

    def start(self) -> None:
        self.runs.append(Process(self, self.run()))

    # What Spark does

    def run(self) -> Run:
        driver = yield from self.init(DRIVER)
        while True:
            batch = self.done
            members = {}
            for task in range(TASKS):
                name = f"sink#{task}"
                members[name] = yield from self.task(batch, task)
            if self.random.random() < 0.05:
                yield from self.init(f"sink#{self.random.randrange(TASKS)}")
            driver = yield from self.commit(batch, driver, members)
            if self.random.random() < 0.1:
                raise Failed  # The driver dies before the checkpoint knows.
            self.done = max(self.done, batch + 1)

    def task(self, batch: int, task: int) -> Generator[Send, Any, Producer]:
        producer = yield from self.init(f"sink#{task}")
        for row in range(2):
            place = DATA[(task + row) % len(DATA)]
            yield from self.produce(f"sink#{task}", producer, place, f"{batch}/{task}/{row}", row)
        return producer

    def commit(
        self, batch: int, driver: Producer, members: dict[str, Producer]
    ) -> Generator[Send, Any, Producer]:
        """The driver's commit(messages, batch id)."""
        if (yield from self.committed_batches()) > batch:
            yield from self.end(members, commit=False)
            return driver
        yield from self.produce(DRIVER, driver, OFFSETS_PLACE, str(batch), 0)
        answer = yield from self.end({DRIVER: driver} | members, commit=True)
        self.committed_answers += 1
        mine = answer.members[0]
        return Producer(mine.producer_id, mine.producer_epoch)

    def committed_batches(self) -> Generator[Send, Any, int]:
        """OffsetFetch with require_stable."""
        partition = self.partitions[OFFSETS_PLACE]

        def send(answered: Callable[[Any], None]) -> None:
            def arrive() -> None:
                stable = partition.last_stable_offset == len(partition.log)
                committed = partition.committed()
                last = int(committed[-1]) + 1 if committed else 0
                self.wire.append(lambda: answered(last if stable else None))

            self.wire.append(arrive)

        while True:
            answer = yield send
            if answer is not None:
                return int(answer)

    # Requests, each asked until it is answered for good

    def init(self, name: str) -> Generator[Send, Any, Producer]:
        def send(answered: Callable[[Any], None]) -> None:
            self.ask(
                lambda: self.world.send_init(name, None, TIMEOUT_MS),
                lambda token: answered(self.world.replies[token]),
            )

        while True:
            answer = yield send
            if not answer.error_code:
                return Producer(answer.producer_id, answer.producer_epoch)
            if answer.error_code not in WAIT_AGAIN:
                raise Failed

    def produce(
        self, name: str, producer: Producer, place: str, value: str, number: int
    ) -> Generator[Send, Any, None]:
        partition = self.partitions[place]
        sequence = 0 if place == OFFSETS_PLACE else number // len(DATA)

        def send(answered: Callable[[Any], None]) -> None:
            def arrive() -> None:
                header = partition.header(producer, sequence)
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

                self.ask(lambda: self.world.send_add(name, producer, [place], version=5), verified)

            self.wire.append(arrive)

        while True:
            code = yield send
            if code is ErrorCode.NONE:
                return
            if code not in (*WAIT_AGAIN, ErrorCode.INVALID_TXN_STATE):
                raise Failed

    def end(
        self, members: dict[str, Producer], *, commit: bool
    ) -> Generator[Send, Any, EndedTogether]:
        offsets = OFFSETS if commit else None

        def send(answered: Callable[[Any], None]) -> None:
            self.ask(
                lambda: self.world.send_end_together(members, commit=commit, offsets=offsets),
                lambda token: answered(self.world.replies[token]),
            )

        while True:
            answer = yield send
            if answer.code is ErrorCode.NONE:
                return answer  # type: ignore[no-any-return]
            if answer.code not in WAIT_AGAIN:
                raise Failed

    # The world

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
            # The driver is lost, or only thought to be: then it goes on beside the next one.
            running[0].is_over = len(running) > 1 or self.random.random() < 0.6
            self.start()
        self.pump()
        self.verify()

    def check(self) -> None:
        self.verify_nothing_hangs()
        batches = [int(value) for value in self.partitions[OFFSETS_PLACE].committed()]
        assert batches == list(range(len(batches)))
        assert self.done <= len(batches)
        read = [value for place in DATA for value in self.partitions[place].committed()]
        wanted = [
            f"{batch}/{task}/{row}"
            for batch in batches
            for task in range(TASKS)
            for row in range(2)
        ]
        assert sorted(read) == sorted(wanted)
        for place in DATA:
            order = [int(value.split("/")[0]) for value in self.partitions[place].committed()]
            assert order == sorted(order)


class Process:
    """A run with one request under way; asked again now and then, until it is answered."""

    def __init__(self, sink: Sink, run: Run) -> None:
        self.sink = sink
        self.run = run
        self.is_over = False
        self.asked = 0
        self.waits = False
        self.send = next(run)
        self.nudge()

    def nudge(self) -> None:
        """Send the request, again if it was sent: its answer takes long."""
        if not self.waits or self.sink.random.random() < 0.05:
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
        except Failed:
            self.is_over = True


def walked(seed: int, steps: int = 3000) -> Sink:
    sink = Sink(seed)
    for _ in range(steps):
        sink.step()
    for run in sink.runs:
        run.is_over = True
    sink.heal(TIMEOUT_MS)
    sink.check()
    return sink


@pytest.mark.parametrize("seeds", [range(first, first + 5) for first in range(0, 20, 5)], ids=str)
def test_every_batch_is_there_exactly_once(seeds: range) -> None:
    """And enough of them were committed, over enough runs, to mean something."""
    committed = runs = 0
    for seed in seeds:
        sink = walked(seed)
        committed += len(sink.partitions[OFFSETS_PLACE].committed())
        runs += len(sink.runs)
    assert committed > 15
    assert runs > 20


# What the walk must find


def decisions_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Each member's decision is an append of its own."""
    append = Core.append

    def apart(self, records, outcome, now):  # type: ignore[no-untyped-def]
        if not isinstance(outcome, together.PreparedTogether):
            append(self, records, outcome, now)
            return
        parts = zip(records, outcome.transactions, outcome.ending.due, strict=True)
        for record, transaction, name in parts:
            judged = [each for each in outcome.ending.judged if each[0].transactional_id == name]
            token = outcome.ending.token if transaction is outcome.transactions[-1] else object()
            alone = together.Ending(outcome.ending.is_commit, judged, token)
            append(self, [record], together.PreparedTogether(alone, (transaction,)), now)

    patch.setattr(Core, "append", apart)


def fenced_members_are_left_out(patch: pytest.MonkeyPatch) -> None:
    """What can be committed is committed."""
    patch.setattr(together, "_why_not_commit", together._why_not_abort)


def the_group_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A run commits its batch whether or not that was done."""

    def answer_nothing(self: Sink) -> Generator[Send, Any, int]:
        yield from ()
        return 0

    patch.setattr(Sink, "committed_batches", answer_nothing)


def the_driver_is_not_a_member(patch: pytest.MonkeyPatch) -> None:
    """The offset is committed by itself, after the data."""
    end = Sink.end

    def apart(self, members, *, commit):  # type: ignore[no-untyped-def]
        driver = {name: each for name, each in members.items() if name == DRIVER}
        if commit and driver:
            tasks = {name: each for name, each in members.items() if name != DRIVER}
            patch.setattr(together, "_why_not_commit", together._why_not_abort)
            yield from end(self, tasks, commit=True)
            return (yield from end(self, driver, commit=True))
        return (yield from end(self, members, commit=commit))

    patch.setattr(Sink, "end", apart)


@pytest.mark.parametrize(
    "plant",
    [
        decisions_one_by_one,
        fenced_members_are_left_out,
        the_group_is_not_asked,
        the_driver_is_not_a_member,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within so many walks; the same ones pass without it."""
    plant(monkeypatch)
    for seed in range(40):
        try:
            walked(seed)
        except (AssertionError, InvariantViolated):
            return
    pytest.fail(f"{plant.__name__} went unnoticed")
