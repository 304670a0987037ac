"""Planted bugs at the edges: disks, changed topics, leases, malformed batches, order.

See `replication`. Each bug belongs to a fault or client of `scenario.EDGE_FAULTS`, `EPISODES` or
`EDGE_CLIENTS` that must find it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from penstock.broker.control.membership import Membership
from penstock.broker.dispatch import BrokerSession
from penstock.broker.partitions import hosted_partition as hosted_module
from penstock.broker.partitions import replicas as replicas_module
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.partitions.topic_rules import follower_rules
from penstock.broker.repair.disk_full import DiskFullGuard
from penstock.broker.replication import isr_proposals
from penstock.broker.replication.isr_proposals import IsrProposals
from penstock.metadata import isr, reassignment
from penstock.metadata.configs import TopicSettings
from penstock.metadata.edits import SyncedFrom
from penstock.metadata.image import TopicChange
from penstock.metadata.model import BrokerInfo, Partition
from penstock.partition.batch_rules import AppendRules, check_batch
from penstock.partition.epochs import LeaderEpochs
from penstock.partition.follower import (
    AdvanceLogStart,
    BatchSpan,
    Effect,
    Follower,
    FollowerRules,
    LogView,
)
from penstock.partition.leadership import InSyncRules, Leadership
from penstock.partition.machine import PartitionMachine
from penstock.records.batch import HeaderFields, validate_fields
from penstock.sim.bugs.planting import Plant, bug, patch
from penstock.storage import directory as directory_module
from penstock.storage.checkpoints import decode_partition_metadata, read_file
from penstock.storage.directory import LogDirectory
from penstock.storage.files import PARTITION_METADATA
from penstock.storage.flush_plan import FlushPlan
from penstock.storage.log import Log
from penstock.storage.opening import LogOpening, LogResources, RecoveryReport
from penstock.storage.recovery import open_log
from penstock.stores.errors import StoreUnreachable
from penstock.wire.errors import KafkaError

EDGE_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, EDGE_BUGS)


# -- disks


@_bug("flushes-skip-the-fsync")
def _never_syncs(patches: ExitStack) -> None:
    """A flush writes its checkpoint, but leaves the data in the page cache."""
    run = FlushPlan.run

    def lazy(self: FlushPlan) -> None:
        self.handles = []
        run(self)

    patch(patches, FlushPlan, "run", lazy)


@_bug("empty-disk-trusted")
def _trusts_empty_disks(patches: ExitStack) -> None:
    """A broker that comes back with a new disk counts as the replica it was."""
    patch(patches, BrokerInfo, "has_synced", lambda self, broker_epoch: True)


@_bug("rot-taken-for-a-torn-tail")
def _cuts_at_rot(patches: ExitStack) -> None:
    """A bad batch above the recovery point is cut off with everything after it, as if the process
    had been killed while it wrote that batch."""
    _open_logs_with(patches, known=None, cache_is_intact=False)


@_bug("high-watermark-forgotten")
def _forgets_the_high_watermark(patches: ExitStack) -> None:
    """A restarted broker does not know what was committed before."""
    patch(patches, LogDirectory, "_known_offsets", lambda self: {})


def _open_logs_with(patches: ExitStack, **given: Any) -> None:
    def open_otherwise(*args: Any, **kwargs: Any) -> Any:
        return open_log(*args, **{**kwargs, **given})

    patch(patches, directory_module, "open_log", open_otherwise)


@_bug("full-leader-goes-on")
def _leads_without_room(patches: ExitStack) -> None:
    """A broker whose disk is full continues to lead, and refuses writes."""

    async def idle(self: DiskFullGuard) -> None:
        await self._env.clock.sleep(1e6)

    patch(patches, DiskFullGuard, "run", idle)


# -- the store


@_bug("lease-renewed-late")
def _renews_late(patches: ExitStack) -> None:
    """The lease is renewed shortly before it expires, without a margin for a slow store."""

    async def wait_turn(self: Membership, sent_at: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._session_timeout_s * 0.9):
                await self._doubt.wait()
        self._doubt.clear()

    patch(patches, Membership, "_wait_turn", wait_turn)


@_bug("full-store-ends-the-broker")
def _ends_on_a_full_store(patches: ExitStack) -> None:
    """A full store makes a change of the ISR fail with an error that is not handled."""
    propose = IsrProposals._propose

    async def fragile(self: IsrProposals, portion: Any) -> None:
        with ExitStack() as narrowed:
            patch(
                narrowed,
                isr_proposals,
                "EXPECTED_ERRORS",
                (KafkaError, TimeoutError, StoreUnreachable),
            )
            await propose(self, portion)

    patch(patches, IsrProposals, "_propose", fragile)


# -- changed and deleted topics


@_bug("min-isr-change-ignored")
def _keeps_min_isr(patches: ExitStack) -> None:
    """A leader uses the min.insync.replicas that the topic had when its log was opened."""
    rules = PartitionMachine._insync_rules
    first: dict[int, tuple[PartitionMachine[Any], InSyncRules]] = {}

    def stale(self: PartitionMachine[Any]) -> InSyncRules:
        return first.setdefault(id(self), (self, rules(self)))[1]

    patch(patches, PartitionMachine, "_insync_rules", stale)


@_bug("deleted-topic-comes-back")
def _keeps_old_logs(patches: ExitStack) -> None:
    """A broker that was down while a topic was deleted and created again continues with its
    old log."""
    patch(patches, replicas_module, "to_text", lambda topic_id: "the same")


@_bug("deleted-records-come-back")
def _keeps_deleted(patches: ExitStack) -> None:
    """A follower does not delete what its leader has deleted, and the leader does not wait
    for it."""
    take = Follower._on_records

    def keeps(self: Follower, *given: Any) -> Any:
        return tuple(each for each in take(self, *given) if not isinstance(each, AdvanceLogStart))

    def own_start(self: Leadership, log_start_offset: int) -> int:
        return log_start_offset

    patch(patches, Follower, "_on_records", keeps)
    patch(patches, Leadership, "low_watermark", own_start)


@_bug("deletion-answered-without-eligible-leaders")
def _forgets_eligible(patches: ExitStack) -> None:
    """A deletion of records waits for live followers only. A replica that is down, and may lead
    next, still has them."""

    def of_live(self: Leadership, log_start_offset: int) -> int:
        live = (self._followers[each] for each in self._followers if each in self._brokers)
        return min([log_start_offset, *(each.log_start_offset for each in live)])

    patch(patches, Leadership, "low_watermark", of_live)


@_bug("zombie-topic-hosted")
def _hosts_the_dead(patches: ExitStack) -> None:
    """Of several queued changes of a topic, one from before its deletion still counts: a restarted
    broker continues to lead the old topic under the name of the new one."""
    apply = Replicas._apply

    async def naive(self: Replicas, changes: list[TopicChange]) -> None:
        last = {change.name: change.after for change in changes if change.after is not None}
        kept = [
            replace(change, after=last[change.name]) if change.name in last else change
            for change in changes
        ]
        await apply(self, kept)

    patch(patches, Replicas, "_apply", naive)


@_bug("unsynced-members-trusted-after-a-switch")
def _trusts_unsynced(patches: ExitStack) -> None:
    """A replica's disk is trusted although the topic's records counted before they were synced."""

    def trusting(broker: BrokerInfo, noted: int, synced_from: SyncedFrom | None) -> bool:
        return synced_from is not None

    patch(patches, isr, "_counted_synced", trusting)


@_bug("offsets-of-another-log-believed")
def _believes_old_offsets(patches: ExitStack) -> None:
    """The stored high watermark of a log is used for another log of the same name: neither the
    topic id nor the log's generation is compared."""

    def open_believing(
        resources: LogResources, directory: str, *given: Any, **named: Any
    ) -> tuple[Log, RecoveryReport]:
        noted = named.get("known")
        if noted is not None:
            data = read_file(resources.disk, f"{directory}/{PARTITION_METADATA}") or b""
            named["known"] = noted._replace(topic_id=decode_partition_metadata(data))
        return open_log(resources, directory, *given, **named)

    patch(patches, directory_module, "open_log", open_believing)
    patch(patches, LogOpening, "known", property(lambda self: self.noted_offsets))


@_bug("fetches-of-a-dropped-replica-counted")
def _counts_dropped(patches: ExitStack) -> None:
    """A replica that is moved away and back counts by its earlier fetches: the leader epoch stays,
    and the leader keeps what it knew about the replica."""
    on_partition = Leadership.on_partition

    def remembering(self: Leadership, partition: Partition, now_ms: int) -> bool:
        known = dict(self._followers)
        moved = on_partition(self, partition, now_ms)
        self._followers |= known
        return moved

    def same_epoch(
        before: Partition, after: Partition, brokers: Mapping[int, BrokerInfo]
    ) -> Partition:
        stays = before.leader in after.isr and before.leader in brokers
        return after if stays else relead(before, after, brokers)

    relead = isr.relead
    patch(patches, Leadership, "on_partition", remembering)
    for module in (isr, reassignment):
        patch(patches, module, "relead", same_epoch)


@_bug("added-replica-dropped-with-the-last-copy")
def _drops_added(patches: ExitStack) -> None:
    """A reassignment that replaces another drops an added replica at once, although fewer than
    min.insync.replicas remain that have all committed records."""
    patch(patches, reassignment, "fewest_members", lambda _min_insync, _targets, _members: 1)


@_bug("gaps-refused-without-compaction")
def _refuses_gaps(patches: ExitStack) -> None:
    """A follower treats a gap in the offsets as an error, unless the topic is compacted now."""
    check = Follower._check
    compacted: dict[int, tuple[FollowerRules, bool]] = {}

    def remembered(settings: TopicSettings, backoff_ms: int) -> FollowerRules:
        made = follower_rules(settings, backoff_ms)
        compacted[id(made)] = (made, "compact" in settings.cleanup_policy)
        return made

    def strict(self: Follower, span: BatchSpan, end: int, epoch: int) -> str | None:
        allowed = compacted.get(id(self._rules), (None, True))[1]
        if span.base_offset > end and not allowed:
            return f"offset {span.base_offset} came where {end} was expected"
        return check(self, span, end, epoch)

    patch(patches, hosted_module, "follower_rules", remembered)
    patch(patches, Follower, "_check", strict)


@_bug("epoch-of-deleted-records-forgotten")
def _forgets_deleted_epochs(patches: ExitStack) -> None:
    """A log does not remember which leader epoch wrote the last deleted record, and takes a replica
    that ends there for a copy."""
    truncate = LeaderEpochs.truncate_from_start

    def forget(self: LeaderEpochs, start_offset: int) -> bool:
        return truncate(self, start_offset + 1)

    patch(patches, LeaderEpochs, "truncate_from_start", forget)
    patch(patches, LeaderEpochs, "first", None)


@_bug("watermark-rises-before-the-restart")
def _commits_what_it_drops(patches: ExitStack) -> None:
    """A follower that must drop its log raises its high watermark before the records are gone."""
    begin_at = Follower._begin_at

    def at_once(self: Follower, offset: int, log: LogView) -> tuple[Effect, ...]:
        effects = begin_at(self, offset, log)
        self.high_watermark = offset
        return effects

    patch(patches, Follower, "_begin_at", at_once)


# -- clients


@_bug("acks-one-answered-before-the-flush")
def _answers_unflushed(patches: ExitStack) -> None:
    """A leader that is the only in-sync replica answers acks=1 before it has flushed."""
    patch(patches, PartitionMachine, "waits_for_own_flush", lambda self, end_offset: False)


@_bug("acks-one-answered-while-another-joins")
def _counts_on_the_joining(patches: ExitStack) -> None:
    """A leader that is the only in-sync replica answers acks=1 before it has flushed while its
    proposal to add another replica is undecided."""

    def waits(self: PartitionMachine[Any], end_offset: int) -> bool:
        held = self.leadership
        alone = held is not None and held.maximal_isr == {held.broker_id}
        return alone and self.counted_end < end_offset

    patch(patches, PartitionMachine, "waits_for_own_flush", waits)


@_bug("reads-overtake-writes")
def _reads_overtake(patches: ExitStack) -> None:
    """A request starts before the previous request on its connection is answered."""
    patch(patches, BrokerSession, "may_overlap", lambda self, frame: True)


@_bug("records-not-checked")
def _checks_headers_only(patches: ExitStack) -> None:
    """A batch is accepted by its header and CRC, whatever its records are."""

    def by_header(
        records: memoryview, rules: AppendRules, now_ms: int, zstd_allowed: bool, on_loop: bool
    ) -> tuple[memoryview, HeaderFields]:
        fields = validate_fields(records)
        check_batch(fields, len(records), rules, zstd_allowed)
        return records, fields

    patch(patches, hosted_module, "validate_batch", by_header)
