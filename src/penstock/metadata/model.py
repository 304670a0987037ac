"""The data model of the cluster metadata. All objects are immutable, so each one is consistent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.security.listeners import Listener, SecurityProtocol, endpoint_for

NO_LEADER: Final = -1
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
"""Its records are deltas too, so it must not be compacted: the share coordinator trims it."""
AUDIT_TOPIC: Final = "__audit"
"""Only brokers write to it. Its records have no keys, so it is not compacted."""
COMPACTED_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""The internal topics that must be compacted."""
INTERNAL_TOPICS: Final = COMPACTED_TOPICS | {AUDIT_TOPIC, SHARE_STATE_TOPIC}
PLAINTEXT: Final = SecurityProtocol.PLAINTEXT.value
"""The name of the listener of a broker whose settings name no listeners."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A live broker. Its registration ends with its lease.

    `broker_epoch` is the store revision at which the broker registered, known only once that is
    committed. A restarted broker has a higher one, so requests from its previous run can be
    recognized.

    `lossless_since` is the broker epoch of its earliest run since which its logs have provably lost
    nothing: each run since then stopped cleanly, or its machine did not reboot before the next run.
    -1 without such a proof: records written but not synced before this run may be lost.

    `synced_since` is the broker epoch of its first run with the present data directory. Everything
    synced since then is still there, whatever happened to the machine. -1 if the directory is new.

    `fsync_since` is the broker epoch of its earliest run since which its config file has set
    `log.durability=fsync`. -1 if that is known of no run before this one.

    `host` and `port` are what other brokers connect to. `listeners` are all advertised endpoints,
    that one included. It is empty if the only listener is PLAINTEXT.
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
    listeners: tuple[Listener, ...] = ()

    def endpoint(self, listener: str) -> tuple[str, int] | None:
        """Returns where clients of the listener with this name connect to. None if the broker does
        not have it."""
        if not self.listeners:
            return (self.host, self.port) if listener == PLAINTEXT else None
        found = endpoint_for(self.listeners, listener)
        return None if found is None else (found.host, found.port)

    def has_kept(self, broker_epoch: int) -> bool:
        """Whether the broker has everything that its run with that epoch had written."""
        return broker_epoch == self.broker_epoch or 0 <= self.lossless_since <= broker_epoch

    def has_synced(self, broker_epoch: int) -> bool:
        """Whether the broker has everything that its run with that epoch had synced."""
        return broker_epoch == self.broker_epoch or 0 <= self.synced_since <= broker_epoch

    def has_asked_for_fsync(self, broker_epoch: int) -> bool:
        """Whether the broker's config file has set fsync since its run with that epoch."""
        return 0 <= self.fsync_since <= broker_epoch


@dataclass(frozen=True, slots=True)
class Controller:
    """One leadership of a controller.

    All its writes are conditional on the controller key being unchanged since `revision`. If its
    lease has expired, or another broker has taken over, the write fails.
    """

    broker_id: int
    epoch: int
    incarnation_id: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Partition:
    """The replicas of a partition and its leader.

    `isr` are the in-sync replicas. `eligible_leaders` (KIP-966) left the ISR when fewer than
    min.insync.replicas remained in it, and therefore hold everything that is committed too. The two
    never overlap. The leader is in `isr`, or NO_LEADER. `leader_epoch` increases with each new
    leader, `partition_epoch` with every change.

    `leader_broker_epoch` is the broker epoch under which the leader was elected. A broker that
    restarts does not continue to lead in the old leader epoch. It may have lost the unsynced end of
    its log, and would assign the same offsets of the same epoch to other records.

    `member_epochs` are the broker epochs of `isr`, followed by those of `eligible_leaders`. Under
    these epochs the replicas hold everything that is committed. After a restart that is still true
    only if the broker has lost nothing. Empty in topics that were stored before this field existed.

    During a reassignment (KIP-455) `replicas` holds the targets first, followed by those in
    `removing_replicas`. `adding_replicas` are the targets that are new.
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
        """Returns the broker epoch of a member of the ISR or of an eligible leader; -1 if
        unknown."""
        members = self.isr + self.eligible_leaders
        if len(self.member_epochs) != len(members) or broker_id not in members:
            return -1
        return self.member_epochs[members.index(broker_id)]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `configs` holds only the overrides.

    `chunk_partitions` is how many partitions one key of the store holds; 0 if one key holds the
    whole topic (`topic_keys`).

    `synced_from` is the store revision at which the topic's own `durability` last changed, 0 if it
    never did. Brokers that registered before it may have counted records that were not synced
    (`isr`). It is -1 in a change that is being written: the commit determines the revision.
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
