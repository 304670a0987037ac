"""Simulates leaders that crash while they write dead letters. Each letter is written once.

It is the world of `failover_world`, for a group with a dead-letter topic. Requests with dead
letters are delayed, overtake each other and are lost, and so are their answers. Leaders that were
replaced go on writing. In the end every record that was given up has exactly one dead letter, and
no other record has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count

import pytest

from penstock.shares import letters, share_partition
from penstock.shares.events import (
    DeadLettersWritten,
    Effect,
    ProducerIdTaken,
    TakeProducerId,
    WriteDeadLetters,
)
from penstock.shares.image import NO_LETTERS, Delta, ShareImage, StoredSpan
from penstock.shares.letters import LetterBook
from penstock.shares.share_partition import SharePartition
from penstock.shares.spans import Span
from penstock.shares.states import RecordState

from .failover_world import STEPS, FailoverWorld, Leader, RuleBroken
from .letter_topic import LetterTopic

SEEDS = 150
BUG_SEEDS = 600

Patch = pytest.MonkeyPatch


@dataclass(eq=False)
class Request:
    """Dead letters on their way, or the answer on its way back."""

    leader: Leader
    order: WriteDeadLetters
    report: DeadLettersWritten | None = None


class LetterWorld(FailoverWorld):
    def __init__(self, seed: int) -> None:
        self.topic = LetterTopic()
        self.requests: list[Request] = []
        self.orders: dict[Leader, WriteDeadLetters] = {}
        """The last order of each leader, while it has no answer."""
        self.archived: set[int] = set()
        self._producer_ids = count(1)
        super().__init__(seed)

    def elect(self) -> Leader:
        self.settings = replace(self.settings, dead_letter_topic="dlq.jobs")
        return super().elect()

    def _carry_out(self, leader: Leader, effects: list[Effect]) -> None:
        super()._carry_out(leader, effects)
        for effect in effects:
            if isinstance(effect, TakeProducerId):
                self.handle(leader, ProducerIdTaken(next(self._producer_ids)))
            elif isinstance(effect, WriteDeadLetters):
                self.orders[leader] = effect
                self.requests.append(Request(leader, effect))

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.15 and self.requests:
            self._move_request()
        elif chance < 0.16:
            self.topic.restart()
        elif chance < 0.19 and self.orders:
            leader = self.random.choice([*self.orders])
            self.count("letters_repeated")
            self.requests.append(Request(leader, self.orders[leader]))
        else:
            super().step()

    def _move_request(self) -> None:
        request = self.random.choice(self.requests)
        if request.leader.is_over and self.random.random() < 0.7:
            return  # It stays on its way for long.
        self.requests.remove(request)
        if self.random.random() < 0.15:
            self.count("letters_lost")
            return
        if request.report is not None:
            self._on_answer(request)
            return
        # A broker that is killed has sent all or nothing; a partition may lose its leader between.
        before = self.topic.refused
        whole = len(request.order.letters)
        size = whole if self.random.random() < 0.8 else self.random.randint(0, whole)
        report = self.topic.write(request.order, size)
        self.counts["letters_refused"] = self.counts.get("letters_refused", 0) + (
            self.topic.refused - before
        )
        if size == whole:
            self.requests.append(Request(request.leader, request.order, report))

    def _on_answer(self, request: Request) -> None:
        leader, report = request.leader, request.report
        if leader.is_over or self.orders.get(leader) is not request.order or report is None:
            return
        del self.orders[leader]
        self.handle(leader, report)

    def crash(self, leader: Leader) -> None:
        super().crash(leader)
        self.orders.pop(leader, None)

    def _settle(self) -> None:
        super()._settle()
        while self.orders:
            leader, order = self.orders.popitem()
            self.handle(leader, self.topic.write(order))
            super()._settle()

    def check(self) -> None:
        found = self.topic.offsets
        if len(set(found)) < len(found):
            raise RuleBroken(f"a dead letter was written twice: {found}")
        if set(found) != self.archived:
            raise RuleBroken(f"dead letters of {found}, and {sorted(self.archived)} are given up")

    def run(self, steps: int = STEPS) -> None:
        stored, world = self.coordinator.image, self

        class Watched(ShareImage):
            def apply(self, delta: Delta) -> None:
                super().apply(delta)
                for span in delta.spans:
                    if span.state is RecordState.ARCHIVED:
                        world.archived |= set(range(span.first, span.last + 1))

        self.coordinator.image = Watched(stored.state_epoch, 0, 0)
        super().run(steps)
        while self.requests:
            # What is still on its way arrives late.
            self.topic.write(self.requests.pop().order)
        self.check()


def test_leaders_crash_and_each_dead_letter_is_written_once() -> None:
    """In many seeds, and everything that can happen does happen."""
    counts: dict[str, int] = {}
    written = 0
    for seed in range(SEEDS):
        world = LetterWorld(seed)
        world.run()
        written += len(world.topic.offsets)
        for name, times in world.counts.items():
            counts[name] = counts.get(name, 0) + times
    assert written > SEEDS
    for name in ("crashes", "letters_repeated", "letters_lost", "letters_refused"):
        assert counts.get(name), f"{name} did not happen: {counts}"


# Planted bugs


def _numbers_are_not_stored(patch: Patch) -> None:
    """A new leader does not know which numbers were given."""
    put = ShareImage._put

    def forgetful(self: ShareImage, new: StoredSpan) -> None:
        put(self, new._replace(letter_shift=-new.first))

    patch.setattr(ShareImage, "_put", forgetful)


def _producers_are_not_stored(patch: Patch) -> None:
    """Each leader writes with a producer id of its own."""
    begin = LetterBook.__init__

    def forgetful(self: LetterBook, numbers: object) -> None:
        begin(self, NO_LETTERS)

    patch.setattr(LetterBook, "__init__", forgetful)


def _rounds_are_too_large(patch: Patch) -> None:
    """More letters are written and not archived than the partition remembers."""
    patch.setattr(letters, "LETTERS_AT_A_TIME", 50)


def _archived_before_the_letter(patch: Patch) -> None:
    """Records are archived when their letters are asked for."""
    step = LetterBook.next_step

    def hasty(self: LetterBook, spans: Iterable[Span]) -> object:
        found = step(self, spans)
        if isinstance(found, WriteDeadLetters):
            self._written += [(letter.offset, letter.offset) for letter in found.letters]
        return found

    patch.setattr(LetterBook, "next_step", hasty)


def _refused_letters_count_as_written(patch: Patch) -> None:
    """A number that is out of sequence is taken for a duplicate."""
    report = SharePartition._on_dead_letters

    def trusting(self: SharePartition, event: DeadLettersWritten, now: object) -> None:
        offsets = self._letters._round if event.is_refused else event.offsets
        report(self, DeadLettersWritten(offsets), now)  # type: ignore[arg-type]

    patch.setitem(share_partition._HANDLERS, DeadLettersWritten, trusting)


BUGS: tuple[Callable[[Patch], None], ...] = (
    _numbers_are_not_stored,
    _producers_are_not_stored,
    _rounds_are_too_large,
    _archived_before_the_letter,
    _refused_letters_count_as_written,
)


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_bug_breaks_a_rule(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Within the number of seeds that run clean without it."""
    plant(monkeypatch)
    for seed in range(BUG_SEEDS):
        try:
            LetterWorld(seed).run()
        except RuleBroken:
            return
    pytest.fail(f"{plant.__doc__} was not found in {BUG_SEEDS} seeds")
