"""Replicas under faults: random walks over the real machines, and planted bugs that they must
find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.isr import IsrAnswer, IsrChange, alter_isrs, relead
from penstock.metadata.model import BrokerInfo, Partition
from penstock.partition.epochs import EpochEnd
from penstock.partition.follower import BatchSpan, Effect, Fetch, Follower, LogView
from penstock.partition.leadership import AlterIsr, Leadership
from penstock.partition.replica_progress import ReplicaProgress
from penstock.wire.errors import ErrorCode

from .replicas_model import ACTIONS, FAULTS, Bugs, Scenario, Violated, scenario
from .replicas_roles import TOPIC
from .replicas_world import World

Draw = Callable[[int], Scenario]
STEPS = 400
SEEDS_PER_TEST = 25
SEEDS_PER_BUG = 15


def of_moves(seed: int) -> Scenario:
    """Replicas move all the time, and nodes learn of it late."""
    weights = {name: 0.0 if name in FAULTS else weight for name, weight in ACTIONS.items()}
    weights |= {"move": 2.0, "cancel_move": 1.0, "tick": 0.5, "learn": 1.5, "propose": 8.0}
    return Scenario(seed, 4, 1, "fsync", weights)


def of_restarts(seed: int) -> Scenario:
    """Brokers restart all the time, with or without losing their last writes."""
    weights = {name: 0.0 if name in FAULTS else weight for name, weight in ACTIONS.items()}
    weights |= {"bounce": 2.0, "tick": 2.0, "learn": 3.0, "propose": 8.0}
    return Scenario(seed, 3, 2, "replicated", weights)


def walk(seed: int, bugs: Bugs | None = None, draw: Draw = scenario) -> World:
    world = World(draw(seed), bugs)
    try:
        world.run(STEPS)
    except Violated as violated:
        steps = sum(world.counts.values())
        raise Violated(f"{violated}, after {steps} steps of {world.setting}") from violated
    return world


@pytest.mark.parametrize("block", range(5))
def test_no_fault_loses_committed_records(block: int) -> None:
    """Kills, power cuts, expired leases, late messages, stale metadata, moves: all invariants
    hold."""
    for seed in range(block * SEEDS_PER_TEST, (block + 1) * SEEDS_PER_TEST):
        walk(seed)


def test_the_walks_make_progress() -> None:
    """Every action is taken, leaders change, records are committed and acknowledged."""
    worlds = [walk(seed) for seed in range(20)]
    names = {name for world in worlds for name in world.counts}
    assert names == {*scenario(0).weights}
    assert sum(len(world.seen.committed) for world in worlds) > 200
    assert sum(len(world.seen.acknowledged) for world in worlds) > 100
    assert sum(len(world.seen.leaders) for world in worlds) > 40
    assert {world.setting.durability for world in worlds} == {"fsync", "replicated"}


def test_a_walk_with_the_same_seed_is_the_same() -> None:
    """The seed determines everything, so a failure can be reproduced."""
    one, other = walk(11), walk(11)
    assert one.history == other.history
    assert [node.records for node in one.nodes] == [node.records for node in other.nodes]


# Planted bugs


class CommittedSetOnly(Leadership):
    """The high watermark does not wait for replicas that are only proposed."""

    def _recompute_maximal_set(self) -> None:
        super()._recompute_maximal_set()
        self._maximal = self.isr


class NoMinimum(Leadership):
    """The high watermark moves with too few in-sync replicas."""

    def _may_commit(self) -> bool:
        return True


class EligibleIgnored(Leadership):
    """The high watermark moves while there are eligible leaders, if the leader's minimum is met."""

    def _may_commit(self) -> bool:
        return len(self.isr) >= self._min_insync()


class JoinsBelowHighWatermark(Leadership):
    def _has_enough(self, follower: ReplicaProgress) -> bool:
        return follower.end_offset >= self.start_offset


class JoinsBelowTerm(Leadership):
    """A follower joins at the high watermark, which a new leader may not know yet."""

    def _has_enough(self, follower: ReplicaProgress) -> bool:
        return follower.end_offset >= self.high_watermark


class NoBrokerEpochs(Leadership):
    """A fetch counts for the registered broker epoch, whichever epoch it was sent with."""

    def on_follower_fetch(
        self,
        replica: int,
        broker_epoch: int,
        fetch_offset: int,
        leader_end: int,
        now_ms: int,
        log_start_offset: int = 0,
    ) -> bool:
        if replica in self._followers:
            self._followers[replica].broker_epoch = -1
        brokers, self._brokers = self._brokers, {}
        try:
            return super().on_follower_fetch(
                replica, broker_epoch, fetch_offset, leader_end, now_ms, log_start_offset
            )
        finally:
            self._brokers = brokers

    def _may_join(self, replica: int, follower: ReplicaProgress) -> bool:
        return replica in self._brokers and follower.end_offset >= 0

    def _epoch_of(self, replica: int) -> int:
        return self._brokers.get(replica, -1)


class ForgetsUnknownOutcomes(Leadership):
    """A proposal that timed out counts as refused."""

    def on_isr_refused(self, proposal: AlterIsr, reason: ErrorCode, now_ms: int) -> bool:
        return super().on_isr_refused(proposal, ErrorCode.NOT_CONTROLLER, now_ms)


class OneRound(Follower):
    """Truncates to where the leader says, without checking its own epochs (before KIP-279)."""

    def _on_diverging(
        self, found: EpochEnd, leader_start: int, log: LogView, now_ms: int
    ) -> tuple[Effect, ...]:
        if found.end_offset >= log.end_offset:
            return self._back_off(now_ms, "nothing to cut")
        return self._cut_to(found.end_offset, leader_start, log)


class TakesLateAnswers(Follower):
    def _is_due(self, fetch: Fetch) -> bool:
        self._pending = None
        return True

    def _check(self, span: BatchSpan, end: int, epoch: int) -> str | None:
        return None


def alter_any_incarnation(
    image: ClusterImage, broker: int, epoch: int, changes: Sequence[IsrChange], **rest: Any
) -> Decision[tuple[IsrAnswer, ...]]:
    """The controller adds the registered run of a broker, even if another run caught up."""
    registered = {each.broker_id: each.broker_epoch for each in image.brokers.values()}
    lenient = [
        replace(change, isr=tuple((each, registered.get(each, old)) for each, old in change.isr))
        for change in changes
    ]
    return alter_isrs(image, broker, epoch, lenient, **rest)


def alter_any_state(
    image: ClusterImage, broker: int, epoch: int, changes: Sequence[IsrChange], **rest: Any
) -> Decision[tuple[IsrAnswer, ...]]:
    """The controller does not compare partition epochs."""
    now = image.topics[TOPIC].partitions[0].partition_epoch
    return alter_isrs(
        image, broker, epoch, [replace(each, partition_epoch=now) for each in changes], **rest
    )


BUGS: dict[str, tuple[Bugs, Draw, int]] = {
    "truncates to the high watermark": (Bugs(truncates_to_high_watermark=True), scenario, 3),
    "counts what is not synced": (Bugs(counts_unsynced=True), scenario, 29),
    "claims to have lost nothing": (Bugs(always_claims_proof=True), of_restarts, 0),
    "leads on after a restart": (Bugs(leads_across_restarts=True), scenario, 1),
    "tells the latest offset at once": (Bugs(serves_latest_at_once=True), scenario, 93),
    "counts a fetch that diverges": (Bugs(counts_before_divergence=True), scenario, 98),
    "watermark over the committed set": (Bugs(leadership=CommittedSetOnly), scenario, 2),
    "no minimum in sync": (Bugs(leadership=NoMinimum), scenario, 2),
    "eligible leaders ignored": (Bugs(leadership=EligibleIgnored), scenario, 114),
    "joins below the high watermark": (Bugs(leadership=JoinsBelowHighWatermark), scenario, 0),
    "joins below the term's start": (Bugs(leadership=JoinsBelowTerm), scenario, 273),
    "no broker epochs": (
        Bugs(leadership=NoBrokerEpochs, alter=alter_any_incarnation),
        of_restarts,
        35,
    ),
    "no broker epochs at the leader": (Bugs(leadership=NoBrokerEpochs), of_restarts, 50),
    "no broker epochs at the controller": (Bugs(alter=alter_any_incarnation), of_restarts, 19),
    "no partition epochs": (Bugs(alter=alter_any_state), scenario, 175),
    "unknown outcomes forgotten": (Bugs(leadership=ForgetsUnknownOutcomes), scenario, 89),
    "cuts in one round": (Bugs(follower=OneRound), scenario, 30),
    "takes late answers": (Bugs(follower=TakesLateAnswers), scenario, 0),
}
"""Each bug with its kind of walk and the seed to start at, near one that finds it, so that the
search is short. A change of the walk may need other seeds: `first_seed` finds them, all below 300
so far."""


def first_seed(bugs: Bugs, draw: Draw, seeds: range) -> int | None:
    """Returns the first seed whose walk finds the bug."""
    for seed in seeds:
        try:
            walk(seed, bugs, draw)
        except Violated:
            return seed
    return None


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """Without any one of these rules, some invariant breaks."""
    bugs, draw, start = BUGS[name]
    assert first_seed(bugs, draw, range(start, start + SEEDS_PER_BUG)) is not None


MOVES = range(58, 66)


@pytest.mark.parametrize("draw", [of_moves, of_restarts])
def test_many_moves_or_restarts_lose_nothing(draw: Draw) -> None:
    """Nodes learn of the changes late."""
    for seed in MOVES:
        walk(seed, draw=draw)


def test_a_removed_replica_that_is_not_fenced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a new leader epoch it is added to the ISR again, and then deletes its log."""

    def lax(before: Partition, after: Partition, brokers: Mapping[int, BrokerInfo]) -> Partition:
        return after if before.leader in after.isr else relead(before, after, brokers)

    monkeypatch.setattr("penstock.metadata.isr.relead", lax)
    monkeypatch.setattr("penstock.metadata.reassignment.relead", lax)
    with pytest.raises(Violated, match="I3"):
        for seed in MOVES:
            walk(seed, draw=of_moves)
