"""Checks the metadata after every transaction of the store.

I5   A broker that joins the ISR is registered, with exactly the broker epoch it joins with. An
     elected leader was a member before. (An election may be decided before a broker is seen to
     leave or to come back, and committed afterwards. Then it elects a broker epoch that is over,
     and the next election corrects that.)
I6   An eligible leader replica is not in sync, and there are none while enough replicas are in
     sync. The leader is in sync (the decoder of stored topics requires this as well).
I7   A leader epoch has one leader.
I11  Every change of a partition raises its partition epoch. Leader epochs never decrease. A broker
     whose image has the store's revision has every key at the revision that the store has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.metadata.image import Changed, ClusterImage, TopicChange
from penstock.metadata.model import NO_LEADER, Partition, Topic
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.ports import WatchEvent
from penstock.sim.checkers.logs import Violation


class InvariantBroken(Exception):
    """An invariant does not hold. Ends the run."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


def broken(rule: str, partition_name: str, text: str, offset: int = -1) -> InvariantBroken:
    return InvariantBroken(Violation(rule, partition_name, text, offset))


def _short(partition: Partition) -> str:
    eligible = f" eligible {[*partition.eligible_leaders]}" if partition.eligible_leaders else ""
    moving = f" adding {[*partition.adding_replicas]}" if partition.is_moving else ""
    return (
        f"leader {partition.leader} epoch {partition.leader_epoch} in sync {[*partition.isr]}"
        f"{eligible}{moving} of {[*partition.replicas]}, partition epoch "
        f"{partition.partition_epoch}, broker epochs {[*partition.member_epochs]}"
    )


def min_insync(topic: Topic, partition: Partition) -> int:
    wanted = int(topic.configs.get("min.insync.replicas", "1"))
    return min(wanted, len(partition.replicas))


def is_synced(topic: Topic) -> bool:
    """Returns whether a record counts as committed only once it is on disk."""
    return topic.configs.get("durability", "fsync") == "fsync" or topic.is_internal


@dataclass(slots=True)
class TrueMetadata:
    """The metadata as the store has it, whether or not any broker has received it."""

    note: Callable[[str, str], None]
    """Receives every change, by topic partition."""
    image: ClusterImage = field(default_factory=ClusterImage)
    leaders: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By topic partition and leader epoch: the leader and its broker epoch."""
    lives: dict[tuple[int, int], None] = field(default_factory=dict)
    """Every broker id and broker epoch that was ever registered."""
    changes: int = 0
    elections: int = 0
    shrinks: int = 0
    grows: int = 0
    joined_stopping: int = 0

    def apply(self, events: Iterable[WatchEvent]) -> None:
        """Applies one transaction of the store."""
        before: dict[str, Topic | None] = {}
        for event in events:
            try:
                changed = self.image.apply(event.key, event.value, event.revision)
            except MetadataInvalid as error:
                raise broken("I6", event.key, str(error)) from error
            self._tell(changed)
            for change in changed.topics:
                before.setdefault(change.name, change.before)
        self.changes += 1
        for name, topic in before.items():
            self._check(TopicChange(name, topic, self.image.topics.get(name)))

    def check_image(self, broker_id: int, image: ClusterImage) -> None:
        """Compares a broker's image with the store, if the image has reached the store's revision.

        Compares the revisions of the keys, not the values: that is cheap enough to do before
        every transaction.
        """
        if image.revision < self.image.revision:
            return
        known, true = image._key_revisions, self.image._key_revisions
        if known != true:
            keys = sorted(known.keys() | true.keys())
            key = next(key for key in keys if known.get(key) != true.get(key))
            text = (
                f"broker {broker_id} is at revision {image.revision} and has the key as of "
                f"revision {known.get(key)}, but the store has it as of {true.get(key)}"
            )
            raise broken("I11", key, text)

    def _tell(self, changed: Changed) -> None:
        for broker in changed.brokers:
            after = broker.after
            if after is not None:
                self.lives[broker.broker_id, after.broker_epoch] = None
            told = (
                "left the cluster"
                if after is None
                else f"registered with broker epoch {after.broker_epoch}"
            )
            if after is not None and after.broker_id in self.image.stopping:
                told = "is stopping"
            self.note("", f"metadata: broker {broker.broker_id} {told}")
        if changed.controller:
            held = self.image.controller
            told = "none" if held is None else f"broker {held.broker_id} in epoch {held.epoch}"
            self.note("", f"metadata: controller: {told}")

    def _check(self, change: TopicChange) -> None:
        after, before = change.after, change.before
        if after is None:
            return
        same = before is not None and before.topic_id == after.topic_id
        if not same:
            # A topic that is created again starts with the first leader epoch again. It may have
            # fewer partitions, and get the others later.
            name = after.name
            for key in [key for key in self.leaders if key[0].rpartition("-")[0] == name]:
                del self.leaders[key]
        for index, partition in enumerate(after.partitions):
            partition_name = f"{after.name}-{index}"
            old = (
                before.partitions[index]
                if before is not None and same and index < len(before.partitions)
                else None
            )
            if old == partition:
                continue
            self.note(partition_name, f"metadata: {_short(partition)}")
            self._check_sets(partition_name, after, partition)
            self._check_epochs(partition_name, old, partition)
            self._check_members(partition_name, old, partition)

    def _check_sets(self, partition_name: str, topic: Topic, partition: Partition) -> None:
        if partition.eligible_leaders and len(partition.isr) >= min_insync(topic, partition):
            raise broken(
                "I6", partition_name, f"it has an ELR although the ISR is large enough: {partition}"
            )

    def _check_epochs(self, partition_name: str, old: Partition | None, new: Partition) -> None:
        if old is not None:
            if new.partition_epoch <= old.partition_epoch:
                raise broken(
                    "I11", partition_name, f"partition epoch did not increase: {old} became {new}"
                )
            if new.leader_epoch < old.leader_epoch:
                raise broken(
                    "I11", partition_name, f"its leader epoch decreased: {old} became {new}"
                )
            self.elections += new.leader_epoch > old.leader_epoch
            self.shrinks += len(new.isr) < len(old.isr)
            self.grows += len(new.isr) > len(old.isr)
        if new.leader == NO_LEADER:
            return
        leader = (new.leader, new.leader_broker_epoch)
        if self.leaders.setdefault((partition_name, new.leader_epoch), leader) != leader:
            raise broken(
                "I7", partition_name, f"leader epoch {new.leader_epoch} has two leaders: {new}"
            )

    def _check_members(self, partition_name: str, old: Partition | None, new: Partition) -> None:
        """Checks the members and the leader of a changed partition (I5)."""
        if old is None:
            return
        elected = new.leader_epoch != old.leader_epoch
        for each in new.isr:
            life = new.member_epoch(each)
            if each in old.isr and old.member_epoch(each) == life:
                continue
            info = self.image.brokers.get(each)
            registered = info is not None and info.broker_epoch == life
            # For a member that stays, the leader may record late what an earlier broker epoch has
            # proved. It is still true of that broker epoch, and the next one must prove it again
            # for itself.
            noted = (elected or each in old.isr) and (each, life) in self.lives
            if not registered and not noted:
                text = f"broker {each} joined the ISR with a broker epoch it does not have: {new}"
                raise broken("I5", partition_name, f"{text}; it is registered as {info}")
            # The committer may not know yet that it is stopping. The broker will leave the ISR when
            # it stops.
            self.joined_stopping += each in self.image.stopping and each not in old.isr
        if new.leader != NO_LEADER and elected:
            if (new.leader, new.leader_broker_epoch) not in self.lives:
                raise broken(
                    "I5", partition_name, f"the elected leader has an unknown broker epoch: {new}"
                )
            # At the end of a reassignment a replica that has just caught up may lead at once.
            members = old.isr + old.eligible_leaders + (new.isr if old.is_moving else ())
            if new.leader not in members:
                raise broken(
                    "I5", partition_name, f"the leader was not in ISR or ELR: {old} became {new}"
                )
