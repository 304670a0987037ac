"""What the cluster consists of. All frozen: whoever holds one holds a consistent view of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NO_LEADER: Final = -1
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A live broker: its registration goes away with its lease.

    The epoch is the store revision at which it registered, known only once that is committed. A
    restarted broker thus has a higher one, and a request from its former life can be told apart.

    `lossless_since` is the epoch of the earliest of its lives since which its logs have provably
    lost nothing: each of them stopped cleanly, or on a machine that was not booted until the next.
    -1 without such a proof: then what was written before this life but not synced may be gone.

    `synced_since` is the epoch of the first of its lives with the data directory it has: what was
    synced since then is there, whatever happened to its machine. -1 when the directory is new.

    `fsync_since` is the epoch of the earliest of its lives since which its config file has asked
    for `log.durability=fsync`. -1 if that cannot be said of any life before this one.
    """

    broker_id: int
    host: str
    port: int
    rack: str | None
    incarnation_id: bytes
    broker_epoch: int = -1
    lossless_since: int = -1
    synced_since: int = 0
    fsync_since: int = 0

    def has_kept(self, broker_epoch: int) -> bool:
        """Whether it has all that the life of that epoch had written."""
        return broker_epoch == self.broker_epoch or 0 <= self.lossless_since <= broker_epoch

    def has_synced(self, broker_epoch: int) -> bool:
        """Whether it has all that the life of that epoch had synced."""
        return broker_epoch == self.broker_epoch or 0 <= self.synced_since <= broker_epoch

    def has_asked_for_fsync(self, broker_epoch: int) -> bool:
        """Whether its config file did so in the life of that epoch, and ever since."""
        return 0 <= self.fsync_since <= broker_epoch


@dataclass(frozen=True, slots=True)
class Controller:
    """One term of a controller.

    Whatever it writes is conditional on the controller key being unchanged since `revision`: when
    the lease has run out, or another has taken over, the write fails.
    """

    broker_id: int
    epoch: int
    incarnation_id: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Partition:
    """Who has a partition and who leads it.

    `isr` holds what is committed; `eligible_leaders` (KIP-966) left it while it was at or below
    min.insync.replicas and so hold everything committed as well; the two never overlap. The leader
    is in `isr`, or NO_LEADER. `leader_epoch` rises with each new leader, `partition_epoch` with
    every change.

    `leader_broker_epoch` names the incarnation that was elected. A broker that restarts does not
    lead on in the old leader epoch: it may have lost the unsynced end of its log, and would give
    the same offsets of the same epoch to other records.

    `member_epochs` are the broker epochs of `isr` and then `eligible_leaders`: the incarnations
    whose logs hold all that is committed. A later one does only if it has lost nothing. Empty in
    topics that were stored before it was noted.

    While replicas are being moved (KIP-455) `replicas` holds the targets first, then those in
    `removing_replicas`; `adding_replicas` are the targets that were not there before.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    eligible_leaders: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    leader_broker_epoch: int
    member_epochs: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def is_moving(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    def member_epoch(self, broker_id: int) -> int:
        """The incarnation of a member of the ISR, or of an eligible leader; -1 if not known."""
        members = self.isr + self.eligible_leaders
        if len(self.member_epochs) != len(members) or broker_id not in members:
            return -1
        return self.member_epochs[members.index(broker_id)]


@dataclass(frozen=True, slots=True)
class Topic:
    """`configs` holds the overrides only.

    `chunk_partitions` is how many partitions one key of the store holds; 0 if one key holds the
    whole topic (`topic_keys`).

    `synced_from` is the store revision at which the topic's own `durability` last changed, 0 if it
    never did. Brokers that registered before it may have counted records that were not synced
    (`isr`). It is -1 in a change that is being written: the commit decides the revision.
    """

    name: str
    topic_id: bytes
    partitions: tuple[Partition, ...]
    configs: Mapping[str, str]
    chunk_partitions: int = 0
    synced_from: int = 0

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS
