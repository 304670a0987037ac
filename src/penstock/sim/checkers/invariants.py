"""Checks the replicas in the memory of all brokers after every simulated step.

I1   Logs are equal below their high watermarks, and wherever an offset has the same leader epoch
     in both: a leader epoch and an offset identify one batch and everything before it, forever.
I2   The leader has everything that was ever committed; with `fsync`, on disk.
I3   The same holds for every candidate: in-sync replicas and eligible leader replicas.
I4   The leader counts every in-sync replica. What a follower considers committed was committed.
I7   Each leader epoch has one leader. Leader epochs never decrease within a log.
I8   The end offset that a leader reports to clients never goes back.
I9   Everything committed of an idempotent producer is in the log once and in order.

The rules about metadata alone are in `metadata_invariants`. Those about transactions and recovery
(I9, I12) are in `transaction_invariants`. A batch is committed once it was below a leader's high
watermark. From then on all replicas are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.broker.broker import Broker
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.metadata.model import NO_LEADER, Partition, Topic
from penstock.partition.leadership import Leadership
from penstock.ports import WatchEvent
from penstock.records.record import read_records
from penstock.sim.checkers.committed_log import CommittedLog
from penstock.sim.checkers.coordinator_log import CoordinatorLog
from penstock.sim.checkers.durability_switches import DurabilitySwitches
from penstock.sim.checkers.metadata_invariants import (
    InvariantBroken,
    TrueMetadata,
    broken,
    is_synced,
)
from penstock.sim.checkers.shadow_log import Mark, Peek, ShadowLog
from penstock.sim.checkers.state_watch import StateWatch
from penstock.sim.checkers.transaction_invariants import TrueTransactions
from penstock.sim.history import TABLE
from penstock.txns.formats import TOPIC as DECISIONS


def _ignore(*told: object) -> None:
    pass


class Watched(Protocol):
    """The part of a broker's node that the invariants use."""

    @property
    def id(self) -> int: ...

    @property
    def broker(self) -> Broker | None: ...


@dataclass(slots=True)
class _Seen:
    """A replica as it was at the last check."""

    hosted: HostedPartition
    key: tuple[str, int]
    partition_name: str
    shadow: ShadowLog
    end_offset: int = -1
    recovery_point: int = -1
    high_watermark: int = -1
    led: Leadership | None = None


class Invariants:
    """Receives every transaction of the store in `on_store`. `check`, called after every step,
    raises the first broken invariant."""

    def __init__(
        self,
        nodes: Callable[[], Sequence[Watched]],
        peek: Callable[[int], Peek],
        note: Callable[[str, str], None] = _ignore,
        stepped: Callable[[], int | None] = lambda: None,
        fences: Mapping[int, int] | None = None,
        watch: StateWatch | None = None,
        logs: Sequence[CoordinatorLog] = (),
    ) -> None:
        """Creates the checks.

        `note` receives, by topic partition, the events that were seen. `stepped` returns the only
        broker that can have changed since the last check, if that is known. `fences` has the epochs
        that producers were given when they took over a transactional id. With a `watch`, replicas
        are checked only after a step that changed a replica's state. `logs` check what
        coordinators write, in runs that have such clients.
        """
        self.metadata = TrueMetadata(note)
        self.txns = TrueTransactions({} if fences is None else fences)
        self.disturbed: dict[int, bool] = {}
        """Brokers whose disks have failed. Their logs may start again from nothing."""
        self.truths: dict[str, CommittedLog] = {}
        self.checks = 0
        self._nodes = nodes
        self._note = note
        self._stepped = stepped
        self._watch = watch
        self._logs = logs
        self._kept = (DECISIONS, *(log.topic for log in logs))
        """The topics whose batches are read, not only their headers."""
        self._peek = peek
        self._seen: dict[int, tuple[Broker, dict[tuple[str, int], _Seen]]] = {}
        self._dirty: dict[tuple[str, int], None] = {}
        """Partitions that have changed since their replicas were last compared."""
        self._all_dirty = True
        self._broken: InvariantBroken | None = None
        self.on_led_append: Callable[[int, str], None] = _ignore
        """Called when a leader has appended to a partition, before any other replica has
        the batch."""
        self._topic_ids: dict[str, bytes] = {}
        self._recreated: dict[str, None] = {}
        self._switches = DurabilitySwitches(self._replica)

    def on_store(self, events: Sequence[WatchEvent]) -> None:
        """Applies a transaction of the store. A violation is raised by the next `check`, not
        here: the code of the committing broker is running now, and might handle the exception as
        its own."""
        try:
            self._check_images()
            self.metadata.apply(events)
        except InvariantBroken as error:
            self._broken = self._broken or error
        for topic in self.metadata.image.topics.values():
            self._on_topic(topic)
            for log in self._logs:
                log.names[topic.topic_id] = topic.name
        self._all_dirty = True

    def _check_images(self) -> None:
        for node in self._nodes():
            if node.broker is not None:
                self.metadata.check_image(node.id, node.broker.cluster.image)

    def _on_topic(self, topic: Topic) -> None:
        """Forgets everything about a topic that was deleted and created again: same name,
        other id."""
        name = topic.name
        if self._topic_ids.setdefault(name, topic.topic_id) != topic.topic_id:
            self._topic_ids[name] = topic.topic_id
            self._recreated[name] = None
            for partition_name in [*self.truths]:
                if partition_name.rpartition("-")[0] == name:
                    del self.truths[partition_name]
            self.txns.forget_topic(name)
        self._switches.on_topic(topic)

    def check(self) -> None:
        """Checks what may have changed since the last call. Raises the first broken invariant."""
        self.checks += 1
        if self._broken is not None:
            raise self._broken
        for log in self._logs:
            if log.broken is not None:
                raise log.broken
        stepped, watch = self._stepped(), self._watch
        if stepped != NO_LEADER:
            touched = watch is None or watch.touched
            for node in self._nodes():
                if stepped is not None and node.id != stepped:
                    continue
                broker = node.broker
                if broker is None:
                    if self._seen.pop(node.id, None) is not None:
                        self._all_dirty = True
                elif touched or not self._is_known(node.id, broker):
                    self._look_at(node.id, broker)
            if watch is not None:
                watch.touched = False
        if self._all_dirty or self._dirty:
            self._check_members()

    def _is_known(self, broker_id: int, broker: Broker) -> bool:
        """Returns whether all replicas of the broker were seen before."""
        held = self._seen.get(broker_id)
        return (
            held is not None and held[0] is broker and len(held[1]) == len(broker.replicas._hosted)
        )

    # Logs

    def _look_at(self, broker_id: int, broker: Broker) -> None:
        """Finds the replicas of a broker that changed since the last look, and checks each."""
        held = self._seen.get(broker_id)
        if held is None or held[0] is not broker:
            held = self._seen[broker_id] = (broker, {})
        seen, replicas = held[1], broker.replicas._hosted
        if len(seen) != len(replicas):
            self._meet(broker_id, seen, replicas)
        # Compares pairwise by position, because this runs at every step of a run.
        for one, hosted in zip(seen.values(), replicas.values(), strict=True):
            log, led = hosted.log.state, hosted.leadership
            if hosted is not one.hosted:
                break
            if log.failure is not None:
                truth = self.truths.get(one.partition_name)
                chains = {} if truth is None else truth.chains
                self.txns.on_failed(broker_id, one.partition_name, chains)
                continue
            if (
                log.end_offset == one.end_offset
                and log.recovery_point == one.recovery_point
                and led is one.led
                and (hosted if led is None else led).high_watermark == one.high_watermark
            ):
                continue
            one.end_offset, one.recovery_point = log.end_offset, log.recovery_point
            one.high_watermark = hosted.high_watermark
            self._dirty[one.key] = None
            self._look_closer(broker_id, broker, one)
        else:
            if self.txns.has_markers:
                self.txns.check_markers()
            return
        self._meet(broker_id, seen, replicas)
        self._look_at(broker_id, broker)

    def _meet(
        self,
        broker_id: int,
        seen: dict[tuple[str, int], _Seen],
        replicas: Mapping[tuple[str, int], HostedPartition],
    ) -> None:
        """Brings the known replicas of a broker into the order in which the broker has them."""
        known = dict(seen)
        seen.clear()
        for key, hosted in replicas.items():
            one = known.get(key)
            if one is None or one.hosted is not hosted:
                peek = self._peek(broker_id)
                shadow = ShadowLog(hosted.log, peek, keep_bodies=key[0] in self._kept)
                one = _Seen(hosted, key, f"{key[0]}-{key[1]}", shadow)
            seen[key] = one

    def _look_closer(self, broker_id: int, broker: Broker, one: _Seen) -> None:
        """Checks one replica that has changed."""
        shadow, hosted = one.shadow, one.hosted
        if one.key[0] == TABLE or self._topic_ids.get(one.key[0], hosted.topic_id) != (
            hosted.topic_id
        ):
            # Compaction removes records, and nothing is promised about a deleted topic.
            return
        truth = self.truths.get(one.partition_name)
        if truth is None:
            truth = self.truths[one.partition_name] = CommittedLog(
                one.partition_name, is_recreated=one.key[0] in self._recreated
            )
        truth.synced_end = max(truth.synced_end, one.recovery_point)
        if not shadow.is_current:
            known, ended = shadow.end_offset, len(shadow.ended)
            cut, new = shadow.refresh()
            self._tell_log(broker_id, one.partition_name, shadow, new, cut, known)
            if new and known >= 0 and hosted.leadership is not None:
                self.on_led_append(broker_id, one.partition_name)
            self._check_marks(broker_id, truth, shadow, len(shadow.marks) if cut else len(new))
            if known < 0:
                self.txns.check_opened(broker_id, one.partition_name, shadow)
            elif not cut:
                leads = hosted.leadership is not None
                self.txns.on_written(broker_id, one.partition_name, new, leads=leads)
            self.txns.check_aborted(broker_id, one.partition_name, shadow, 0 if cut else ended)
        leadership = hosted.leadership
        high = hosted.high_watermark
        if leadership is not one.led:
            one.led = leadership
            self._tell_role(broker_id, one)
        if leadership is not None:
            holder = (leadership.broker_id, leadership.broker_epoch)
            key = (one.partition_name, leadership.epoch)
            if self.metadata.leaders.setdefault(key, holder) != holder:
                text = f"broker {broker_id} leads in epoch {leadership.epoch}, as did another"
                raise broken("I7", one.partition_name, text)
            if high > truth.end_offset:
                truth.extend(shadow, high, self._on_committed)
            self._check_told(broker_id, one.partition_name, truth, leadership.epoch, high, hosted)
        elif high > truth.end_offset:
            text = (
                f"follower {broker_id} has high watermark {high}, but only offsets below "
                f"{truth.end_offset} are committed"
            )
            raise broken("I4", one.partition_name, text, truth.end_offset)
        self._check_below(broker_id, truth, shadow, high)
        self.txns.check_known(broker_id, one.partition_name, shadow, hosted)
        self.txns.note_synced(broker_id, one.partition_name, shadow)

    def _on_committed(self, partition_name: str, mark: Mark, shadow: ShadowLog) -> None:
        """Checks a batch when it is committed."""
        self.txns.on_committed(partition_name, mark, shadow)
        for log in self._logs:
            is_plain = mark.marker is None and not mark.is_transactional
            if is_plain and partition_name.startswith(log.topic):
                assert shadow.bodies is not None
                records = read_records(shadow.bodies[mark.base_offset])
                log.on_committed(partition_name, mark.base_offset, records)

    def _tell_log(
        self,
        broker_id: int,
        partition_name: str,
        shadow: ShadowLog,
        new: list[Mark],
        cut: bool,
        known: int,
    ) -> None:
        if known < 0:
            self._note(
                partition_name,
                f"broker {broker_id} opened its log, which ends at {shadow.end_offset}",
            )
        elif cut:
            text = f"broker {broker_id} truncated its log from {known} to {shadow.end_offset}"
            self._note(partition_name, text)
        elif new:
            first, last = new[0], new[-1]
            self._note(
                partition_name,
                f"broker {broker_id} wrote {first.base_offset}..{last.next_offset - 1} "
                f"of epoch {last.leader_epoch}",
            )

    def _tell_role(self, broker_id: int, one: _Seen) -> None:
        term = one.hosted.leadership
        if term is None:
            self._note(one.partition_name, f"broker {broker_id} does not lead any more")
            return
        self._note(
            one.partition_name,
            f"broker {broker_id} leads in epoch {term.epoch} from offset {term.start_offset} on, "
            f"high watermark {term.high_watermark}, in sync {sorted(term.isr)}",
        )

    def _check_marks(
        self, broker_id: int, truth: CommittedLog, shadow: ShadowLog, count: int
    ) -> None:
        """Checks the last `count` batches, which are new in this log."""
        first = len(shadow.marks) - count
        epoch = shadow.marks[first - 1].leader_epoch if first else -1
        for number in range(first, len(shadow.marks)):
            mark = shadow.marks[number]
            if mark.leader_epoch < epoch:
                text = (
                    f"leader epochs decrease from {epoch} to {mark.leader_epoch} in broker "
                    f"{broker_id}'s log"
                )
                raise broken("I7", truth.partition_name, text, mark.base_offset)
            epoch = mark.leader_epoch
            if not shadow.is_whole:
                continue
            chain = shadow.chain_of(number)
            key = (mark.leader_epoch, mark.base_offset)
            if truth.batches.setdefault(key, chain) != chain:
                text = (
                    f"two logs have the same offset {mark.base_offset} and leader epoch "
                    f"{mark.leader_epoch}, but differ there or before: one is broker {broker_id}'s"
                )
                raise broken("I1", truth.partition_name, text, mark.base_offset)

    def _check_below(
        self, broker_id: int, truth: CommittedLog, shadow: ShadowLog, high: int
    ) -> None:
        end = min(high, truth.end_offset, shadow.end_offset)
        if not shadow.is_whole or end <= 0:
            return
        if end in truth.chains and shadow.chain_at(end) != truth.chains[end]:
            text = f"broker {broker_id}'s log differs from what is committed below {high}"
            raise broken("I1", truth.partition_name, text, end)

    def _check_told(
        self,
        broker_id: int,
        partition_name: str,
        truth: CommittedLog,
        epoch: int,
        high: int,
        hosted: HostedPartition,
    ) -> None:
        leadership = hosted.leadership
        assert leadership is not None
        partition = self._partition(partition_name)
        if partition is None or partition.leader_epoch != epoch or high < leadership.start_offset:
            return
        if high < truth.told_end:
            text = f"broker {broker_id} has high watermark {high}, but readers saw {truth.told_end}"
            raise broken("I8", partition_name, text, high)
        truth.told_end = high

    # Which replica has what

    def on_wiped(self, broker_id: int) -> None:
        """Expects nothing of what the broker had synced: it lost its disk."""
        self.disturbed[broker_id] = True
        self.txns.forget(self.metadata.image, [broker_id])

    def _partition(self, partition_name: str) -> Partition | None:
        name, _, index = partition_name.rpartition("-")
        return self.metadata.image.partition(name, int(index))

    def _replica(self, broker_id: int, key: tuple[str, int]) -> HostedPartition | None:
        held = self._seen.get(broker_id)
        one = None if held is None else held[1].get(key)
        return None if one is None else one.hosted

    def _check_members(self) -> None:
        """Checks that the members of changed partitions have everything that is committed (I2
        to I4)."""
        topics = self.metadata.image.topics
        if self._all_dirty:
            self.txns.forget(self.metadata.image, [*self.disturbed])
            keys = [
                (name, index) for name in topics for index in range(len(topics[name].partitions))
            ]
        else:
            keys = [*self._dirty]
        self._all_dirty = False
        self._dirty.clear()
        for key in keys:
            name, index = key
            topic, partition_name = topics.get(name), f"{name}-{index}"
            truth = self.truths.get(partition_name)
            if topic is not None and truth is not None and index < len(topic.partitions):
                self._check_partition(partition_name, key, topic, topic.partitions[index], truth)

    def _check_partition(
        self,
        partition_name: str,
        key: tuple[str, int],
        topic: Topic,
        partition: Partition,
        truth: CommittedLog,
    ) -> None:
        # While records may count that are not synced, the topic is checked by its old setting.
        # But elections use the new setting, so the leader must have everything.
        pending = self._switches.is_pending(topic, self.truths)
        synced = is_synced(topic) and not pending
        for each in partition.isr + partition.eligible_leaders:
            held = self._seen.get(each)
            info = self.metadata.image.brokers.get(each)
            if held is None or info is None:
                continue
            broker, seen = held
            one = seen.get(key)
            if one is None or broker.controller.broker_epoch != info.broker_epoch:
                continue
            if one.hosted.log.failure is not None or one.hosted.topic_id != topic.topic_id:
                continue
            noted = partition.member_epoch(each)
            if not info.has_kept(noted) and not (synced and info.has_synced(noted)):
                # It has lost records or its disk, and reports so. The controller will remove it
                # from the ISR.
                term = one.hosted.leadership
                if not pending or term is None or term.epoch != partition.leader_epoch:
                    continue
            self._check_holds(partition_name, each, partition, truth, one, synced)
        leader = self._seen.get(partition.leader)
        if leader is not None and (one := leader[1].get(key)) is not None:
            # The leader may not know yet that the topic was deleted and created again.
            held_term = one.hosted.leadership if one.hosted.topic_id == topic.topic_id else None
            if held_term is not None and held_term.epoch == partition.leader_epoch:
                missing = {*partition.isr} - held_term.maximal_isr
                if missing and held_term.broker_epoch == partition.leader_broker_epoch:
                    text = f"brokers {sorted(missing)} are in the ISR, but not in the leader's"
                    raise broken("I4", partition_name, f"{text}: {partition}")

    def _check_holds(
        self,
        partition_name: str,
        broker_id: int,
        partition: Partition,
        truth: CommittedLog,
        one: _Seen,
        synced: bool,
    ) -> None:
        rule, role = ("I2", "leader") if broker_id == partition.leader else ("I3", "candidate")
        shadow, end = one.shadow, truth.end_offset
        if shadow.end_offset < end:
            text = f"{role} {broker_id} has {shadow.end_offset} records, but {end} are committed"
            raise broken(rule, partition_name, f"{text}: {partition}", shadow.end_offset)
        if shadow.is_whole and shadow.chain_at(end) != truth.chains[end]:
            text = f"the log of {role} {broker_id} differs from what is committed below {end}"
            raise broken(rule, partition_name, f"{text}: {partition}", end)
        if synced and one.hosted.log.recovery_point < end:
            text = (
                f"{role} {broker_id} has synced {one.hosted.log.recovery_point} records, but "
                f"{end} are committed"
            )
            raise broken(rule, partition_name, f"{text}: {partition}", end)
