"""Runs a shard with a manual clock, a log, timers, producer ids and partitions.

It does what a broker's runtime does and nothing else: it carries out effects in order, reports
appends in order, and fires timers in order of time. Tests can make it hold back any of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from penstock.coordination.effects import (
    Append,
    CancelTimer,
    LogRecord,
    Now,
    Reply,
    SetTimer,
    Token,
)
from penstock.topic_partition import TopicPartition
from penstock.txns.config import TransactionConfig
from penstock.txns.effects import (
    AllocateProducerIds,
    Answer,
    Effect,
    EndedTogether,
    EndTransactions,
    Member,
    SendMarkers,
    TimerKey,
)
from penstock.txns.shard import TransactionShard
from penstock.txns.transaction import Producer, Transaction
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

EPOCH_MS = 1_700_000_000_000
OFFSETS = TopicPartition("__consumer_offsets", 7)
NONE = ErrorCode.NONE


def at(name: str) -> TopicPartition:
    """Parses a topic partition like `orders-3`."""
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


class World:
    def __init__(self, config: TransactionConfig | None = None, coordinator_epoch: int = 1) -> None:
        self.config = config or TransactionConfig()
        self.coordinator_epoch = coordinator_epoch
        self.batch_bytes_max = 1 << 20
        self.ticks_ms = 0
        self.log: list[LogRecord] = []
        self.batches: list[tuple[LogRecord, ...]] = []
        self.waiting: deque[Append] = deque()
        self.timers: dict[TimerKey, int] = {}
        self.replies: dict[Token, Answer] = {}
        self.sent: list[SendMarkers] = []
        self.allocating: list[AllocateProducerIds] = []
        self.next_producer_id = 1000
        self.holds_log = False
        self.fails_log: ErrorCode | None = None
        self.holds_ids = False
        self.holds_markers = False
        self.additions_wait = False
        self.answers_markers: Callable[[TopicPartition], ErrorCode] = lambda where: NONE
        self.on_marker: Callable[[SendMarkers, TopicPartition], None] = lambda sent, where: None
        self.asked = 0
        self.shard = self._new_shard()
        self.carry_out(self.shard.on_loaded(self.now))

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(self.config, self.coordinator_epoch, lambda: self.batch_bytes_max)

    @property
    def now(self) -> Now:
        return Now(self.ticks_ms, EPOCH_MS + self.ticks_ms)

    # Effects

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(token, answer):
                    assert token not in self.replies, f"{token} is answered twice"
                    self.replies[token] = answer
                case SetTimer(key, at_ms):
                    self.timers[key] = at_ms
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Append():
                    self.waiting.append(effect)
                case AllocateProducerIds():
                    self.allocating.append(effect)
                case SendMarkers():
                    self.sent.append(effect)
        if not self.holds_log:
            while self.waiting:
                self.settle_one()
        if not self.holds_ids:
            while self.allocating:
                self.allocate_one()
        if not self.holds_markers:
            while self.sent:
                self.mark_one()

    def settle_one(self) -> None:
        append = self.waiting.popleft()
        if self.fails_log is not None:
            self.carry_out(self.shard.on_append_failed(append.append_id, self.fails_log, self.now))
            return
        self.log += append.records
        self.batches.append(append.records)
        self.carry_out(self.shard.on_committed(append.append_id, self.now))

    def allocate_one(self) -> None:
        asked = self.allocating.pop(0)
        first = self.next_producer_id
        self.next_producer_id += asked.count
        ids = range(first, self.next_producer_id)
        self.carry_out(self.shard.on_producer_ids(asked.allocation_id, ids, self.now))

    def mark_one(self) -> None:
        sent = self.sent.pop(0)
        answers = {}
        for where in sent.partitions:
            answers[where] = self.answers_markers(where)
            if answers[where] is NONE:
                self.on_marker(sent, where)
        self.carry_out(self.shard.on_markers(sent.transactional_id, sent.marker, answers, self.now))

    def advance(self, milliseconds: int) -> None:
        """Advances the clock and fires the timers that become due."""
        until = self.ticks_ms + milliseconds
        while self.timers:
            key, at_ms = min(self.timers.items(), key=lambda item: (item[1], item[0][1]))
            if at_ms > until:
                break
            self.ticks_ms = max(self.ticks_ms, at_ms)
            del self.timers[key]
            self.carry_out(self.shard.on_timer(key, self.now))
        self.ticks_ms = until

    def fail_over(self) -> None:
        """Simulates a failover: a new shard replays the log. Waiting requests get no response."""
        for held in (self.timers, self.waiting, self.sent, self.allocating):
            held.clear()
        self.coordinator_epoch += 1
        self.shard = self._new_shard()
        for record in self.log:
            self.shard.replay(record.key, record.value)
        self.carry_out(self.shard.on_loaded(self.now))

    # Requests

    def token(self) -> int:
        self.asked += 1
        return self.asked

    def transaction(self, transactional_id: str) -> Transaction:
        return self.shard.state.image.transactions[transactional_id]

    def send_init(
        self,
        transactional_id: str,
        expected: Producer | None = None,
        timeout_ms: int = 60_000,
        version: int = 5,
    ) -> Token:
        token = self.token()
        request = InitProducerIdRequest(transactional_id, timeout_ms, *(expected or (-1, -1)))
        self.carry_out(self.shard.init_producer_id(request, version, token, self.now))
        return token

    def init(
        self,
        transactional_id: str,
        expected: Producer | None = None,
        timeout_ms: int = 60_000,
        version: int = 5,
    ) -> Producer | ErrorCode:
        answer = self.replies[self.send_init(transactional_id, expected, timeout_ms, version)]
        assert isinstance(answer, InitProducerIdResponse)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return Producer(answer.producer_id, answer.producer_epoch)

    def started(self, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
        """Asks for a producer until there is one, as a client does."""
        for _ in range(3):
            given = self.init(transactional_id, timeout_ms=timeout_ms)
            if isinstance(given, Producer):
                return given
            assert given is ErrorCode.CONCURRENT_TRANSACTIONS
        raise AssertionError(f"{transactional_id} is never given")

    def send_add(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[str],
        version: int = 3,
        verify_only: bool = False,
        only_beside: Iterable[str] = (),
    ) -> Token:
        topics: dict[str, list[int]] = {}
        for where in partitions:
            topics.setdefault(at(where).topic, []).append(at(where).partition)
        request = AddPartitionsToTxnRequest.Transaction(
            transactional_id,
            *producer,
            verify_only,
            [AddPartitionsToTxnRequest.Topic(*topic) for topic in topics.items()],
        )
        token = self.token()
        self.carry_out(
            self.shard.add_partitions(
                request,
                version,
                token,
                self.now,
                may_wait=self.additions_wait,
                only_beside=frozenset(map(at, only_beside)),
            )
        )
        return token

    def added(self, token: Token) -> dict[TopicPartition, ErrorCode]:
        answer = self.replies[token]
        assert isinstance(answer, AddPartitionsToTxnResponse.Transaction)
        return {
            TopicPartition(topic.name, result.partition_index): ErrorCode(
                result.partition_error_code
            )
            for topic in answer.topic_results
            for result in topic.results_by_partition
        }

    def add(
        self,
        transactional_id: str,
        producer: Producer,
        *partitions: str,
        version: int = 3,
        verify_only: bool = False,
    ) -> ErrorCode:
        """Returns the highest of the error codes."""
        token = self.send_add(transactional_id, producer, partitions, version, verify_only)
        return max(self.added(token).values())

    def send_add_offsets(
        self, transactional_id: str, producer: Producer, version: int = 4
    ) -> Token:
        token = self.token()
        request = AddOffsetsToTxnRequest(transactional_id, *producer, "group")
        self.carry_out(
            self.shard.add_offsets(
                request, OFFSETS, version, token, self.now, may_wait=self.additions_wait
            )
        )
        return token

    def add_offsets(self, transactional_id: str, producer: Producer, version: int = 4) -> ErrorCode:
        answer = self.replies[self.send_add_offsets(transactional_id, producer, version)]
        assert isinstance(answer, AddOffsetsToTxnResponse)
        return ErrorCode(answer.error_code)

    def send_end(
        self, transactional_id: str, producer: Producer, *, commit: bool, version: int = 5
    ) -> Token:
        token = self.token()
        request = EndTxnRequest(transactional_id, *producer, commit)
        self.carry_out(self.shard.end_txn(request, version, token, self.now))
        return token

    def ended(self, token: Token) -> Producer | ErrorCode:
        answer = self.replies[token]
        assert isinstance(answer, EndTxnResponse)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return Producer(answer.producer_id, answer.producer_epoch)

    def end(
        self, transactional_id: str, producer: Producer, *, commit: bool, version: int = 5
    ) -> Producer | ErrorCode:
        return self.ended(self.send_end(transactional_id, producer, commit=commit, version=version))

    def send_end_together(
        self,
        members: dict[str, Producer],
        *,
        commit: bool = True,
        offsets: TopicPartition | None = None,
    ) -> Token:
        token = self.token()
        request = EndTransactions(
            tuple(Member(name, *producer) for name, producer in members.items()), commit, offsets
        )
        self.carry_out(self.shard.end_transactions(request, token, self.now))
        return token

    def end_together(
        self,
        members: dict[str, Producer],
        *,
        commit: bool = True,
        offsets: TopicPartition | None = None,
    ) -> EndedTogether:
        answer = self.replies[self.send_end_together(members, commit=commit, offsets=offsets)]
        assert isinstance(answer, EndedTogether)
        return answer
