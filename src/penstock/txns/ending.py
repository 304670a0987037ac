"""EndTxn 0-5, and the timeout of transactions.

A request to end a transaction is one of three things. It is due: the decision is appended, and the
request is answered when that is committed. It is done already: the client repeats it because the
answer was lost. Or it is refused. With transaction.version 2 (EndTxn 5) the epoch tells them apart:

    epoch      state                                commit            abort
    current    Ongoing                              due               due
    current    Empty, CompleteCommit/-Abort         invalid           due: with no partitions
    current    PrepareCommit/-Abort                 wait              wait
    previous   PrepareCommit, CompleteCommit        done              invalid
    previous   PrepareAbort, CompleteAbort          abortable         done
    any other                                       fenced            fenced

A producer also has the previous epoch after the coordinator aborted its transaction because of the
timeout: its commit is answered that the transaction can only be aborted, and its abort is answered
with the new epoch.

Before version 2 the epoch stays the same from transaction to transaction, and a late EndTxn may end
a later transaction than it was meant for; that is why version 2 exists.

    current    PrepareCommit, CompleteCommit        done              invalid
    current    PrepareAbort, CompleteAbort          invalid           done
    current    Empty                                invalid           invalid
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.coordination.append_errors import append_error
from penstock.coordination.effects import Now, Token
from penstock.txns import markers
from penstock.txns.config import EPOCH_PER_TRANSACTION
from penstock.txns.effects import TimerKey, TimerKind
from penstock.txns.formats import transaction_record
from penstock.txns.shard_state import Doing, ShardState
from penstock.txns.transaction import (
    EPOCH_LAST_USABLE,
    NO_PRODUCER_ID,
    Producer,
    State,
    Transaction,
)
from penstock.txns.versioned_errors import in_version
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import EndTxnRequest, EndTxnResponse

_BUMPS_SINCE = 5


class Verdict(Enum):
    DUE = "due"
    DONE = "done"


def judge(
    transaction: Transaction | None, producer: Producer, *, committed: bool, bumps: bool
) -> Verdict | ErrorCode:
    """Returns what a request to end a transaction is, by the tables above."""
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    state = transaction.state
    has_ended = state.is_preparing or state.is_complete
    if transaction.granted.epoch > EPOCH_LAST_USABLE:
        return ErrorCode.PRODUCER_FENCED  # Aborted, and there is no epoch left to continue with.
    if producer != transaction.granted:
        if bumps and producer == transaction.last and has_ended and transaction.bumps_epoch:
            return _judge_repeated(state, committed)
        if producer.producer_id in (transaction.producer_id, transaction.granted.producer_id):
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if state is State.ONGOING:
        return Verdict.DUE
    if bumps:
        if state.is_preparing:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.INVALID_TXN_STATE if committed else Verdict.DUE
    if has_ended and state.is_committed == committed:
        return Verdict.DONE
    return ErrorCode.INVALID_TXN_STATE


def _judge_repeated(state: State, committed: bool) -> Verdict | ErrorCode:
    if state.is_committed == committed:
        return Verdict.DONE
    return ErrorCode.TRANSACTION_ABORTABLE if committed else ErrorCode.INVALID_TXN_STATE


def judge_now(
    shard: ShardState, transactional_id: str, producer: Producer, *, committed: bool, bumps: bool
) -> Verdict | ErrorCode:
    """As `judge`, but does not judge the current producer while partitions are being added.

    The image does not show them yet: a transaction that looks ended or empty is about to be open.
    """
    transaction = shard.image.get(transactional_id)
    verdict = judge(transaction, producer, committed=committed, bumps=bumps)
    is_current = transaction is not None and producer == transaction.granted
    if (
        is_current
        and verdict is not ErrorCode.PRODUCER_FENCED
        and shard.is_adding(transactional_id)
    ):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return verdict


@dataclass(frozen=True, slots=True)
class _Asked:
    transactional_id: str
    committed: bool
    version: int
    client_version: int
    token: Token


def end_txn(
    shard: ShardState, request: EndTxnRequest, version: int, token: Token, now: Now
) -> None:
    bumps = version >= _BUMPS_SINCE and shard.config.transaction_version >= EPOCH_PER_TRANSACTION
    client_version = EPOCH_PER_TRANSACTION if bumps else 0
    transactional_id = request.transactional_id
    asked = _Asked(transactional_id, request.committed, version, client_version, token)
    if not transactional_id:
        _refuse(shard, asked, ErrorCode.INVALID_REQUEST)
        return
    transaction = shard.image.get(transactional_id)
    producer = Producer(request.producer_id, request.producer_epoch)
    verdict = judge_now(shard, transactional_id, producer, committed=request.committed, bumps=bumps)
    busy = shard.busy.get(transactional_id)
    if transaction is None or isinstance(verdict, ErrorCode):
        assert isinstance(verdict, ErrorCode)
        _refuse(shard, asked, verdict)
    elif verdict is Verdict.DONE:
        _confirm(shard, asked, transaction)
    elif busy is not None:
        _refuse(shard, asked, ErrorCode.CONCURRENT_TRANSACTIONS)
    else:
        shard.begin(transactional_id, Doing.ENDING)
        if bumps and transaction.is_exhausted:
            shard.allocate(1, NextId(asked, transaction))
        else:
            _prepare(shard, asked, transaction, NO_PRODUCER_ID, now)


def _prepare(
    shard: ShardState, asked: _Asked, transaction: Transaction, next_producer_id: int, now: Now
) -> None:
    prepared = transaction.prepared(
        committed=asked.committed,
        client_version=asked.client_version,
        next_producer_id=next_producer_id,
        now_ms=now.wall_ms,
    )
    shard.appends.start([transaction_record(prepared)], Prepared(asked, prepared), now)


def _confirm(shard: ShardState, asked: _Asked, transaction: Transaction) -> None:
    granted = transaction.granted
    shard.effects.reply(
        asked.token,
        EndTxnResponse(producer_id=granted.producer_id, producer_epoch=granted.epoch),
    )


def _refuse(shard: ShardState, asked: _Asked, code: ErrorCode) -> None:
    shard.effects.reply(
        asked.token, EndTxnResponse(error_code=in_version(code, "end", asked.version))
    )


@dataclass(frozen=True, slots=True)
class NextId:
    """The epochs are used up with this transaction: the next one gets another producer id."""

    asked: _Asked
    transaction: Transaction

    def granted(self, shard: ShardState, producer_ids: Sequence[int], now: Now) -> None:
        (producer_id,) = producer_ids
        _prepare(shard, self.asked, self.transaction, producer_id, now)

    def refused(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        shard.finish(self.asked.transactional_id)
        _refuse(shard, self.asked, error)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        _refuse(shard, self.asked, code)


@dataclass(frozen=True, slots=True)
class Prepared:
    asked: _Asked
    transaction: Transaction

    def committed(self, shard: ShardState, now: Now) -> None:
        shard.finish(self.asked.transactional_id)
        _confirm(shard, self.asked, self.transaction)
        markers.begin(shard, self.transaction, now)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        shard.finish(self.asked.transactional_id)
        _refuse(shard, self.asked, append_error(error))

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        _refuse(shard, self.asked, code)


# Timeouts


def on_timeout(shard: ShardState, transactional_id: str, now: Now) -> None:
    """Aborts a transaction that has been open too long, and fences its producer."""
    deadline_ms = shard.deadlines_ms.get(transactional_id)
    if deadline_ms is None:
        return
    if now.ticks_ms < deadline_ms:
        shard.set_deadline(transactional_id, deadline_ms)
    elif transactional_id in shard.busy:
        _look_again(shard, transactional_id, now)
    else:
        shard.begin(transactional_id, Doing.ENDING)
        transaction = shard.image.transactions[transactional_id]
        fenced = transaction.fenced(may_return=True, now_ms=now.wall_ms)
        shard.appends.start([transaction_record(fenced)], TimedOut(fenced), now)


def _look_again(shard: ShardState, transactional_id: str, now: Now) -> None:
    key = TimerKey(TimerKind.TIMEOUT, transactional_id)
    shard.effects.set_timer(key, now.ticks_ms + shard.config.retry_ms)


@dataclass(frozen=True, slots=True)
class TimedOut:
    transaction: Transaction

    def committed(self, shard: ShardState, now: Now) -> None:
        shard.finish(self.transaction.transactional_id)
        markers.begin(shard, self.transaction, now)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        shard.finish(self.transaction.transactional_id)
        _look_again(shard, self.transaction.transactional_id, now)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None: ...
