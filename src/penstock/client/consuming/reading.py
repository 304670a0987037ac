"""Returns buffered records to the caller and moves the positions accordingly. Pure.

Partitions take turns, one fetched piece each, so that a busy partition does not delay the others.

There are two ways to return records. `collect` returns a list, and positions move past all of it at
once. Iteration returns one record at a time from a `run` of one partition. The position is then
where the iteration is; it is computed only on demand (`settle`), because it is needed far less
often than a record is returned. The rest of a run is still in its buffer, so a run can be dropped
at any moment without losing anything.
"""

from __future__ import annotations

from typing import Any

from penstock.client.consuming.buffer import Piece, Rows
from penstock.client.consuming.record_decoder import DeserializationFailed, RecordMaker, damaged
from penstock.client.consuming.subscription import PartitionState, Subscription
from penstock.client.model import Record
from penstock.records.batch import CorruptBatch


class Reading:
    """Takes records from the buffers, partition by partition in turn."""

    def __init__(self, subscription: Subscription, maker: RecordMaker) -> None:
        self._subscription = subscription
        self._maker = maker
        self._turns = 0
        self._current: PartitionState | None = None
        self._piece: Piece | None = None
        self.run: list[Record[Any, Any]] = []
        self.at = 0
        """How many records of the run have been returned."""
        self._run_of: PartitionState | None = None
        self._run_token = 0
        self._run_end: Rows | None = None

    def collect(self, limit: int) -> list[Record[Any, Any]]:
        """Takes up to `limit` records from the buffers. They count as returned from now on.

        Raises `DeserializationFailed` if the very next record cannot be deserialized.
        """
        self.drop_run()
        records: list[Record[Any, Any]] = []
        while len(records) < limit and (state := self._whose_turn()) is not None:
            rows = self._next_rows(state, limit - len(records))
            if rows is None:
                continue
            made, failure = self._make(state, rows)
            if failure is not None:
                self._hand_out(state, failure.offset, rows.leader_epoch if made else -1)
                if not records and not made:
                    raise failure
                return records + made
            self._hand_out(state, rows.next_offset, rows.leader_epoch)
            records = records + made if records else made
        return records

    def begin_run(self, limit: int) -> bool:
        """Puts the next records to iterate over into `run`. Returns False if there are none."""
        self.drop_run()
        while (state := self._whose_turn()) is not None:
            rows = self._next_rows(state, limit)
            if rows is None:
                continue
            made, failure = self._make(state, rows)
            if failure is not None and not made:
                raise failure
            if failure is not None:
                rows = rows._replace(next_offset=failure.offset)
            if made:
                self.run = made
                self._run_of, self._run_token, self._run_end = state, state.token, rows
                return True
            self._hand_out(state, rows.next_offset, rows.leader_epoch)
        return False

    def settle(self) -> None:
        """Moves the position to where the iteration is."""
        state, end = self._run_of, self._run_end
        if state is None or end is None or not self.at or state.token != self._run_token:
            return
        last = self.run[self.at - 1]
        done = self.at == len(self.run)
        self._hand_out(state, end.next_offset if done else last.offset + 1, last.leader_epoch)

    def drop_run(self) -> None:
        if self._run_of is not None:
            self.settle()
            self.run = []
            self.at = 0
            self._run_of = self._run_end = None

    def skip_run(self) -> None:
        """Skips the run: moves the position past it."""
        state, end = self._run_of, self._run_end
        if state is not None and end is not None and state.token == self._run_token:
            self._hand_out(state, end.next_offset, end.leader_epoch)
        self.run = []
        self.at = 0
        self._run_of = self._run_end = None

    def ready(self) -> list[PartitionState]:
        """Returns the partitions with buffered records, those that waited longest first."""
        found = [
            state
            for state in self._subscription.states.values()
            if state.buffer and not state.paused
        ]
        return sorted(found, key=lambda state: state.turn)

    def hand_out(self, state: PartitionState, next_offset: int, leader_epoch: int) -> None:
        """Notes that everything before `next_offset` was returned, and ends the partition's
        turn."""
        self._hand_out(state, next_offset, leader_epoch)
        self._turns += 1
        state.turn = self._turns

    @staticmethod
    def _hand_out(state: PartitionState, next_offset: int, leader_epoch: int) -> None:
        state.returned(next_offset, leader_epoch)
        state.buffer.advance_to(next_offset)

    def _whose_turn(self) -> PartitionState | None:
        """Returns the current partition until its piece is used up, then the one that waited
        longest."""
        state = self._current
        if (
            state is not None
            and not state.paused
            and state.buffer
            and state.buffer.pieces[0] is self._piece
        ):
            return state
        waiting = self.ready()
        if not waiting:
            self._current = self._piece = None
            return None
        state = self._current = waiting[0]
        self._piece = state.buffer.pieces[0]
        self._turns += 1
        state.turn = self._turns
        return state

    def _next_rows(self, state: PartitionState, limit: int) -> Rows | None:
        try:
            return state.buffer.next_rows(limit)
        except CorruptBatch as error:
            self._subscription.refetch(state)
            state.fail(damaged(state.topic_partition, state.position, error))
            return None

    def _make(
        self, state: PartitionState, rows: Rows
    ) -> tuple[list[Record[Any, Any]], DeserializationFailed | None]:
        try:
            return self._maker.make(state.topic_partition, rows), None
        except Exception:  # noqa: BLE001 - a user's code may raise anything
            return self._maker.make_some(state.topic_partition, rows)
