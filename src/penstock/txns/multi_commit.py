"""Ends many transactions of one shard in one batch: all of them or none (multi-commit).

A batch is atomic: it is appended, replicated, truncated and replayed as a whole. So if the
decisions on many transactions are in one batch, no crash can leave some of them decided and others
not. This is the only request in this package that Kafka does not have.

Each member names its producer's id and epoch. A commit is judged as a whole:

    every member is open under its epoch     decided, in one batch
    every member was committed so before     done: the request is repeated, its answer was lost
    one is fenced, aborted, unknown, ...     refused, and nothing is changed
    one is being changed at the moment       refused with a retriable error

An offset commit can be part of it, as one member's write to `__consumer_offsets`. The request can
name that partition, and then a commit without it is refused: the data becomes visible together with
the record of the progress.

An abort is not judged as a whole: every member gets a new epoch, also one without an open
transaction, so that a late batch of its producer cannot open another one. A member that is fenced
or unknown has nothing open. Only if a member was committed is the abort refused.

All members end by the rules of transaction.version 2: with a new epoch, by which a repeated request
is recognized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.coordination.append_errors import append_error
from penstock.coordination.batches import record_bytes
from penstock.coordination.effects import Now, Token
from penstock.records.batch import HEADER_SIZE
from penstock.txns import markers
from penstock.txns.config import EPOCH_PER_TRANSACTION
from penstock.txns.effects import EndedTogether, EndTransactions, Member, MemberEnded
from penstock.txns.ending import Verdict, judge_now
from penstock.txns.formats import transaction_record
from penstock.txns.shard_state import Doing, ShardState
from penstock.txns.transaction import NO_PRODUCER_ID, Producer, Transaction
from penstock.wire.errors import ErrorCode

_NOTHING_OPEN: Final = frozenset((ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING))

_Judged = list[tuple[Member, Verdict | ErrorCode]]


def end_transactions(shard: ShardState, request: EndTransactions, token: Token, now: Now) -> None:
    if shard.config.transaction_version < EPOCH_PER_TRANSACTION:
        shard.effects.reply(token, EndedTogether(ErrorCode.UNSUPPORTED_VERSION))
        return
    ids = {member.transactional_id for member in request.members}
    if not ids or "" in ids or len(ids) != len(request.members):
        shard.effects.reply(token, EndedTogether(ErrorCode.INVALID_REQUEST))
        return
    judged = [(member, _judge(shard, member, request.committed)) for member in request.members]
    code = (_why_not_commit if request.committed else _why_not_abort)(shard, request, judged)
    due = [member for member, verdict in judged if verdict is Verdict.DUE]
    if code is ErrorCode.NONE and any(member.transactional_id in shard.busy for member in due):
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    if code is not ErrorCode.NONE:
        shard.effects.reply(token, EndedTogether(code, _codes(judged)))
    elif not due:
        shard.effects.reply(token, EndedTogether(code, _results(shard, judged)))
    else:
        _begin(shard, Ending(request.committed, judged, token), now)


def _judge(shard: ShardState, member: Member, committed: bool) -> Verdict | ErrorCode:
    transaction = shard.image.get(member.transactional_id)
    producer = Producer(member.producer_id, member.producer_epoch)
    verdict = judge_now(shard, member.transactional_id, producer, committed=committed, bumps=True)
    is_empty = transaction is not None and not transaction.partitions
    if committed and verdict is Verdict.DUE and is_empty:
        return ErrorCode.INVALID_TXN_STATE  # The caller expected records in it.
    return verdict


def _why_not_commit(shard: ShardState, request: EndTransactions, judged: _Judged) -> ErrorCode:
    for _, verdict in judged:
        if isinstance(verdict, ErrorCode):
            return verdict
    if all(verdict is Verdict.DONE for _, verdict in judged):
        return ErrorCode.NONE
    if any(verdict is Verdict.DONE for _, verdict in judged):
        return ErrorCode.INVALID_TXN_STATE  # They were not committed together.
    where = request.offsets_partition
    if where is not None and not any(
        where in shard.image.transactions[member.transactional_id].partitions
        for member in request.members
    ):
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


def _why_not_abort(shard: ShardState, request: EndTransactions, judged: _Judged) -> ErrorCode:
    for _, verdict in judged:
        if isinstance(verdict, ErrorCode) and verdict not in _NOTHING_OPEN:
            return verdict
    return ErrorCode.NONE


def _codes(judged: _Judged) -> tuple[MemberEnded, ...]:
    """Returns each member's code: which members prevented a request that was refused."""
    return tuple(
        MemberEnded(
            member.transactional_id,
            verdict if isinstance(verdict, ErrorCode) else ErrorCode.NONE,
        )
        for member, verdict in judged
    )


def _results(shard: ShardState, judged: _Judged) -> tuple[MemberEnded, ...]:
    """Returns each member's producer id and epoch; call it once the decision is committed."""
    results = []
    for member, verdict in judged:
        if isinstance(verdict, ErrorCode):
            results.append(MemberEnded(member.transactional_id, verdict))
        else:
            granted = shard.image.transactions[member.transactional_id].granted
            results.append(
                MemberEnded(
                    member.transactional_id, ErrorCode.NONE, granted.producer_id, granted.epoch
                )
            )
    return tuple(results)


@dataclass(frozen=True, slots=True)
class Ending:
    """A request being carried out; it also waits for producer ids if any are used up."""

    is_commit: bool
    judged: _Judged
    token: Token

    @property
    def due(self) -> list[str]:
        return [
            member.transactional_id for member, verdict in self.judged if verdict is Verdict.DUE
        ]

    def granted(self, shard: ShardState, producer_ids: Sequence[int], now: Now) -> None:
        _prepare(shard, self, producer_ids, now)

    def refused(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        _give_up(shard, self, error)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        shard.effects.reply(self.token, EndedTogether(code))


def _begin(shard: ShardState, ending: Ending, now: Now) -> None:
    for transactional_id in ending.due:
        shard.begin(transactional_id, Doing.ENDING)
    transactions = (shard.image.transactions[each] for each in ending.due)
    exhausted = sum(transaction.is_exhausted for transaction in transactions)
    if exhausted:
        shard.allocate(exhausted, ending)
    else:
        _prepare(shard, ending, (), now)


def _prepare(shard: ShardState, ending: Ending, producer_ids: Sequence[int], now: Now) -> None:
    fresh_ids = iter(producer_ids)
    prepared = []
    for transactional_id in ending.due:
        transaction = shard.image.transactions[transactional_id]
        prepared.append(
            transaction.prepared(
                committed=ending.is_commit,
                client_version=EPOCH_PER_TRANSACTION,
                next_producer_id=next(fresh_ids) if transaction.is_exhausted else NO_PRODUCER_ID,
                now_ms=now.wall_ms,
            )
        )
    records = [transaction_record(transaction) for transaction in prepared]
    if HEADER_SIZE + sum(map(record_bytes, records)) > shard.batch_bytes_max():
        _give_up(shard, ending, ErrorCode.MESSAGE_TOO_LARGE)
    else:
        shard.appends.start(records, PreparedMultiCommit(ending, tuple(prepared)), now)


def _give_up(shard: ShardState, ending: Ending, code: ErrorCode) -> None:
    for transactional_id in ending.due:
        shard.finish(transactional_id)
    shard.effects.reply(ending.token, EndedTogether(code, _codes(ending.judged)))


@dataclass(frozen=True, slots=True)
class PreparedMultiCommit:
    ending: Ending
    transactions: tuple[Transaction, ...]

    def committed(self, shard: ShardState, now: Now) -> None:
        for transactional_id in self.ending.due:
            shard.finish(transactional_id)
        results = _results(shard, self.ending.judged)
        shard.effects.reply(self.ending.token, EndedTogether(ErrorCode.NONE, results))
        for transaction in self.transactions:
            markers.begin(shard, transaction, now)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        _give_up(shard, self.ending, append_error(error))

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        shard.effects.reply(self.ending.token, EndedTogether(code))
