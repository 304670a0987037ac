"""What must hold of transactions in the memory and on the disks of all brokers, after every step.

I9   nothing of a producer is committed that was written after another had taken its place, and was
     told so; no two have the same id; a marker says what the coordinator decided, and comes after
     the decision is committed; transactions that are committed together are decided by one batch;
     readers of committed records are let as far as the first transaction
     that is open, or whose marker is not committed
I12  what a broker knows of transactions follows from its log alone: which are open and which were
     aborted; of what it has synced nothing is missing when it opens its log again

What was decided is read from the coordinators' own log, as far as that is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.broker.hosted import HostedPartition
from penstock.metadata.image import ClusterImage
from penstock.records.record import ControlType, read_records
from penstock.sim.history import SINK_IDS, SINK_MEMBERS
from penstock.sim.invariants_metadata import broken
from penstock.sim.shadows import Mark, Shadow
from penstock.txns.formats import TOPIC, read_record


@dataclass(slots=True)
class TrueTransactions:
    """All that was decided, and what may not be written any more."""

    fences: Mapping[int, int] = field(default_factory=dict)
    """By producer id: the epoch that somebody was given when it took over."""
    decided: dict[tuple[int, int, ControlType], None] = field(default_factory=dict)
    """Producer id and epoch, as its markers carry them, and how its transaction ends."""
    owners: dict[int, str] = field(default_factory=dict)
    """By producer id: whose it is, by the transactional id."""
    late: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """By place, leader epoch and offset: batches that must not come to be committed, and why."""
    synced: dict[tuple[int, str], tuple[int, int | None]] = field(default_factory=dict)
    """By broker and place: up to where a log was synced, and the chain of what is below."""
    dropped: dict[tuple[int, str], None] = field(default_factory=dict)
    """Brokers and places: who was taken off and may not have heard of it. Even if the broker is
    taken back meanwhile, it deletes its log when it hears."""
    _markers: list[tuple[str, int, Mark]] = field(default_factory=list)

    def on_written(self, broker_id: int, place: str, new: Sequence[Mark], *, leads: bool) -> None:
        """A broker has appended these, or taken them from its leader."""
        if not leads:
            return
        for mark in new:
            if mark.marker is not None:
                self._markers.append((place, broker_id, mark))
            elif mark.is_transactional and mark.producer_epoch < self.fences.get(
                mark.producer_id, -1
            ):
                key = (place, mark.leader_epoch, mark.base_offset)
                self.late[key] = (
                    f"producer {mark.producer_id} wrote in epoch {mark.producer_epoch} when "
                    f"another had been given epoch {self.fences[mark.producer_id]}"
                )

    def on_committed(self, place: str, mark: Mark, shadow: Shadow) -> None:
        """A batch is committed."""
        late = self.late.get((place, mark.leader_epoch, mark.base_offset))
        if late is not None:
            raise broken("I9", place, late, mark.base_offset)
        if shadow.bodies is not None and place.startswith(TOPIC) and mark.marker is None:
            together = 0
            for record in read_records(shadow.bodies[mark.base_offset]):
                together += self._note_decision(place, record.key, record.value)
            if together not in (0, SINK_MEMBERS):
                text = f"{together} transactions of a sink are committed, of {SINK_MEMBERS}"
                raise broken("I9", place, text, mark.base_offset)

    def _note_decision(self, place: str, key: bytes | None, value: bytes | None) -> bool:
        """Whether it decides to commit a transaction of a sink."""
        entry = read_record(key, value)
        transaction = None if entry is None else entry.transaction
        if transaction is None:
            return False
        mine = transaction.transactional_id
        owner = self.owners.setdefault(transaction.producer_id, mine)
        if owner != mine:
            text = f"{mine} was given producer {transaction.producer_id}, which is {owner}'s"
            raise broken("I9", place, text)
        if transaction.state.is_preparing:
            committed = transaction.state.is_committed
            kind = ControlType.COMMIT if committed else ControlType.ABORT
            self.decided[transaction.producer_id, transaction.producer_epoch, kind] = None
            return committed and mine.startswith(SINK_IDS)
        return False

    @property
    def has_markers(self) -> bool:
        """Whether some were written that were not checked yet."""
        return bool(self._markers)

    def check_markers(self) -> None:
        """After a step was looked at whole: a decision and its marker may be of one step."""
        markers, self._markers = self._markers, []
        for place, broker_id, mark in markers:
            assert mark.marker is not None
            if (mark.producer_id, mark.producer_epoch, mark.marker) not in self.decided:
                text = (
                    f"broker {broker_id} wrote that the transaction of producer "
                    f"{mark.producer_id} epoch {mark.producer_epoch} ended by "
                    f"{mark.marker.name.lower()}, which nobody had decided"
                )
                raise broken("I9", place, text, mark.base_offset)

    def check_known(
        self, broker_id: int, place: str, shadow: Shadow, hosted: HostedPartition
    ) -> None:
        """What a broker has worked out of a log, against the log itself.

        A broker cannot know what a quarantined batch said. The log of such a replica is cut there
        and fetched again, and is checked then.
        """
        if not shadow.is_whole or shadow.log.damage:
            return
        log, high = hosted.log, hosted.high_watermark
        due = shadow.last_stable_offset(high)
        # Of what had ended before it opened its log, or cut it, a broker does not know whether the
        # markers are committed. What they tell is: if one is lost it is written again, the same.
        told, most = hosted.last_stable_offset, shadow.last_stable_offset(high, shadow.settled_end)
        least, most = (min(max(each, log.log_start_offset), high) for each in (due, most))
        if not least <= told <= most:
            text = f"broker {broker_id} takes {told} for the last stable offset, and that is {due}"
            raise broken("I9", place, text, told)
        known = log.producers._ongoing
        if len(known) != len(shadow.open) or {*known} != {*shadow.open.values()}:
            text = (
                f"broker {broker_id} takes transactions for open at {sorted(known)}, and by its "
                f"log they are at {sorted(shadow.open.values())}"
            )
            raise broken("I12", place, text)

    def check_aborted(self, broker_id: int, place: str, shadow: Shadow, first: int) -> None:
        """The list that fetches are answered with, of all that ended since a look."""
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
                    f"broker {broker_id} does not list the transaction of producer "
                    f"{each.producer_id} from {each.first_offset} on, which was aborted at "
                    f"{each.marker_offset}"
                )
                raise broken("I12", place, text, each.first_offset)

    # What is synced

    def note_synced(self, broker_id: int, place: str, shadow: Shadow) -> None:
        if shadow.is_whole and (broker_id, place) not in self.dropped:
            end = min(shadow.log.recovery_point, shadow.end_offset)
            self.synced[broker_id, place] = (end, shadow.chain_at(end))

    def on_failed(self, broker_id: int, place: str, committed: Mapping[int, int]) -> None:
        """Perhaps in the middle of a truncation, which may be half done: then what it was to take
        away may be there or not. `committed` has chains by their ends."""
        end, chain = self.synced.get((broker_id, place), (0, None))
        if chain is not None and committed.get(end) != chain:
            del self.synced[broker_id, place]

    def check_opened(self, broker_id: int, place: str, shadow: Shadow) -> None:
        self.dropped.pop((broker_id, place), None)
        synced = self.synced.get((broker_id, place))
        if synced is None or not shadow.is_whole:
            return
        end, chain = synced
        if shadow.end_offset < end:
            text = (
                f"broker {broker_id} opened its log and has {shadow.end_offset} records, of {end} "
                "that were synced"
            )
            raise broken("I12", place, text, shadow.end_offset)
        if chain is not None and shadow.chain_at(end) != chain:
            text = f"broker {broker_id} opened its log and has other records than those it synced"
            raise broken("I12", place, text, end)

    def forget_topic(self, name: str) -> None:
        """It was deleted and made again: its logs begin anew."""
        for key in [key for key in self.synced if key[1].rpartition("-")[0] == name]:
            del self.synced[key]

    def forget(self, image: ClusterImage, disturbed: Sequence[int]) -> None:
        """Logs may be begun anew by who was taken off a partition, and where a disk has failed."""
        for broker_id, place in [*self.synced]:
            name, _, index = place.rpartition("-")
            partition = image.partition(name, int(index))
            if partition is None or broker_id not in partition.replicas or broker_id in disturbed:
                del self.synced[broker_id, place]
                if partition is not None and broker_id not in partition.replicas:
                    self.dropped[broker_id, place] = None
