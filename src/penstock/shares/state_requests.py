"""What can be asked of a share coordinator, its answers, and the rules that fence old leaders.

A leader reads the state once before it uses it. The read appends a record, even if the leader epoch
is the same as before. All later writes of the leader name the offset of that record. So a write is
refused if

- a leader with a higher epoch has read the state since (FENCED_LEADER_EPOCH), or
- the same leader has read the state since, or the state was begun again or deleted and begun again
  (FENCED_STATE_EPOCH).

The second rule is for writes whose outcome is unknown. The leader reads the state again, and from
then on the write has no effect if it arrives late.

Group coordinators initialize and delete states. Each of these calls has an order (`CallOrder`), and
the order of the last one is stored with the state. A call that arrives after a later one is refused
with FENCED_STATE_EPOCH: one of a group coordinator that was replaced, or one that was repeated
because its answer did not arrive. To refuse an initialization that arrives after the deletion of
the state, a deletion leaves a deletion marker. It is removed after a day, or with its topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from penstock.shares.formats import OrderNote, ReadNote, Snapshot
from penstock.shares.image import Delta, ShareImage
from penstock.shares.state_port import CallOrder, SharePartitionId, StateSummary
from penstock.shares.stored_states import StoredState
from penstock.wire.errors import ErrorCode, KafkaError

NEVER_READ: Final = -1
ANY_START: Final = -1
"""The leader of the partition chooses the start offset when it is first used."""
_READ_IN_THIS_BATCH: Final = -2


@dataclass(frozen=True, slots=True)
class Read:
    share_partition: SharePartitionId
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Write:
    share_partition: SharePartitionId
    leader_epoch: int
    read_offset: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Replace:
    share_partition: SharePartitionId
    leader_epoch: int
    read_offset: int
    image: ShareImage


@dataclass(frozen=True, slots=True)
class Initialize:
    share_partition: SharePartitionId
    state_epoch: int
    start_offset: int
    order: CallOrder


@dataclass(frozen=True, slots=True)
class Delete:
    share_partition: SharePartitionId
    order: CallOrder


@dataclass(frozen=True, slots=True)
class Forget:
    """Removes all that is stored, because the topic was deleted. Only the coordinator itself makes
    this change."""

    share_partition: SharePartitionId


@dataclass(frozen=True, slots=True)
class Summarize:
    share_partition: SharePartitionId


Change: TypeAlias = Read | Write | Replace | Initialize | Delete | Forget
"""A request that appends a record."""
StateRequest: TypeAlias = Read | Write | Replace | Initialize | Delete | Summarize


class StateAnswer(NamedTuple):
    code: ErrorCode
    image: ShareImage | None = None
    """The state, for a read."""
    read_offset: int = NEVER_READ
    """The offset that writes must name, for a read."""
    summary: StateSummary | None = None


class Known(NamedTuple):
    """What decides whether a change is allowed. It includes earlier changes of the same batch."""

    state_epoch: int
    leader_epoch: int
    read_offset: int
    order: CallOrder
    is_deleted: bool = False

    @classmethod
    def of(cls, state: StoredState) -> Known:
        last = (state.leader_epoch, state.read_offset, state.order, state.deleted_ms > 0)
        return cls(state.image.state_epoch, *last)


Content: TypeAlias = Snapshot | Delta | ReadNote | OrderNote | None


def content_of(change: Change, known: Known | None, wall_ms: int) -> tuple[Content, Known | None]:
    """Returns what to append for a change, and what is known after it. Raises `KafkaError`.

    A change that has no effect is appended too. When the record is committed, it is certain that
    no other coordinator has taken over and decided otherwise.
    """
    if isinstance(change, Forget):
        return None, None
    if isinstance(change, Initialize | Delete):
        if known is not None and change.order < known.order:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        if isinstance(change, Delete):
            return _deleted(change, known, wall_ms)
        return _initialized(change, known)
    if known is None or known.is_deleted:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if change.leader_epoch < known.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if isinstance(change, Read):
        after = known._replace(leader_epoch=change.leader_epoch, read_offset=_READ_IN_THIS_BATCH)
        return ReadNote(change.leader_epoch), after
    stored = change.delta if isinstance(change, Write) else change.image
    # A higher leader epoch than the known one has not read this state.
    written_after = (stored.state_epoch, change.leader_epoch, change.read_offset)
    if written_after != known[:3] or change.read_offset == NEVER_READ:
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
    if isinstance(change, Write):
        return change.delta, known
    return Snapshot(change.image, change.leader_epoch, change.read_offset, known.order), known


def _initialized(change: Initialize, known: Known | None) -> tuple[Content, Known]:
    # Without a start offset the call only wants a state to exist. A group coordinator that was
    # replaced may repeat it when another one has assigned the partition already.
    is_begun = change.start_offset == ANY_START or (
        known is not None and change.state_epoch <= known.state_epoch
    )
    if known is not None and not known.is_deleted and is_begun:
        return OrderNote(change.order), known._replace(order=change.order)
    leader_epoch = NEVER_READ if known is None else known.leader_epoch
    image = ShareImage.starting_at(change.start_offset, change.state_epoch)
    after = Known(change.state_epoch, leader_epoch, NEVER_READ, change.order)
    return Snapshot(image, leader_epoch, NEVER_READ, change.order), after


def _deleted(change: Delete, known: Known | None, wall_ms: int) -> tuple[Content, Known]:
    """Returns a deletion marker, also if there was no state: one may be on its way."""
    state_epoch, leader_epoch = (0, NEVER_READ) if known is None else known[:2]
    image = ShareImage.starting_at(0, state_epoch)
    after = Known(state_epoch, leader_epoch, NEVER_READ, change.order, is_deleted=True)
    return Snapshot(image, leader_epoch, NEVER_READ, change.order, max(1, wall_ms)), after
