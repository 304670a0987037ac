"""What a consumer reads, and its position in each partition. Pure: time is an argument.

A consumer reads topics by name, topics by pattern, or manually assigned partitions; one of the
three at a time. In each case there is a set of assigned partitions, and each has

    position      the next offset to be returned to the caller. It moves when records are returned.
                  Prefetching changes nothing that is visible from outside
    fetch_offset  the next offset to fetch: the position plus what the buffer holds
    need          what must be found out before the partition can be fetched: the committed offset,
                  the offset for a time, or whether the log still has what was read (validation)
    token         a number that changes whenever position and buffer are reset

A fetch carries the tokens of its partitions. A response with an outdated token is dropped: it was
requested before a seek, a reset, or a loss of the partition, and its records must never be
returned. Tokens are never used twice, not even after a partition was revoked and assigned again.

Validation (KIP-320): a record carries the epoch of the leader that wrote it. When another leader
takes over, it is asked how far its log goes in the epoch of the last record that was read. If that
is before the fetch position, the records after it were lost with the old leader, and reading
continues where the logs diverge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import count

from penstock.client.consuming.buffer import PartitionBuffer, Piece
from penstock.client.errors import ClientError, NoOffset
from penstock.client.model import OffsetAndMetadata
from penstock.topic_partition import TopicPartition

UNKNOWN = -1


class Need(Enum):
    """What is missing before a partition can be fetched."""

    NOTHING = "nothing"
    COMMITTED = "committed"
    TIME = "time"
    VALIDATION = "validation"


class PartitionState:
    """One assigned partition. Only `Subscription` and its own methods change it."""

    __slots__ = (
        "buffer",
        "drain_first",
        "error",
        "error_told",
        "failures",
        "fetch_epoch",
        "fetch_offset",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "need",
        "paused",
        "position",
        "position_epoch",
        "replica",
        "replica_until",
        "retry_at",
        "served",
        "time",
        "token",
        "topic_partition",
        "turn",
    )

    def __init__(
        self, topic_partition: TopicPartition, token: int, buffer: PartitionBuffer
    ) -> None:
        self.topic_partition = topic_partition
        self.token = token
        self.buffer = buffer
        self.position: int | None = None
        self.position_epoch = UNKNOWN
        self.fetch_offset = 0
        self.fetch_epoch = UNKNOWN
        self.leader_epoch = UNKNOWN
        """The epoch of the leader for which the fetch position is known to be valid."""
        self.need = Need.COMMITTED
        self.time = 0
        """The timestamp to look up under `Need.TIME`, as in ListOffsets."""
        self.paused = False
        self.high_watermark = UNKNOWN
        self.last_stable_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.error: ClientError | None = None
        """The error that stops the partition from being read, until the caller handles it."""
        self.error_told = False
        self.failures = 0
        self.retry_at = 0.0
        self.replica = UNKNOWN
        """The follower that the leader wants this consumer to read from (KIP-392)."""
        self.replica_until = 0.0
        self.served = 0
        """The number of the response in which it last got data. Those that waited longest are
        fetched first."""
        self.turn = 0
        """The sequence number of the turn in which its records were last returned to the caller."""
        self.drain_first = False
        """The log does not have the fetch offset; what is buffered is still valid."""

    def is_fetchable(self, now: float) -> bool:
        return (
            self.need is Need.NOTHING
            and not self.paused
            and self.error is None
            and self.retry_at <= now
            and not (self.drain_first and self.buffer)
        )

    def push(self, piece: Piece) -> None:
        """Adds the response to a fetch at `fetch_offset`."""
        self.buffer.push(piece)
        self.fetch_offset = max(self.fetch_offset, piece.extent.next_offset)
        if piece.extent.leader_epoch >= 0:
            self.fetch_epoch = piece.extent.leader_epoch

    def returned(self, next_offset: int, leader_epoch: int) -> None:
        """Notes that everything before `next_offset` was returned to the caller."""
        self.position = next_offset
        if leader_epoch >= 0:
            self.position_epoch = leader_epoch

    def succeeded(self) -> None:
        self.failures = 0
        self.retry_at = 0.0

    def postpone(self, until: float) -> None:
        self.failures += 1
        self.retry_at = until

    def fail(self, error: ClientError) -> None:
        """Stops reading until the error was raised and, if there is no position, until the caller
        seeks."""
        self.error = error
        self.error_told = False

    def use_replica(self, broker_id: int, until: float) -> None:
        self.replica = broker_id
        self.replica_until = until

    def lag(self, *, committed_only: bool) -> int | None:
        end = self.last_stable_offset if committed_only else self.high_watermark
        if self.position is None or end < 0:
            return None
        return max(0, end - self.position)


class Subscription:
    """The subscribed topics and the assigned partitions of a consumer."""

    def __init__(self, *, check_crcs: bool = True, committed_only: bool = False) -> None:
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.regex: str | None = None
        """A regular expression that the broker resolves."""
        self.is_manual = False
        self.states: dict[TopicPartition, PartitionState] = {}
        self._check_crcs = check_crcs
        self._committed_only = committed_only
        self._tokens = count(1)

    # -- assigned partitions --------------------------------------------------------------------

    @property
    def follows_topics(self) -> bool:
        return bool(self.topics) or self.pattern is not None or self.regex is not None

    def follow(
        self,
        topics: Iterable[str],
        pattern: re.Pattern[str] | None = None,
        regex: str | None = None,
    ) -> None:
        """Subscribes to topics. With a pattern, `topics` are those that match it at the moment.
        Which topics match a `regex` only the broker knows."""
        if self.is_manual and self.states:
            raise ClientError(
                "partitions were assigned manually, so this consumer cannot subscribe to topics: "
                "call unsubscribe() first"
            )
        self.is_manual = False
        self.topics = frozenset(topics)
        self.pattern = pattern
        self.regex = regex

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions. Those that were assigned before keep their positions."""
        if self.follows_topics:
            raise ClientError(
                "this consumer has subscribed to topics, so partitions cannot be assigned "
                "manually: call unsubscribe() first"
            )
        wanted = dict.fromkeys(
            TopicPartition(*topic_partition) for topic_partition in topic_partitions
        )
        self.is_manual = True
        self.drop(
            [topic_partition for topic_partition in self.states if topic_partition not in wanted]
        )
        self.add(wanted)

    def clear(self) -> None:
        self.topics = frozenset()
        self.pattern = None
        self.regex = None
        self.is_manual = False
        self.drop(list(self.states))

    def add(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            if topic_partition not in self.states:
                buffer = PartitionBuffer(
                    check_crcs=self._check_crcs, committed_only=self._committed_only
                )
                self.states[topic_partition] = PartitionState(
                    topic_partition, next(self._tokens), buffer
                )

    def drop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            state = self.states.pop(topic_partition, None)
            if state is not None:
                state.token = next(self._tokens)
                state.buffer.clear()

    def renew(self, topic_partitions: Iterable[TopicPartition], time: int) -> None:
        """Replaces these partitions by those of another log: everything known, including epochs, is
        void."""
        for topic_partition in list(topic_partitions):
            paused = self.states[topic_partition].paused
            self.drop([topic_partition])
            self.add([topic_partition])
            self.states[topic_partition].paused = paused
            self.look_up(self.states[topic_partition], time)

    # -- positions ------------------------------------------------------------------------------

    def state(self, topic_partition: TopicPartition) -> PartitionState:
        found = self.states.get(topic_partition)
        if found is None:
            raise ClientError(
                f"{topic_partition} is not assigned to this consumer; assignment() lists its "
                "partitions"
            )
        return found

    def current(self, topic_partition: TopicPartition, token: int) -> PartitionState | None:
        """Returns the partition that a fetch was made for, if its token has not changed."""
        state = self.states.get(topic_partition)
        return state if state is not None and state.token == token else None

    def seek(self, state: PartitionState, offset: int, leader_epoch: int = UNKNOWN) -> None:
        """Moves the position to `offset`. With an epoch, validates first that the log has that
        history."""
        if offset < 0:
            raise ClientError(
                f"offset {offset} of {state.topic_partition} is negative: give 0 or more"
            )
        if state.need is Need.NOTHING and leader_epoch < 0 and state.buffer.skip_to(offset):
            # Prefetched data, and fetches in flight, remain valid from there on.
            self._forgive(state)
            state.position = offset
            return
        self.set_position(state, offset, leader_epoch)
        if leader_epoch >= 0:
            state.need = Need.VALIDATION

    def set_position(self, state: PartitionState, offset: int, leader_epoch: int) -> None:
        """Sets a position that the log is known to have."""
        self._start_afresh(state, offset)
        state.position = state.fetch_offset = offset
        state.position_epoch = state.fetch_epoch = leader_epoch
        state.need = Need.NOTHING

    def look_up(self, state: PartitionState, time: int) -> None:
        """Drops the position, to look up the offset for a time."""
        self._start_afresh(state, 0)
        state.position = None
        state.need = Need.TIME
        state.time = time

    def refetch(self, state: PartitionState) -> None:
        """Drops prefetched data, to fetch it again from the position on."""
        if state.position is not None and state.need in (Need.NOTHING, Need.VALIDATION):
            must_validate = state.need is Need.VALIDATION and state.position_epoch >= 0
            self.set_position(state, state.position, state.position_epoch)
            state.need = Need.VALIDATION if must_validate else Need.NOTHING

    def _start_afresh(self, state: PartitionState, floor: int) -> None:
        state.token = next(self._tokens)
        state.buffer.clear(floor)
        self._forgive(state)
        state.succeeded()

    @staticmethod
    def _forgive(state: PartitionState) -> None:
        state.error = None
        state.error_told = False
        state.drain_first = False

    # -- leader changes -------------------------------------------------------------------------

    def on_leader(self, state: PartitionState, epoch: int) -> None:
        """Handles the partition's leader according to the metadata. A new one may lack what was
        read."""
        if epoch <= state.leader_epoch:
            return
        changed = state.leader_epoch >= 0
        state.leader_epoch = epoch
        if changed:
            state.replica = UNKNOWN
        if changed and state.need is Need.NOTHING and state.fetch_epoch >= 0:
            state.need = Need.VALIDATION

    def validated(
        self, state: PartitionState, epoch: int, end_offset: int, *, may_reset: bool
    ) -> int | None:
        """Handles the leader's answer about the epoch of the last record.

        Returns the old fetch offset if records were lost and reading continues before it.
        """
        if epoch < 0 or end_offset < 0 or end_offset >= state.fetch_offset:
            # The leader does not contradict the position.
            state.need = Need.NOTHING
            return None
        if state.buffer:
            # The prefetched data is from the other history; the position itself may be valid.
            self.refetch(state)
            return None
        lost = state.fetch_offset
        if not may_reset:
            state.need = Need.NOTHING
            state.fail(
                NoOffset(
                    f"the log of {state.topic_partition} was truncated: this consumer has read up "
                    "to offset "
                    f"{lost}, but the new leader's log differs from offset {end_offset} on, and "
                    "auto_offset_reset is none: seek to an offset"
                )
            )
            return None
        self.set_position(state, end_offset, epoch)
        return lost

    # -- queries --------------------------------------------------------------------------------

    def needing(self, need: Need, now: float) -> list[PartitionState]:
        return [
            state
            for state in self.states.values()
            if state.need is need and state.error is None and state.retry_at <= now
        ]

    def fetchable(self, now: float) -> Iterator[PartitionState]:
        return (state for state in self.states.values() if state.is_fetchable(now))

    def next_retry(self, now: float) -> float | None:
        """Returns when the first postponed partition is due."""
        later = [state.retry_at for state in self.states.values() if state.retry_at > now]
        return min(later, default=None)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            state.topic_partition: OffsetAndMetadata(state.position, "", state.position_epoch)
            for state in self.states.values()
            if state.position is not None
        }

    def held_bytes(self) -> int:
        return sum(state.buffer.size for state in self.states.values())

    def take_error(self, retry_at: float, *, again: bool) -> ClientError | None:
        """Returns an error that the caller has not seen yet.

        With `again`, also returns a persistent one: that of a partition without a position. All
        other errors are cleared and retried later.
        """
        for state in self.states.values():
            error = state.error
            if error is None or (state.error_told and not again):
                continue
            state.error_told = True
            if not isinstance(error, NoOffset):
                state.error = None
                state.postpone(retry_at)
            return error
        return None
