"""Checks the log of the share coordinators, and what members of share groups see of it.

I19  The state of a share partition never goes back. A record that is done stays done, in the same
     way, and one that is given up is not delivered any more. Delivery counts do not decrease, only
     the current leader epoch reads the state, and a snapshot has what the records before it say. A
     state that was used is not begun again.
I20  The start offset begins at the first record, and passes only records that are done.
I21  A record is done only because a member has said so, because it was delivered as often as the
     limit allows, or because it has expired by the clock of a broker. So no record is lost.
I25  In a group with dead letters, a record is archived only when its dead letter is committed.
E38  A record is delivered at most as often as the limit allows, and each delivery counts: its
     number is above the stored one.
E39  An acknowledgement that was answered is in the log.
E40  Requests with an epoch that is not the next are refused, and so are those to a broker that does
     not lead.
E41  A member never gets an error without a reason in its request, and always gets all records that
     it has locked.
E42  No record is delivered before its due time, by the clock of its leader.
E43  No record is delivered after it has expired, by the same clock.

Far records are scheduled: the start offset passes over them. Each of them is promoted once, and is
done only after that. The same rules hold for promoted records.

A batch is checked when it is committed. In these runs no topic is deleted, no log is truncated
below what is committed, and there are no transactions: each offset has a record to deliver, unless
the record has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.coordination.effects import LogRecord
from penstock.metadata.model import SHARE_STATE_TOPIC
from penstock.records.record import Record
from penstock.shares.formats import ReadNote, Snapshot, decode
from penstock.shares.image import Delta, StoredSpan
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import DONE, AckType, GiveUpReason, RecordState
from penstock.sim.actors.share_board import LeaderView, ShareBoard
from penstock.sim.checkers.metadata_invariants import InvariantBroken, broken
from penstock.sim.checkers.share_records import ShareRecords, StoredRecord
from penstock.sim.history import (
    OK,
    GivenUp,
    History,
    ShareAck,
    ShareExchange,
    ShareLoad,
    ShareRange,
)

_SETTLED: Final = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVING, RecordState.ARCHIVED)
_NO_START: Final = -1
_NO_EPOCH: Final = -1


class _Broken(Exception):
    """What is wrong with a record of the log: the rule and the text."""


@dataclass(slots=True)
class TrueState:
    """A share partition, as the committed part of the log has it."""

    epoch: int
    start: int
    leader_epoch: int = _NO_EPOCH
    """That of the leader which has read the state last."""
    loads: int = 0
    records: dict[int, StoredRecord] = field(default_factory=dict)
    """By offset, from the start on. A far record is archived here when the window has passed it."""
    counts: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """By offset: when which delivery count was stored."""
    is_far: Callable[[int], bool] = lambda offset: False
    promoted: dict[int, StoredRecord] = field(default_factory=dict)
    """By offset: the far records that were promoted and are not done."""
    far_done: set[int] = field(default_factory=set)
    """The offsets of far records that are done."""

    def is_settled(self, offset: int) -> bool:
        return self.stored(offset).state in _SETTLED

    def stored(self, offset: int) -> StoredRecord:
        """Returns what the log has of a record. It is archived once the start has passed it."""
        is_far = self.is_far(offset)
        if offset in self.far_done or (offset < self.start and not is_far):
            return StoredRecord(RecordState.ARCHIVED)
        return (self.promoted if is_far else self.records).get(offset, StoredRecord())

    def stored_count(self, offset: int, until_ms: float) -> int:
        """Returns the highest count that was stored until then."""
        counts = self.counts.get(offset, ())
        return max((count for at_ms, count in counts if at_ms <= until_ms), default=0)

    def start_at(self, start: int) -> None:
        """Moves the start up, and then to the first record that is not done."""
        for offset in range(self.start, start):
            self.records.pop(offset, None)
        self.start = max(self.start, start)
        while (found := self.records.get(self.start)) is not None and found.state in DONE:
            del self.records[self.start]
            self.start += 1


class TrueShareStates:
    """Follows the log of the share coordinators. `leader_of` returns the term of a broker, as the
    broker knows it, and the leader epoch of the metadata."""

    def __init__(
        self,
        board: ShareBoard,
        history: History,
        now_ms: Callable[[], float],
        delivery_limit: int,
        leader_of: Callable[[int, str], tuple[int | None, int]],
        records: ShareRecords | None = None,
    ) -> None:
        self.topic = SHARE_STATE_TOPIC
        self.names: dict[bytes, str] = {}
        self.broken: InvariantBroken | None = None
        self.states: dict[tuple[str, str], TrueState] = {}
        """By group and topic partition."""
        self._board = board
        self._history = history
        self._now_ms = now_ms
        self._limit = delivery_limit
        self._leader_of = leader_of
        self.records = records or ShareRecords()

    def stored(self, group: str, partition_name: str, offset: int) -> StoredRecord:
        """Returns what the log has of a record."""
        state = self.states.get((group, partition_name))
        return StoredRecord() if state is None else state.stored(offset)

    # The log

    def on_committed(self, partition_name: str, offset: int, records: Iterable[Record]) -> None:
        for record in records:
            entry = decode(LogRecord(record.key or b"", record.value))
            key = self._key(entry.share_partition)
            try:
                self._apply(key, entry.content)
            except _Broken as error:
                rule, text = error.args
                raise broken(rule, key[1], f"group {key[0]}: {text}", offset) from error

    def _key(self, share_partition: SharePartitionId) -> tuple[str, str]:
        group, topic_id, index = share_partition
        return group, f"{self.names.get(topic_id, topic_id.hex())}-{index}"

    def _apply(self, key: tuple[str, str], content: object) -> None:
        state = self.states.get(key)
        if isinstance(content, Snapshot):
            self._on_snapshot(key, state, content)
        elif state is None:
            raise _Broken("I19", f"{content} is of a state that does not exist")
        elif content is None:
            raise _Broken("I19", "the state was deleted")
        elif isinstance(content, ReadNote):
            self._on_read(key, state, content)
        elif isinstance(content, Delta):
            self._on_delta(key, state, content)

    def _on_read(self, key: tuple[str, str], state: TrueState, note: ReadNote) -> None:
        if note.leader_epoch < state.leader_epoch:
            raise _Broken(
                "I19",
                f"a leader of epoch {note.leader_epoch} has read the state after one of epoch "
                f"{state.leader_epoch}",
            )
        state.leader_epoch = note.leader_epoch
        state.loads += 1
        self._note_load(key, note.leader_epoch)

    def _on_snapshot(
        self, key: tuple[str, str], state: TrueState | None, snapshot: Snapshot
    ) -> None:
        image = snapshot.image
        if state is None or image.state_epoch > state.epoch:
            if state is not None and state.loads:
                raise _Broken(
                    "I19",
                    f"the state was begun again in state epoch {image.state_epoch}, after it was "
                    f"used in {state.epoch}",
                )
            is_far = partial(self.records.is_far, key[1])
            self.states[key] = TrueState(image.state_epoch, image.start_offset, is_far=is_far)
            return
        if image.state_epoch < state.epoch:
            raise _Broken(
                "I19", f"the state epoch went back from {state.epoch} to {image.state_epoch}"
            )
        found = image.start_offset, _records(image.spans), _records(image.promoted)
        known = state.start, _known_records(state), dict(sorted(state.promoted.items()))
        if found != known:
            raise _Broken(
                "I19",
                f"a snapshot has the start, records and promoted records {found}, but the records "
                f"before it say {known}",
            )

    def _on_delta(self, key: tuple[str, str], state: TrueState, delta: Delta) -> None:
        if delta.state_epoch != state.epoch:
            raise _Broken(
                "I19", f"a change of state epoch {delta.state_epoch} came after {state.epoch}"
            )
        for span in delta.spans:
            for offset in range(span.first, span.last + 1):
                if offset >= state.start:
                    state.records[offset] = self._in_window(key, state, offset, span)
        for span in delta.promoted:
            for offset in range(span.first, span.last + 1):
                self._on_promoted(key, state, offset, span)
        if delta.start_offset == _NO_START:
            return
        if state.start == _NO_START:
            if delta.start_offset != 0:
                raise _Broken("I20", f"the group begins at offset {delta.start_offset}, not at 0")
            state.start = 0
        for offset in range(state.start, delta.start_offset):
            if not self._may_pass(key, state, offset):
                raise _Broken(
                    "I20", f"the start moved to {delta.start_offset}, but {offset} is not done"
                )
        state.start_at(delta.start_offset)

    def _may_pass(self, key: tuple[str, str], state: TrueState, offset: int) -> bool:
        if state.is_far(offset) or state.records.get(offset, StoredRecord()).state in DONE:
            return True
        return self.records.may_be_dropped(key[1], offset, self._now_ms())

    def _in_window(
        self, key: tuple[str, str], state: TrueState, offset: int, span: StoredSpan
    ) -> StoredRecord:
        if not state.is_far(offset):
            return self._changed(key, state, offset, span)
        passed_over = StoredRecord(RecordState.ARCHIVED)
        if StoredRecord(span.state, span.delivery_count, span.reason) != passed_over:
            raise _Broken("I19", f"the far record at {offset} is {span.state.name} in the window")
        return passed_over

    def _on_promoted(
        self, key: tuple[str, str], state: TrueState, offset: int, span: StoredSpan
    ) -> None:
        if not state.is_far(offset):
            raise _Broken("I19", f"offset {offset} was promoted, and is not a far record")
        if offset in state.far_done and span.state in DONE:
            return
        after = self._changed(key, state, offset, span)
        if after.state in DONE:
            state.promoted.pop(offset, None)
            state.far_done.add(offset)
        else:
            state.promoted[offset] = after

    def _changed(
        self, key: tuple[str, str], state: TrueState, offset: int, span: StoredSpan
    ) -> StoredRecord:
        """Checks a change of a record. Returns what is stored after it."""
        before = state.stored(offset)
        after = StoredRecord(span.state, span.delivery_count, span.reason)
        if after.state not in _SETTLED and before.state in _SETTLED:
            raise _Broken("I19", f"offset {offset} was done, and is {after.state.name} again")
        if before.state in _SETTLED and after.state not in (before.state, RecordState.ARCHIVED):
            raise _Broken("I19", f"{offset} was {before.state.name}, and is {after.state.name}")
        if before.state is RecordState.ACKNOWLEDGED and after.state is RecordState.ARCHIVED:
            raise _Broken("I19", f"offset {offset} was acknowledged, and is archived")
        is_dropped = after.state is RecordState.ARCHIVED and not after.deliveries
        if after.deliveries < before.deliveries and not is_dropped:
            raise _Broken(
                "I19",
                f"the delivery count of offset {offset} went back from {before.deliveries} to "
                f"{after.deliveries}",
            )
        if after.state in _SETTLED and before.state not in _SETTLED:
            self._require_reason(key, offset, after, is_dropped=is_dropped)
        if after.state is RecordState.ARCHIVED and before.state is not after.state:
            self._require_letter(key, offset, before)
        if after.state is RecordState.ARCHIVING and before.state is not after.state:
            self._note_given_up(key, offset, after)
        state.counts.setdefault(offset, []).append((self._now_ms(), after.deliveries))
        return after

    def _require_reason(
        self, key: tuple[str, str], offset: int, after: StoredRecord, *, is_dropped: bool
    ) -> None:
        """Checks why a record is done. One that is dropped was never delivered, or its count is not
        stored because it has expired."""
        was_sent, reason = self._board.was_sent, after.reason
        if after.state is RecordState.ACKNOWLEDGED:
            has_reason = was_sent(*key, offset, AckType.ACCEPT)
        elif reason is GiveUpReason.EXPIRED or (is_dropped and reason is GiveUpReason.NONE):
            has_reason = self.records.may_be_expired(key[1], offset, self._now_ms())
        else:
            is_rejected = was_sent(*key, offset, AckType.REJECT)
            is_over = after.deliveries >= self._limit
            has_reason = {
                GiveUpReason.REJECTED: is_rejected,
                GiveUpReason.DELIVERY_LIMIT: is_over,
                GiveUpReason.NONE: is_rejected or is_over,
            }.get(reason, False)
        if not has_reason:
            raise _Broken(
                "I21",
                f"offset {offset} is {after.state.name} after {after.deliveries} deliveries, for "
                f"the reason {reason.name}, but no member has said so",
            )

    def _require_letter(self, key: tuple[str, str], offset: int, before: StoredRecord) -> None:
        if not self.records.has_letters:
            return
        if before.state is not RecordState.ARCHIVING:
            raise _Broken("I25", f"offset {offset} was archived, and never became a dead letter")
        if (*key, offset) not in self.records.letters:
            raise _Broken("I25", f"offset {offset} was archived before its dead letter was written")

    def _note_given_up(self, key: tuple[str, str], offset: int, after: StoredRecord) -> None:
        now_ms = self._now_ms()
        self._history.add(
            GivenUp(
                process="log",
                status=OK,
                begun_ms=now_ms,
                ended_ms=now_ms,
                group=key[0],
                partition_name=key[1],
                offset=offset,
                deliveries=after.deliveries,
                reason=after.reason.name,
            )
        )

    def _note_load(self, key: tuple[str, str], leader_epoch: int) -> None:
        now_ms = self._now_ms()
        self._history.add(
            ShareLoad(
                process="log",
                status=OK,
                begun_ms=now_ms,
                ended_ms=now_ms,
                group=key[0],
                partition_name=key[1],
                leader_epoch=leader_epoch,
            )
        )

    # What members see

    def view(self, group: str, partition_name: str, broker: int) -> LeaderView:
        term, leader_epoch = self._leader_of(broker, partition_name)
        state = self.states.get((group, partition_name))
        if state is None:
            return LeaderView(term, leader_epoch, 0, False)
        return LeaderView(term, leader_epoch, state.loads, term == state.leader_epoch)

    def on_delivered(
        self, exchange: ShareExchange, found: ShareRange, before: LeaderView | None
    ) -> None:
        partition_name, first, last, count = found
        told = f"{exchange.process} got delivery {count} of {first}..{last}"
        state = self.states.get((exchange.group, partition_name))
        if state is None:
            self.fail("E41", f"{told}, but the group has no state", partition_name)
            return
        if count > self._limit:
            self.fail("E38", f"{told}, but the limit is {self._limit}", partition_name)
        self._check_times(exchange, found, told)
        if before is None:
            return
        after = self.view(exchange.group, partition_name, exchange.broker)
        if before.term is after.term is None and before.leader_epoch == after.leader_epoch:
            text = f"{told} from broker {exchange.broker}, which does not lead"
            self.fail("E40", text, partition_name)
        if before != after or not after.is_loaded:
            # A broker that was replaced does not know what its successor stores.
            return
        for offset in range(first, last + 1):
            stored = state.stored_count(offset, exchange.begun_ms)
            if count <= stored:
                text = f"{told}, but {stored} deliveries of {offset} are stored"
                self.fail("E38", text, partition_name)

    def _check_times(self, exchange: ShareExchange, found: ShareRange, told: str) -> None:
        """Checks that the leader could deliver these records at some moment of the request."""
        name, first, last, _ = found
        low_ms, high_ms = self.records.wall_range(
            exchange.broker, exchange.begun_ms, exchange.ended_ms
        )
        for offset in range(first, last + 1):
            written = self.records.written.get((name, offset))
            if not self.records.is_due(name, offset, high_ms):
                self.fail("E42", f"{told} at {high_ms}, but {offset} is {written}", name)
            if self.records.is_expired(name, offset, low_ms):
                self.fail("E43", f"{told} at {low_ms}, but {offset} is {written}", name)

    def on_acknowledged(self, exchange: ShareExchange, ack: ShareAck, count: int) -> None:
        partition_name, first, last, kind, _ = ack
        state = self.states.get((exchange.group, partition_name))
        if kind == AckType.RENEW:
            return
        for offset in range(first, last + 1):
            is_settled = state is not None and state.is_settled(offset)
            if kind == AckType.RELEASE and state is not None:
                stored = state.stored_count(offset, exchange.ended_ms)
                is_settled = is_settled or stored >= count
            if not is_settled:
                self.fail(
                    "E39",
                    f"{exchange.process} was told that {AckType(kind).name} of {offset} is stored, "
                    "but it is not in the log",
                    partition_name,
                )

    def fail(self, rule: str, text: str, partition_name: str = "") -> None:
        self.broken = self.broken or broken(rule, partition_name, text)


def _records(spans: Iterable[StoredSpan]) -> dict[int, StoredRecord]:
    return {
        offset: StoredRecord(span.state, span.delivery_count, span.reason)
        for span in spans
        for offset in range(span.first, span.last + 1)
    }


def _known_records(state: TrueState) -> dict[int, StoredRecord]:
    """Returns the records of a state as an image has them: without those never delivered."""
    known = sorted(state.records.items())
    return {offset: each for offset, each in known if each != StoredRecord()}
