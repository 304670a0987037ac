"""The share coordinator of one partition of `__share_group_state`. Pure.

`coordination.shard` gives the rules for the shell that runs a shard. In addition:

- After `FlushSoon` it calls `on_turn_ended`, when the turn of the event loop is over.
- It reports the offset of every batch by `on_appended`, before its outcome.
- It carries out `TrimLog` when it likes, or not at all.

Changes that arrive in one turn of the event loop, or while an append is under way, are appended as
one batch: a group commit. At most one append is under way. So whenever a batch is built, everything
before it is settled, and `states` is exactly what the log has. Changes are checked only then, in
the order in which they came.

A share partition gets a snapshot at the start of a batch after `snapshot_after` updates. The log is
trimmed below the oldest snapshot. A share partition that is seldom used would keep the log long: it
gets a snapshot when `trim_after` records follow its last one. An old
deletion marker is removed instead.

If an append is late, it is unknown whether its changes will be stored: they are answered with
REQUEST_TIMED_OUT. Those that wait behind it are refused with COORDINATOR_NOT_AVAILABLE, and are not
stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from penstock.coordination import effects
from penstock.coordination.append_errors import append_error
from penstock.coordination.batches import record_bytes
from penstock.coordination.effects import Append, EffectList, LogRecord, Now, Token
from penstock.coordination.in_flight import AppendsInFlight
from penstock.coordination.invariants import InvariantViolated
from penstock.records.batch import HEADER_SIZE
from penstock.shares.formats import Entry, decode, record_of
from penstock.shares.state_port import SharePartitionId
from penstock.shares.state_requests import (
    Change,
    Forget,
    Known,
    Read,
    Replace,
    StateAnswer,
    StateRequest,
    Summarize,
    content_of,
)
from penstock.shares.stored_states import StoredState, StoredStates
from penstock.wire.errors import ErrorCode, KafkaError

_BATCH_BYTES: Final = 256 << 10
"""A batch is closed at this size, so that it does not block the event loop to encode it."""
_RETRY_MS: Final = 1_000
_REMOVAL: Final = "remove deleted topics"
_MARKER_MS: Final = 24 * 3_600_000
"""How long a deletion marker is kept at least. No call is on its way for so long."""


@dataclass(frozen=True, slots=True)
class StateConfig:
    snapshot_after: int = 500
    """share.coordinator.snapshot.update.records.per.snapshot"""
    append_timeout_ms: int = 5_000
    """share.coordinator.write.timeout.ms"""
    trim_after: int = 10_000
    trim_step: int = 10_000
    """The log is trimmed by at least this many records."""


@dataclass(slots=True)
class StateCounters:
    """Totals of all share coordinators of a broker."""

    changes: int = 0
    """Changes that were stored."""
    batches: int = 0
    """Appends that were committed."""
    snapshots: int = 0
    """Snapshots that were stored so that the log can be trimmed."""
    refused: dict[ErrorCode, int] = field(default_factory=dict)
    """Changes that were refused or failed, by error."""


@dataclass(frozen=True, slots=True)
class FlushSoon:
    """Call `on_turn_ended` at the end of this turn of the event loop."""


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Nothing below this offset is needed any more."""

    offset: int


Own: TypeAlias = FlushSoon | TrimLog
Effect: TypeAlias = effects.Effect[StateAnswer, str, Own]


class _Waiting(NamedTuple):
    change: Change
    token: Token | None
    """None: the coordinator itself removes the state of a deleted topic."""


@dataclass(slots=True)
class _Batch:
    """An append under way, and the `Outcome` of it."""

    asked: list[_Waiting]
    entries: list[Entry]
    """The snapshots that begin the batch, and then one entry for each change."""
    base_offset: int = -1

    @property
    def snapshots(self) -> list[Entry]:
        return self.entries[: len(self.entries) - len(self.asked)]

    def committed(self, shard: ShareShard, now: Now) -> None:
        shard.counters.batches += 1
        shard.counters.changes += len(self.asked)
        shard.counters.snapshots += len(self.snapshots)
        for offset, waiting in enumerate(self.asked, self.base_offset + len(self.snapshots)):
            shard.reply_stored(waiting, offset)
        shard.on_settled(now)

    def failed(self, shard: ShareShard, error: ErrorCode, now: Now) -> None:
        for entry in self.snapshots:
            # The snapshot may be what failed. The next updates are stored without it.
            state = shard.states.find(entry.share_partition)
            if state is not None:
                state.updates = 0
        for waiting in self.asked:
            shard.refuse(waiting.token, append_error(error))
        shard.on_settled(now)

    def abandoned(self, shard: ShareShard, code: ErrorCode) -> None:
        for waiting in self.asked:
            shard.refuse(waiting.token, ErrorCode.REQUEST_TIMED_OUT)


class ShareShard:
    """See the module's docstring."""

    def __init__(
        self,
        config: StateConfig,
        batch_bytes_max: Callable[[], int],
        counters: StateCounters | None = None,
    ) -> None:
        """`batch_bytes_max` returns the topic's max.message.bytes."""
        self.states = StoredStates()
        self.counters = counters or StateCounters()
        self._config = config
        self._batch_bytes_max = batch_bytes_max
        self._effects = EffectList[StateAnswer, str, Own]()
        self._appends = AppendsInFlight(self, self._effects, self._apply_batch, batch_bytes_max)
        self._waiting: deque[_Waiting] = deque()
        self._under_way: _Batch | None = None
        self._is_late = False
        self._is_flush_asked = False
        self._gone_topics: set[bytes] = set()
        self._end_offset = 0
        self._trimmed = 0

    def __len__(self) -> int:
        """The number of changes that are not settled."""
        return len(self._waiting) + (len(self._under_way.asked) if self._under_way else 0)

    # Requests

    def ask(self, request: StateRequest, token: Token, now: Now) -> list[Effect]:
        if isinstance(request, Summarize):
            state = self.states.get(request.share_partition)
            summary = None if state is None else state.summary()
            self._effects.reply(token, StateAnswer(ErrorCode.NONE, summary=summary))
        elif self._is_late:
            self.refuse(token, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif isinstance(request, Replace):
            # The caller may go on to change its image.
            image = request.image.copy()
            copied = Replace(
                request.share_partition, request.leader_epoch, request.read_offset, image
            )
            self._put(_Waiting(copied, token))
        else:
            self._put(_Waiting(request, token))
        return self._effects.take()

    def remove_topics(self, topic_ids: Collection[bytes], now: Now) -> list[Effect]:
        """Removes the states of deleted topics, and retries until that has succeeded."""
        self._gone_topics.update(topic_ids)
        self._remove_gone()
        return self._effects.take()

    # Reports of the shell

    def replay(self, record: LogRecord, offset: int) -> None:
        if not self._end_offset:
            self._trimmed = offset  # The first record: the log begins here.
        self.states.apply(decode(record), offset)
        self._end_offset = offset + 1

    def on_loaded(self, now: Now) -> list[Effect]:
        return self._effects.take()

    def on_turn_ended(self, now: Now) -> list[Effect]:
        self._is_flush_asked = False
        if self._under_way is None:
            self._append(now)
        return self._effects.take()

    def on_appended(self, base_offset: int) -> None:
        """The batch under way is in the log, at this offset, and not committed yet."""
        if self._under_way is not None:
            self._under_way.base_offset = base_offset

    def on_committed(self, append_id: int, now: Now) -> list[Effect]:
        self._appends.on_committed(append_id, now)
        return self._effects.take()

    def on_append_failed(self, append_id: int, error: ErrorCode, now: Now) -> list[Effect]:
        self._appends.on_failed(append_id, error, now)
        return self._effects.take()

    def on_append_late(self, append_id: int) -> list[Effect]:
        self._is_late = True
        self._appends.on_late(append_id)
        self._refuse_waiting(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._effects.take()

    def on_timer(self, key: str, now: Now) -> list[Effect]:
        self._remove_gone()
        return self._effects.take()

    def unload(self, code: ErrorCode) -> list[Effect]:
        self._appends.abandon(code)
        self._refuse_waiting(code)
        return self._effects.take()

    def take_effects(self) -> list[Effect]:
        return self._effects.take()

    # Used by outcomes

    def refuse(self, token: Token | None, code: ErrorCode) -> None:
        if token is not None:
            self.counters.refused[code] = self.counters.refused.get(code, 0) + 1
            self._effects.reply(token, StateAnswer(code))

    def reply_stored(self, waiting: _Waiting, offset: int) -> None:
        """`offset` is that of the record."""
        change, token = waiting
        if token is None:
            return
        answer = StateAnswer(ErrorCode.NONE)
        if isinstance(change, Read):
            state = self.states.get(change.share_partition)
            # A later change of the same batch may have made the read void.
            if state is None:
                answer = StateAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif state.leader_epoch != change.leader_epoch:
                answer = StateAnswer(ErrorCode.FENCED_LEADER_EPOCH)
            elif state.read_offset != offset:
                answer = StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                answer = StateAnswer(ErrorCode.NONE, state.image.copy(), state.read_offset)
        self._effects.reply(token, answer)

    def on_settled(self, now: Now) -> None:
        self._under_way, self._is_late = None, False
        needed = self.states.needed_from(self._end_offset)
        if needed >= self._trimmed + self._config.trim_step:
            self._trimmed = needed
            self._effects.add(TrimLog(needed))
        if self._gone_topics:
            self._effects.set_timer(_REMOVAL, now.ticks_ms + _RETRY_MS)
        self._append(now)

    # Batches

    def _put(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        if self._under_way is None and not self._is_flush_asked:
            self._is_flush_asked = True
            self._effects.add(FlushSoon())

    def _append(self, now: Now) -> None:
        """Appends what waits and is allowed, up to the size of a batch."""
        asked: list[_Waiting] = []
        entries: list[Entry] = []
        records: list[LogRecord] = []
        after: dict[SharePartitionId, Known | None] = {}
        limit = min(_BATCH_BYTES, self._batch_bytes_max())
        size = HEADER_SIZE
        while self._waiting:
            waiting = self._waiting[0]
            share_partition = waiting.change.share_partition
            if share_partition not in after:
                after[share_partition] = self._known(share_partition)
            try:
                content, known = content_of(waiting.change, after[share_partition], now.wall_ms)
            except KafkaError as error:
                self._waiting.popleft()
                self.refuse(waiting.token, error.code)
                continue
            entry = Entry(share_partition, content)
            record = record_of(entry)
            size += record_bytes(record)
            if asked and size > limit:
                break
            asked.append(self._waiting.popleft())
            entries.append(entry)
            records.append(record)
            after[share_partition] = known
        if not asked:
            return
        room = self._batch_bytes_max() - size
        due = self._due_snapshots(after.keys(), len(asked), room, now)
        self._under_way = _Batch(asked, [*(entry for entry, _ in due), *entries])
        self._appends.start([*(record for _, record in due), *records], self._under_way, now)

    def _known(self, share_partition: SharePartitionId) -> Known | None:
        state = self.states.find(share_partition)
        return None if state is None else Known.of(state)

    def _due_snapshots(
        self, touched: Collection[SharePartitionId], changes: int, room: int, now: Now
    ) -> list[tuple[Entry, LogRecord]]:
        """Returns the snapshots that begin the next batch, as far as they fit into it."""
        due: dict[SharePartitionId, StoredState] = {}
        for share_partition, state in self.states.items():
            # The oldest come first. More than these few would make small batches large.
            behind = self._end_offset - state.snapshot_offset
            if behind <= self._config.trim_after or len(due) > changes // 8:
                break
            due[share_partition] = state
        for share_partition in touched:
            found = self.states.find(share_partition)
            if found is not None and found.updates >= self._config.snapshot_after:
                due[share_partition] = found
        snapshots: list[tuple[Entry, LogRecord]] = []
        for share_partition, state in due.items():
            is_over = 0 < state.deleted_ms < now.wall_ms - _MARKER_MS
            entry = Entry(share_partition, None if is_over else state.snapshot())
            record = record_of(entry)
            room -= record_bytes(record)
            if room < 0:
                break
            snapshots.append((entry, record))
        return snapshots

    def _apply_batch(self, append: Append) -> None:
        batch = self._under_way
        if batch is None or batch.base_offset < 0:
            raise InvariantViolated(f"append {append.append_id} is committed at an unknown offset")
        for offset, entry in enumerate(batch.entries, batch.base_offset):
            self.states.apply(entry, offset)
        self._end_offset = batch.base_offset + len(batch.entries)

    def _refuse_waiting(self, code: ErrorCode) -> None:
        refused, self._waiting = self._waiting, deque()
        for waiting in refused:
            self.refuse(waiting.token, code)

    # Deleted topics

    def _remove_gone(self) -> None:
        """Removes what is stored for deleted topics. What is under way is looked at later."""
        if not self._gone_topics or self._is_late:
            return
        asked = {each.change.share_partition for each in self._waiting if each.token is None}
        found = [each for each in self.states if each.topic_id in self._gone_topics]
        if not (found or self._waiting or self._under_way):
            self._gone_topics.clear()
        for share_partition in found:
            if share_partition not in asked:
                self._put(_Waiting(Forget(share_partition), None))
