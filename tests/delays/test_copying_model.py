"""Leaders of a delay topic crash at any step. Every record is copied once, and in order."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.delays import copy_state, copying
from penstock.delays.copy_state import CopyState, Target
from penstock.delays.copying import Copying
from penstock.delays.due_window import DueWindow
from penstock.delays.formats import decode, encode

from . import copy_world
from .copy_world import Batch, CopyWorld, Leader, TargetPartition

STEPS = 250
SEEDS = 150
BUG_SEEDS = 400
Patch = pytest.MonkeyPatch


def run(random: Random, steps: int = STEPS) -> CopyWorld:
    records = random.choice((3, 3, 40))
    world = CopyWorld(random, window_records=records, late_max=records)
    assert world.target is not None
    partition = world.targets[world.target] = TargetPartition()
    for _ in range(steps):
        world.act()
    world.settle()
    world.check(partition)
    return world


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_leaders_crash_and_each_record_is_copied_once(random: Random) -> None:
    """Whatever is lost, delayed or repeated, and whoever crashes when."""
    run(random, steps=120)


def test_everything_that_can_happen_does_happen() -> None:
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        for name, times in run(Random(seed)).counts.items():
            counts[name] = counts.get(name, 0) + times
    stores, requests = "store_unknown store_failed", "lost unanswered repeated failed timed_out"
    wanted = f"crashes fenced resumed {stores} {requests}"
    assert {name for name in wanted.split() if not counts.get(name)} == set()


# Targets that change


def test_a_target_that_was_created_again_gets_what_is_left() -> None:
    """Records that the earlier topic had are gone with it. No record is copied twice to one."""
    for seed in range(SEEDS):
        world = CopyWorld(Random(seed))
        assert world.target is not None
        old = world.targets[world.target] = TargetPartition()
        for _ in range(STEPS // 2):
            world.act()
        del world.targets[world.target]
        world.target = None
        for _ in range(20):
            world.act()
        world.target = Target(b"n" * 16, 0)
        new = world.targets[world.target] = TargetPartition()
        for _ in range(STEPS // 2):
            world.act()
        world.settle()
        assert len(set(old.copied)) == len(old.copied)
        assert len(set(new.copied)) == len(new.copied)
        wanted = {each for each, due in enumerate(world.log) if due is not None}
        assert {*old.copied, *new.copied} == wanted


def test_a_batch_that_reached_a_new_topic_of_the_same_name_is_there_once() -> None:
    """The target was deleted and created again while a request was on its way, and the answer was
    lost. Then the leader, or the next one, sends the batch to the new topic."""
    for seed in range(SEEDS):
        world = CopyWorld(Random(seed))
        assert world.target is not None
        old = world.targets[world.target] = TargetPartition()
        for _ in range(STEPS // 4):
            world.act()
        world.settle()
        world.zombies.clear()
        world.log += [0] * 5
        world.readable = len(world.log)
        while world.leader.request is None:
            if world.leader.is_over:
                world.leader = world.load(world.leader_epoch)
            world.step(world.leader)
        request = world.leader.request
        world.requests.remove(request)
        del world.targets[world.target]
        world.target = Target(b"n" * 16, 0)
        new = world.targets[world.target] = TargetPartition()
        world.process(new, request.sent)
        world.give_up(request)
        if seed % 2:
            world.crash()
        world.settle()
        copied = [*old.copied, *new.copied]
        wanted = [each for each, due in enumerate(world.log) if due is not None]
        assert sorted(copied) == wanted


def test_a_plan_is_finished_in_its_target_before_the_next_target_is_used() -> None:
    """The topic gets another partition, or another target. No record is in both."""
    for seed in range(SEEDS):
        world = CopyWorld(Random(seed))
        for number in range(3):
            world.target = Target(b"t" * 16, number)
            world.targets[world.target] = TargetPartition()
            for _ in range(STEPS // 3):
                world.act()
        world.settle()
        copied = [offset for each in world.targets.values() for offset in each.copied]
        wanted = [each for each, due in enumerate(world.log) if due is not None]
        assert sorted(copied) == wanted


def test_a_target_that_has_forgotten_the_producer_gets_each_record_once() -> None:
    """The producer was idle for long. Nothing is under way then."""
    for seed in range(SEEDS // 3):
        world = CopyWorld(Random(seed))
        assert world.target is not None
        partition = world.targets[world.target] = TargetPartition()
        for _ in range(3):
            for _ in range(STEPS // 3):
                world.act()
            world.settle()
            # A former leader has noticed by then that it is not the leader any more.
            world.zombies.clear()
            partition.producers.clear()
        world.check(partition)


def test_a_target_that_lost_copies_gets_those_that_are_left() -> None:
    """An unclean election of the target: what it had is lost, and the copying goes on."""
    refused = 0
    for seed in range(SEEDS):
        world = CopyWorld(Random(seed))
        assert world.target is not None
        partition = world.targets[world.target] = TargetPartition()
        for _ in range(STEPS // 2):
            world.act()
        world.settle()
        world.zombies.clear()
        before = [*partition.copied]
        # The target knows the producer, but not its last batches.
        lost = TargetPartition()
        state = world.leader.copying.state
        if state.producer_id < 0:
            continue
        lost.write(Batch(state.producer_id, state.producer_epoch, 0, (-1,)))
        world.targets[world.target] = lost
        for _ in range(STEPS // 2):
            world.act()
        world.settle()
        refused += lost.refused
        copied = [each for each in lost.copied if each >= 0]
        wanted = [each for each, due in enumerate(world.log) if due is not None]
        assert sorted([*before, *copied]) == wanted
    assert refused


# A delay topic that changes


def test_records_that_retention_has_deleted_are_left_out() -> None:
    """All others are copied. One may be copied twice only if it was planned with a lost one."""
    missing = 0
    for seed in range(SEEDS):
        world = CopyWorld(Random(seed))
        assert world.target is not None
        partition = world.targets[world.target] = TargetPartition()
        for number in range(STEPS):
            world.act()
            if number % 40 == 39:
                world.log_start = world.random.randint(world.log_start, world.readable)
        world.settle()
        missing += world.counts.get("missing", 0)
        wanted = {each for each, due in enumerate(world.log) if due is not None}
        assert {each for each in wanted if each >= world.log_start} <= set(partition.copied)
        if not world.counts.get("plan_missing"):
            assert len(set(partition.copied)) == len(partition.copied)
    assert missing


def test_records_that_come_after_an_unclean_election_are_copied() -> None:
    """The log loses its end. New records get the same offsets, and none of them is skipped."""
    cuts = 0
    for seed in range(SEEDS):
        world = CopyWorld(Random(seed))
        assert world.target is not None
        partition = world.targets[world.target] = TargetPartition()
        for _ in range(STEPS // 2):
            world.act()
        if not world.log:
            continue
        kept = world.random.randint(0, len(world.log) - 1)
        del world.log[kept:]
        world.readable = kept
        world.epochs = [each for each in world.epochs if each[1] < kept]
        before = len(partition.copied)
        world.requests.clear()
        world.zombies.clear()
        world.leader = world.elect()
        for _ in range(STEPS // 2):
            world.act()
        world.settle()
        cuts += world.counts.get("cut", 0)
        new = {each for each, due in enumerate(world.log) if each >= kept and due is not None}
        assert new <= set(partition.copied[before:])
        old = {each for each, due in enumerate(world.log) if each < kept and due is not None}
        assert old <= set(partition.copied)
    assert cuts


# Planted bugs


def _plans_are_not_stored(patch: Patch) -> None:
    """Batches are sent before their plan is durable."""
    finish = Copying._finish_plan

    def hasty(self: Copying, view: copying.View) -> copying.Step:
        step = finish(self, view)
        return copying.Send(self.state) if isinstance(step, copying.Store) else step

    patch.setattr(Copying, "_finish_plan", hasty)


def _plans_are_too_large(patch: Patch) -> None:
    """There are more batches in a plan than the target remembers."""
    append = CopyWorld.append

    def append_some(self: CopyWorld) -> None:
        for _ in range(4):
            append(self)

    patch.setattr(copy_world, "BATCHES_MAX", 30)
    patch.setattr(CopyWorld, "append", append_some)


def _copied_when_planned(patch: Patch) -> None:
    """A new leader takes what is planned for copied."""
    load = CopyWorld.load

    def trusting(self: CopyWorld, epoch: int) -> Leader:
        state = decode(self.stored)
        self.stored = encode(state.written(len(state.planned)))
        return load(self, epoch)

    patch.setattr(CopyWorld, "load", trusting)


def _late_records_in_order_of_time(patch: Patch) -> None:
    """The cursor's end passes late records that are not planned."""
    plan = Copying.plan

    def hasty(self: Copying, *args: object) -> None:
        kept, self._late = self._late, type(self._late)()
        try:
            plan(self, *args)  # type: ignore[arg-type]
        finally:
            self._late.extend(kept)

    patch.setattr(Copying, "plan", hasty)


def _new_epoch_for_each_leader(patch: Patch) -> None:
    """A leader does not use the stored sequence numbers."""
    begin = Copying.__init__

    def forgetful(self: Copying, state: CopyState, **rest: object) -> None:
        begin(self, state.in_new_epoch(state.target), **rest)  # type: ignore[arg-type]

    patch.setattr(Copying, "__init__", forgetful)


def _floor_too_high(patch: Patch) -> None:
    """The floor passes records that wait."""
    patch.setattr(Copying, "_floor", lambda self, end: end)


def _left_out_records_are_forgotten(patch: Patch) -> None:
    """The log is not read again when the window is used up."""
    patch.setattr(DueWindow, "is_used_up", False)


def _unreadable_plans_are_given_up(patch: Patch) -> None:
    """A new leader does not wait until it can read the records of the plan."""
    finish = Copying._finish_plan

    def hasty(self: Copying, view: copying.View) -> copying.Step:
        step = finish(self, view)
        return copying.Send(self.state) if isinstance(step, copying.Wait) else step

    patch.setattr(Copying, "_finish_plan", hasty)


def _all_batches_at_once(patch: Patch) -> None:
    """All batches of a plan are sent at once."""
    patch.setattr(copy_world, "BATCHES_PER_REQUEST", copy_state.BATCHES_MAX)


BUGS: list[Callable[[Patch], None]] = [
    _plans_are_not_stored,
    _plans_are_too_large,
    _copied_when_planned,
    _late_records_in_order_of_time,
    _new_epoch_for_each_leader,
    _floor_too_high,
    _left_out_records_are_forgotten,
    _unreadable_plans_are_given_up,
    _all_batches_at_once,
]


@pytest.mark.parametrize("plant", BUGS)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    assert copy_state.BATCHES_MAX == 5
    plant(monkeypatch)
    for seed in range(BUG_SEEDS):
        try:
            run(Random(seed))
        except AssertionError:
            return
    pytest.fail(f"{BUG_SEEDS} seeds did not find it: {plant.__doc__}")
