"""Checks transactions in the memory and on the disks of all brokers after every step.

I9   No batch of a producer is committed that was written after another producer took over its
     transactional id and was given a newer epoch. No two transactional ids have the same producer
     id. A marker carries what the coordinator decided, and is written after the decision is
     committed. Transactions that are committed together are decided by one batch. Readers of
     committed records can read up to the first transaction that is open or whose marker is not
     committed.
I12  What a broker knows about transactions follows from its log alone: which are open and which
     were aborted. Nothing that a broker has synced is missing when it opens its log again.

The decisions are read from the committed part of the coordinators' own log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.metadata.image import ClusterImage
from penstock.records.record import ControlType, read_records
from penstock.sim.checkers.metadata_invariants import broken
from penstock.sim.checkers.shadow_log import Mark, ShadowLog
from penstock.sim.history import SINK_IDS, SINK_MEMBERS
from penstock.txns.formats import TOPIC, read_record


@dataclass(slots=True)
class TrueTransactions:
    """All decisions, and the batches that must not be committed any more."""

    fences: Mapping[int, int] = field(default_factory=dict)
    """By producer id: the newest epoch that a producer received when it took over."""
    decided: dict[tuple[int, int, ControlType], None] = field(default_factory=dict)
    """The producer id and epoch that the markers carry, and how the transaction ends."""
    owners: dict[int, str] = field(default_factory=dict)
    """By producer id: the transactional id that owns it."""
    late: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """By topic partition, leader epoch and offset: batches that must not be committed, and why."""
    synced: dict[tuple[int, str], tuple[int, int | None]] = field(default_factory=dict)
    """By broker and topic partition: up to where a log was synced, and the chain hash of what
    is below."""
    dropped: dict[tuple[int, str], None] = field(default_factory=dict)
    """Broker and topic partition of replicas that were removed, perhaps without the broker knowing
    it yet. Even if the replica is added again meanwhile, the broker deletes its log when it learns
    of it."""
    _markers: list[tuple[str, int, Mark]] = field(default_factory=list)

    def on_written(
        self, broker_id: int, partition_name: str, new: Sequence[Mark], *, leads: bool
    ) -> None:
        """Checks batches that a broker has appended as leader. Batches of followers are ignored."""
        if not leads:
            return
        for mark in new:
            if mark.marker is not None:
                self._markers.append((partition_name, broker_id, mark))
            elif mark.is_transactional and mark.producer_epoch < self.fences.get(
                mark.producer_id, -1
            ):
                key = (partition_name, mark.leader_epoch, mark.base_offset)
                self.late[key] = (
                    f"producer {mark.producer_id} wrote in epoch {mark.producer_epoch} after "
                    f"it was fenced by epoch {self.fences[mark.producer_id]}"
                )

    def on_committed(self, partition_name: str, mark: Mark, shadow: ShadowLog) -> None:
        """Checks a batch when it is committed."""
        late = self.late.get((partition_name, mark.leader_epoch, mark.base_offset))
        if late is not None:
            raise broken("I9", partition_name, late, mark.base_offset)
        if shadow.bodies is not None and partition_name.startswith(TOPIC) and mark.marker is None:
            together = 0
            for record in read_records(shadow.bodies[mark.base_offset]):
                together += self._note_decision(partition_name, record.key, record.value)
            if together not in (0, SINK_MEMBERS):
                text = f"only {together} of {SINK_MEMBERS} transactions of a sink are committed"
                raise broken("I9", partition_name, text, mark.base_offset)

    def _note_decision(self, partition_name: str, key: bytes | None, value: bytes | None) -> bool:
        """Notes a decision. Returns whether it commits a transaction of a sink."""
        entry = read_record(key, value)
        transaction = None if entry is None else entry.transaction
        if transaction is None:
            return False
        mine = transaction.transactional_id
        owner = self.owners.setdefault(transaction.producer_id, mine)
        if owner != mine:
            text = f"{mine} got producer id {transaction.producer_id}, which belongs to {owner}"
            raise broken("I9", partition_name, text)
        if transaction.state.is_preparing:
            committed = transaction.state.is_committed
            kind = ControlType.COMMIT if committed else ControlType.ABORT
            self.decided[transaction.producer_id, transaction.producer_epoch, kind] = None
            return committed and mine.startswith(SINK_IDS)
        return False

    @property
    def has_markers(self) -> bool:
        """Whether markers were written that are not checked yet."""
        return bool(self._markers)

    def check_markers(self) -> None:
        """Checks new markers. Runs after all replicas of a broker were checked, because a decision
        and its marker can come in the same step."""
        markers, self._markers = self._markers, []
        for partition_name, broker_id, mark in markers:
            assert mark.marker is not None
            if (mark.producer_id, mark.producer_epoch, mark.marker) not in self.decided:
                text = (
                    f"broker {broker_id} wrote a marker ({mark.marker.name.lower()}) for producer "
                    f"{mark.producer_id} epoch {mark.producer_epoch}, but no coordinator had "
                    "decided that"
                )
                raise broken("I9", partition_name, text, mark.base_offset)

    def check_known(
        self, broker_id: int, partition_name: str, shadow: ShadowLog, hosted: HostedPartition
    ) -> None:
        """Compares what a broker derived from a log with the log itself.

        A broker cannot know the contents of a quarantined batch. The log of such a replica is
        truncated there and fetched again, and is checked then.
        """
        if not shadow.is_whole or shadow.log.damage:
            return
        log, high = hosted.log, hosted.high_watermark
        due = shadow.last_stable_offset(high)
        # For transactions that ended before a broker opened or truncated its log, the broker does
        # not know whether the markers are committed. Their decisions are: a lost marker is written
        # again, with the same decision.
        told, most = hosted.last_stable_offset, shadow.last_stable_offset(high, shadow.settled_end)
        least, most = (min(max(each, log.log_start_offset), high) for each in (due, most))
        if not least <= told <= most:
            text = f"broker {broker_id} has last stable offset {told}, but it should be {due}"
            raise broken("I9", partition_name, text, told)
        known = log.producers._ongoing
        if len(known) != len(shadow.open) or {*known} != {*shadow.open.values()}:
            text = (
                f"broker {broker_id} has open transactions at {sorted(known)}, but in its log "
                f"they are at {sorted(shadow.open.values())}"
            )
            raise broken("I12", partition_name, text)

    def check_aborted(
        self, broker_id: int, partition_name: str, shadow: ShadowLog, first: int
    ) -> None:
        """Checks that the transactions that ended since the last check are in the list of aborted
        transactions that fetch responses use."""
        if not shadow.is_whole or shadow.log.damage:
            return
        log = shadow.log
        for each in shadow.ended[first:]:
            if not each.aborted or each.marker_offset < log.log_start_offset:
                continue
            start = max(each.first_offset, log.log_start_offset)
            found = log.aborted_entries(start, each.marker_offset + 1)
            if not any(
                entry.producer_id == each.producer_id and entry.first_offset == each.first_offset
                for entry in found
            ):
                text = (
                    f"broker {broker_id} does not list the aborted transaction of producer "
                    f"{each.producer_id} from offset {each.first_offset} to "
                    f"{each.marker_offset}"
                )
                raise broken("I12", partition_name, text, each.first_offset)

    # Synced data

    def note_synced(self, broker_id: int, partition_name: str, shadow: ShadowLog) -> None:
        if shadow.is_whole and (broker_id, partition_name) not in self.dropped:
            end = min(shadow.log.recovery_point, shadow.end_offset)
            self.synced[broker_id, partition_name] = (end, shadow.chain_at(end))

    def on_failed(self, broker_id: int, partition_name: str, committed: Mapping[int, int]) -> None:
        """Handles a log that failed, perhaps in the middle of a truncation. Then the batches to be
        truncated may or may not be there. `committed` has the chain hashes by end offset."""
        end, chain = self.synced.get((broker_id, partition_name), (0, None))
        if chain is not None and committed.get(end) != chain:
            del self.synced[broker_id, partition_name]

    def check_opened(self, broker_id: int, partition_name: str, shadow: ShadowLog) -> None:
        self.dropped.pop((broker_id, partition_name), None)
        synced = self.synced.get((broker_id, partition_name))
        if synced is None or not shadow.is_whole:
            return
        end, chain = synced
        if shadow.end_offset < end:
            text = (
                f"broker {broker_id} opened its log, which has {shadow.end_offset} records, but "
                f"{end} had been synced"
            )
            raise broken("I12", partition_name, text, shadow.end_offset)
        if chain is not None and shadow.chain_at(end) != chain:
            text = f"broker {broker_id} opened its log, which differs from what had been synced"
            raise broken("I12", partition_name, text, end)

    def forget_topic(self, name: str) -> None:
        """Forgets a topic that was deleted and created again: its logs start from nothing."""
        for key in [key for key in self.synced if key[1].rpartition("-")[0] == name]:
            del self.synced[key]

    def forget(self, image: ClusterImage, disturbed: Sequence[int]) -> None:
        """Forgets logs that may start from nothing: of replicas that were removed, and on
        failed disks."""
        for broker_id, partition_name in [*self.synced]:
            name, _, index = partition_name.rpartition("-")
            partition = image.partition(name, int(index))
            if partition is None or broker_id not in partition.replicas or broker_id in disturbed:
                del self.synced[broker_id, partition_name]
                if partition is not None and broker_id not in partition.replicas:
                    self.dropped[broker_id, partition_name] = None
