"""Bugs that can be planted by name: each removes one rule from the product.

A checker that finds nothing proves nothing, unless it is known to find bugs. Each bug here is a
mistake that was made once, or could have been made; with any of them planted, some seed must
fail. A bug patches the product's classes for the duration of a run. Bugs about transactions are
in `transactions`, those about edge cases in `edge_cases`, and those about rights and logins in
`access`. The docstring of a bug describes it (see `describe`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.commits import Commits
from penstock.broker.handlers import fetch_reads
from penstock.broker.partitions import hosted_partition as hosted_module
from penstock.broker.partitions.hosted_partition import HostedPartition, Written
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.replication import isr_proposals
from penstock.groups import offsets as group_offsets
from penstock.groups.group import Group
from penstock.groups.shard import GroupShard
from penstock.metadata import elections, isr
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.isr import IsrAnswer, IsrChange, alter_isrs
from penstock.metadata.keys import PREFIX
from penstock.metadata.model import BrokerInfo, Partition
from penstock.partition.epochs import EpochEnd
from penstock.partition.follower import Effect, Follower, LogView
from penstock.partition.leadership import AlterIsr, Leadership
from penstock.partition.machine import PartitionMachine
from penstock.partition.producers import ProducerStates
from penstock.partition.replica_progress import ReplicaProgress
from penstock.ports import Put
from penstock.records.batch import BatchHeader
from penstock.sim.bugs.access import ACCESS_BUGS
from penstock.sim.bugs.consumer_groups import CONSUMER_BUGS
from penstock.sim.bugs.delay_topics import DELAY_BUGS
from penstock.sim.bugs.edge_cases import EDGE_BUGS
from penstock.sim.bugs.encryption import ENCRYPTION_BUGS
from penstock.sim.bugs.pipelines import PIPELINE_BUGS
from penstock.sim.bugs.planting import Plant, bug, patch
from penstock.sim.bugs.quotas import QUOTA_BUGS
from penstock.sim.bugs.share_groups import SHARE_BUGS
from penstock.sim.bugs.share_records import SHARE_RECORD_BUGS
from penstock.sim.bugs.tokens import TOKEN_BUGS
from penstock.sim.bugs.transactions import TRANSACTION_BUGS
from penstock.storage.errors import StorageError
from penstock.storage.log_appender import LogAppender
from penstock.wire.errors import ErrorCode

BUGS: Final[dict[str, Plant]] = {
    **TRANSACTION_BUGS,
    **EDGE_BUGS,
    **ACCESS_BUGS,
    **TOKEN_BUGS,
    **QUOTA_BUGS,
    **ENCRYPTION_BUGS,
    **PIPELINE_BUGS,
    **CONSUMER_BUGS,
    **SHARE_BUGS,
    **SHARE_RECORD_BUGS,
    **DELAY_BUGS,
}
_bug = partial(bug, BUGS)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Runs the block with that bug in the product."""
    with ExitStack() as patches:
        BUGS[name](patches)
        yield


# -- the leader


@_bug("watermark-over-committed-isr")
def _committed_set_only(patches: ExitStack) -> None:
    """The high watermark does not wait for replicas that are proposed to join the ISR."""
    settle = Leadership._recompute_maximal_set

    def lax(self: Leadership) -> None:
        settle(self)
        self._maximal = self.isr

    patch(patches, Leadership, "_recompute_maximal_set", lax)


@_bug("ack-below-min-isr")
def _no_minimum(patches: ExitStack) -> None:
    """Writes are accepted and committed with fewer than min.insync.replicas in sync."""

    def outcome(self: Leadership, end_offset: int) -> ErrorCode | None:
        return ErrorCode.NONE if self.high_watermark >= end_offset else None

    patch(patches, Leadership, "_may_commit", lambda self: True)
    patch(patches, Leadership, "require_insync", lambda self: None)
    patch(patches, Leadership, "outcome", outcome)


@_bug("eligible-leaders-ignored")
def _eligible_ignored(patches: ExitStack) -> None:
    """The high watermark advances while there are eligible leader replicas, as if there
    were none."""
    patch(patches, Leadership, "_may_commit", lambda self: True)


@_bug("joins-below-high-watermark")
def _joins_early(patches: ExitStack) -> None:
    """Every replica that fetches at all joins the ISR."""

    def has_enough(self: Leadership, follower: ReplicaProgress) -> bool:
        return follower.end_offset >= 0

    patch(patches, Leadership, "_has_enough", has_enough)
    patch(patches, Leadership, "_waits_for", lambda self, replica, follower: False)


@_bug("isr-shrinks-unasked")
def _shrinks_unasked(patches: ExitStack) -> None:
    """A leader stops waiting for a slow follower before the controller has agreed."""
    propose = Leadership.propose

    def eager(self: Leadership, now_ms: int) -> AlterIsr | None:
        proposal = propose(self, now_ms)
        if proposal is not None:
            self._maximal = self.isr = frozenset(each for each, _ in proposal.isr)
        return proposal

    patch(patches, Leadership, "propose", eager)


@_bug("unknown-outcome-forgotten")
def _forgets_unknown(patches: ExitStack) -> None:
    """A proposal whose outcome is unknown is treated as refused."""
    refused = Leadership.on_isr_refused

    def forgets(self: Leadership, proposal: AlterIsr, reason: ErrorCode, now_ms: int) -> bool:
        return refused(self, proposal, ErrorCode.NOT_CONTROLLER, now_ms)

    patch(patches, Leadership, "on_isr_refused", forgets)


@_bug("latest-offset-at-once")
def _latest_at_once(patches: ExitStack) -> None:
    """A new leader reports the end of the partition before it knows where that is."""
    patch(patches, Leadership, "latest_offset", lambda self: self.high_watermark)


@_bug("ack-on-leader-alone")
def _acks_alone(patches: ExitStack) -> None:
    """The leader commits what it has, even if no other replica has it."""

    def advance(self: Leadership) -> bool:
        if self._own_end <= self.high_watermark:
            return False
        self.high_watermark = self._own_end
        return True

    patch(patches, Leadership, "_advance", advance)


@_bug("no-broker-epoch-check")
def _no_broker_epochs(patches: ExitStack) -> None:
    """A replica that caught up is assumed to have the registered broker epoch (before KIP-903)."""

    def lenient(
        image: ClusterImage, broker: int, epoch: int, changes: Sequence[IsrChange], **rest: Any
    ) -> Decision[tuple[IsrAnswer, ...]]:
        lives = {each.broker_id: each.broker_epoch for each in image.brokers.values()}
        anyone = [
            replace(change, isr=tuple((each, lives.get(each, old)) for each, old in change.isr))
            for change in changes
        ]
        return alter_isrs(image, broker, epoch, anyone, **rest)

    def may_join(self: Leadership, replica: int, follower: ReplicaProgress) -> bool:
        return replica in self._brokers and follower.end_offset >= 0

    def epoch_of(self: Leadership, replica: int) -> int:
        own = self.broker_epoch if replica == self.broker_id else -1
        return self._brokers.get(replica, own)

    patch(patches, Leadership, "_may_join", may_join)
    patch(patches, Leadership, "_epoch_of", epoch_of)
    patch(patches, isr_proposals, "alter_isrs", lenient)


@_bug("no-partition-epoch-check")
def _no_partition_epochs(patches: ExitStack) -> None:
    """The controller accepts a proposal that is based on an old state of the partition."""

    def lenient(
        image: ClusterImage, broker: int, epoch: int, changes: Sequence[IsrChange], **rest: Any
    ) -> Decision[tuple[IsrAnswer, ...]]:
        anytime = []
        for change in changes:
            topic = image.topic_by_id(change.topic_id)
            if topic is not None and change.index < len(topic.partitions):
                now = topic.partitions[change.index]
                change = replace(  # noqa: PLW2901 - the same change, made to look current
                    change, partition_epoch=now.partition_epoch, leader_epoch=now.leader_epoch
                )
            anytime.append(change)
        return alter_isrs(image, broker, epoch, anytime, **rest)

    patch(patches, isr_proposals, "alter_isrs", lenient)


# -- the broker around it


@_bug("ack-before-fsync")
def _counts_unsynced(patches: ExitStack) -> None:
    """With durability=fsync, records that are written but not synced count."""
    patch(patches, hosted_module, "counts_by_disk", lambda topic, settings: False)


@_bug("dedup-lost-on-failover")
def _forgets_producers(patches: ExitStack) -> None:
    """A new leader knows nothing about earlier producers."""
    begin = PartitionMachine._begin

    def forgetful(self: PartitionMachine[Any], term: Any) -> Any:
        self._log.producers.clear()
        return begin(self, term)

    patch(patches, PartitionMachine, "_begin", forgetful)


@_bug("duplicates-appended")
def _appends_duplicates(patches: ExitStack) -> None:
    """A batch that is sent again is written again."""
    check = ProducerStates.check

    def lax(self: ProducerStates, header: BatchHeader, **named: Any) -> None:
        check(self, header, **named)

    patch(patches, ProducerStates, "check", lax)


@_bug("duplicate-answered-with-the-end")
def _wrong_duplicate_offset(patches: ExitStack) -> None:
    """A duplicate batch is answered with the offset it would have got."""
    append = HostedPartition.append

    def misleading(self: HostedPartition, *given: Any, **named: Any) -> Written:
        end = self.log.end_offset
        written = append(self, *given, **named)
        return written if self.log.end_offset > end else written._replace(base_offset=end)

    patch(patches, HostedPartition, "append", misleading)


@_bug("serves-before-its-epoch-is-durable")
def _serves_early(patches: ExitStack) -> None:
    """A new leader begins before its epoch is stored, and continues in its predecessor's epoch."""
    lead, append = PartitionMachine.lead, LogAppender.append

    def at_once(self: PartitionMachine[Any], *given: Any, **named: Any) -> Any:
        effects = lead(self, *given, **named)
        if self._beginning is None:
            return effects
        return [*effects, *self._begin(self._beginning)]

    def in_the_old_epoch(self: LogAppender, batch: Any, leader_epoch: int, *given: Any) -> Any:
        epoch = self._state.epoch
        return append(self, batch, epoch if epoch >= 0 else leader_epoch, *given)

    patch(patches, LogAppender, "note_epoch", lambda self, epoch: None)
    patch(patches, LogAppender, "append", in_the_old_epoch)
    patch(patches, PartitionMachine, "lead", at_once)


@_bug("leads-on-after-a-restart")
def _leads_across_restarts(patches: ExitStack) -> None:
    """A broker that restarts quickly keeps leading in the leader epoch of its previous run."""
    take_role = Replicas._take_role

    def bold(self: Replicas, hosted: HostedPartition, partition: Partition, *more: Any) -> None:
        if partition.leader == self._broker_id:
            partition = replace(partition, leader_broker_epoch=self.broker_epoch)
        take_role(self, hosted, partition, *more)

    patch(patches, Replicas, "_take_role", bold)


@_bug("no-divergence-check")
def _never_diverges(patches: ExitStack) -> None:
    """The leader does not compare the follower's last epoch with its own log."""
    patch(patches, fetch_reads, "diverging_epoch", lambda *given: None)


@_bug("consumers-read-uncommitted")
def _reads_to_the_end(patches: ExitStack) -> None:
    """Consumers receive records that are not committed yet."""
    fetch_class = fetch_reads.FetchReads
    upper = fetch_class._limit_for_consumer

    def greedy(self: Any, each: Any, hosted: HostedPartition, answer: Any) -> int:
        found = upper(self, each, hosted, answer)
        return max(found, hosted.log.end_offset) if found == answer.high_watermark else found

    patch(patches, fetch_class, "_limit_for_consumer", greedy)


# -- the follower


@_bug("truncate-to-high-watermark")
def _cuts_to_watermark(patches: ExitStack) -> None:
    """A follower truncates everything that it does not know to be committed (before KIP-101)."""
    follow = HostedPartition.follow

    def cutting(self: HostedPartition, *given: Any, **named: Any) -> None:
        held = self.follower
        follow(self, *given, **named)
        if self.follower is not held and self.high_watermark < self.log.end_offset:
            with suppress(StorageError):
                self.log.truncate_to(max(self.high_watermark, self.log.log_start_offset))

    patch(patches, HostedPartition, "follow", cutting)


@_bug("one-round-truncation")
def _one_round(patches: ExitStack) -> None:
    """A follower truncates to where the leader says, without looking at its own epochs."""

    def blunt(
        self: Follower, found: EpochEnd, leader_start: int, log: LogView, now_ms: int
    ) -> tuple[Effect, ...]:
        if found.end_offset >= log.end_offset:
            return self._back_off(now_ms, "nothing to cut")
        return self._cut_to(found.end_offset, leader_start, log)

    patch(patches, Follower, "_on_diverging", blunt)


# -- the controller


@_bug("elects-anybody")
def _elects_anybody(patches: ExitStack) -> None:
    """If no in-sync replica is left, any live replica is elected."""
    choose = elections.choose_leader

    def unclean(*given: Any, **named: Any) -> int:
        return choose(*given, **{**named, "unclean": True})

    patch(patches, elections, "choose_leader", unclean)


@_bug("restarts-taken-for-lossless")
def _always_kept(patches: ExitStack) -> None:
    """A broker that comes back is assumed to have everything that it had."""
    patch(patches, BrokerInfo, "has_kept", lambda self, broker_epoch: True)


@_bug("stale-controller-write-accepted")
def _no_compares(patches: ExitStack) -> None:
    """Decisions are committed without checking what they are based on."""
    attempt = Commits.attempt

    async def blind(self: Commits, decision: Decision[Any]) -> bool:
        if any(change.value is None or change.leased for change in decision.changes):
            return await attempt(self, decision)
        puts = [Put(change.key, change.value or b"") for change in decision.changes]
        committed = await self._store.commit([], puts)
        await self._cluster.wait_for(committed.revision)
        return committed.succeeded

    patch(patches, Commits, "attempt", blind)


@_bug("move-completes-early")
def _completes_early(patches: ExitStack) -> None:
    """The old replicas of a moved partition are removed before the new ones have caught up."""

    def hasty(partition: Partition) -> Partition:
        adding = partition.adding_replicas
        targets = tuple(
            each for each in partition.replicas if each not in partition.removing_replicas
        )
        if not partition.is_moving or not adding:
            return completed(partition)
        lives = dict(zip(partition.isr, partition.member_epochs, strict=False))
        return replace(
            partition,
            replicas=targets,
            isr=targets,
            eligible_leaders=(),
            member_epochs=tuple(lives.get(each, -1) for each in targets),
            adding_replicas=(),
            removing_replicas=(),
        )

    completed = isr.completed
    patch(patches, isr, "completed", hasty)


@_bug("watch-gap-ignored")
def _ignores_gaps(patches: ExitStack) -> None:
    """A broker whose watch has missed changes continues with the next change."""
    load = ClusterView.load

    async def only_once(self: ClusterView) -> None:
        if not self.image.revision:
            await load(self)
            return
        _, revision = await self._store.range(PREFIX)
        self.image.revision = max(self.image.revision, revision)

    patch(patches, ClusterView, "load", only_once)


# -- groups


@_bug("offsets-not-replayed")
def _replays_nothing(patches: ExitStack) -> None:
    """A new coordinator starts without the stored state."""
    patch(patches, GroupShard, "replay", lambda self, *record: None)


@_bug("stale-generation-commits")
def _takes_old_commits(patches: ExitStack) -> None:
    """Any process that commits offsets is treated as a member."""

    def anybody(shard: Any, request: Any, info: Any, now: Any) -> Group:
        group = shard.groups.get(request.group_id)
        return group if group is not None else Group(request.group_id, now.wall_ms)

    patch(patches, group_offsets, "_committing_group", anybody)


def describe() -> Mapping[str, str]:
    """Returns, by name, what is wrong with each bug."""
    return {name: (plant.__doc__ or "").strip() for name, plant in BUGS.items()}
