"""InitProducerId 0-5: a producer takes over a transactional id, and fences the previous one.

A producer that sends no id and epoch takes over: the epoch is raised and the previous producer
cannot return. A producer that sends its id and epoch (KIP-360) wants to continue after an error:
its epoch is raised if it is still the current one. If it repeats the request because the answer was
lost, it gets the same epoch again. An open transaction is aborted first, and the client gets a
retriable error meanwhile.

    sends           state     answer
    no id           any       a new epoch, or a new id at epoch 0 if the epochs are used up
    current epoch   any       the same
    previous epoch  resting   the current epoch: a repeated request, or the coordinator aborted
    previous epoch  Ongoing   fenced: its successor is at work, and this request is late
    anything else   any       fenced
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.coordination.append_errors import append_error
from penstock.coordination.effects import Now, Token
from penstock.txns import markers
from penstock.txns.formats import transaction_record
from penstock.txns.shard_state import Doing, ShardState
from penstock.txns.transaction import (
    EPOCH_LAST_USABLE,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Producer,
    State,
    Transaction,
)
from penstock.txns.versioned_errors import in_version
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import InitProducerIdRequest, InitProducerIdResponse

_ID_BYTES_MAX: Final = (1 << 15) - 1
"""The key of a transaction's record has a 16-bit length."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request, without what matters only on the wire."""

    transactional_id: str
    timeout_ms: int
    expected: Producer | None
    version: int
    token: Token


def init_producer_id(
    shard: ShardState, request: InitProducerIdRequest, version: int, token: Token, now: Now
) -> None:
    named = request.producer_id != NO_PRODUCER_ID or request.producer_epoch != NO_EPOCH
    asked = _Asked(
        request.transactional_id or "",
        request.transaction_timeout_ms,
        Producer(request.producer_id, request.producer_epoch) if named else None,
        version,
        token,
    )
    if (
        not asked.transactional_id
        or len(asked.transactional_id.encode("utf-8", "surrogatepass")) > _ID_BYTES_MAX
        or (named and min(asked.expected or (0,)) < 0)
    ):
        _refuse(shard, asked, ErrorCode.INVALID_REQUEST)
    elif not 0 < asked.timeout_ms <= shard.config.timeout_max_ms:
        _refuse(shard, asked, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    elif asked.transactional_id in shard.busy:
        _refuse(shard, asked, ErrorCode.CONCURRENT_TRANSACTIONS)
    else:
        transaction = shard.image.get(asked.transactional_id)
        if transaction is None:
            shard.begin(asked.transactional_id, Doing.INITIALIZING)
            shard.allocate(1, FreshId(asked, None))
        else:
            _hand_over(shard, transaction, asked, now)


def _hand_over(shard: ShardState, transaction: Transaction, asked: _Asked, now: Now) -> None:
    expected = asked.expected
    if expected is not None and expected not in (transaction.granted, transaction.last):
        _refuse(shard, asked, ErrorCode.PRODUCER_FENCED)
    elif transaction.state.is_preparing:
        _refuse(shard, asked, ErrorCode.CONCURRENT_TRANSACTIONS)
    elif transaction.state is State.ONGOING:
        if expected is not None and expected != transaction.granted:
            _refuse(shard, asked, ErrorCode.PRODUCER_FENCED)
        else:
            _abort_first(shard, transaction, asked, now)
    elif expected is not None and expected == transaction.last:
        if transaction.producer_epoch > EPOCH_LAST_USABLE:
            _rotate(shard, transaction, asked)
        else:
            _grant(shard, transaction, transaction.producer_epoch, expected.epoch, asked, now)
    elif transaction.is_exhausted:
        _rotate(shard, transaction, asked)
    else:
        last_epoch = NO_EPOCH if expected is None else expected.epoch
        _grant(shard, transaction, transaction.producer_epoch + 1, last_epoch, asked, now)


def _grant(
    shard: ShardState,
    transaction: Transaction,
    epoch: int,
    last_epoch: int,
    asked: _Asked,
    now: Now,
) -> None:
    shard.begin(asked.transactional_id, Doing.INITIALIZING)
    granted = transaction.initialized(
        epoch=epoch, last_epoch=last_epoch, timeout_ms=asked.timeout_ms, now_ms=now.wall_ms
    )
    shard.appends.start([transaction_record(granted)], Initialized(asked, granted), now)


def _rotate(shard: ShardState, transaction: Transaction, asked: _Asked) -> None:
    shard.begin(asked.transactional_id, Doing.INITIALIZING)
    shard.allocate(1, FreshId(asked, transaction))


def _abort_first(shard: ShardState, transaction: Transaction, asked: _Asked, now: Now) -> None:
    shard.begin(asked.transactional_id, Doing.INITIALIZING)
    fenced = transaction.fenced(may_return=asked.expected is not None, now_ms=now.wall_ms)
    shard.appends.start([transaction_record(fenced)], AbortedFirst(asked, fenced), now)


def _refuse(shard: ShardState, asked: _Asked, code: ErrorCode) -> None:
    said = in_version(code, "init", asked.version)
    shard.effects.reply(asked.token, InitProducerIdResponse(error_code=said))


@dataclass(frozen=True, slots=True)
class FreshId:
    """Allocates a producer id, because the transactional id is new or its epochs are used up."""

    asked: _Asked
    transaction: Transaction | None

    def granted(self, shard: ShardState, producer_ids: Sequence[int], now: Now) -> None:
        asked, (producer_id,) = self.asked, producer_ids
        if self.transaction is None:
            fresh = Transaction(
                asked.transactional_id, producer_id, 0, asked.timeout_ms, State.EMPTY, now.wall_ms
            )
        else:
            fresh = self.transaction.rotated(
                producer_id=producer_id,
                last_epoch=NO_EPOCH if asked.expected is None else asked.expected.epoch,
                timeout_ms=asked.timeout_ms,
                now_ms=now.wall_ms,
            )
        shard.appends.start([transaction_record(fresh)], Initialized(asked, fresh), now)

    def refused(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        shard.finish(self.asked.transactional_id)
        _refuse(shard, self.asked, error)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        _refuse(shard, self.asked, code)


@dataclass(frozen=True, slots=True)
class Initialized:
    asked: _Asked
    transaction: Transaction

    def committed(self, shard: ShardState, now: Now) -> None:
        shard.finish(self.asked.transactional_id)
        shard.effects.reply(
            self.asked.token,
            InitProducerIdResponse(
                producer_id=self.transaction.producer_id,
                producer_epoch=self.transaction.producer_epoch,
            ),
        )

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        shard.finish(self.asked.transactional_id)
        _refuse(shard, self.asked, append_error(error))

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        _refuse(shard, self.asked, code)


@dataclass(frozen=True, slots=True)
class AbortedFirst:
    """The open transaction is being aborted; the producer gets its epoch when it asks again."""

    asked: _Asked
    transaction: Transaction

    def committed(self, shard: ShardState, now: Now) -> None:
        shard.finish(self.asked.transactional_id)
        _refuse(shard, self.asked, ErrorCode.CONCURRENT_TRANSACTIONS)
        markers.begin(shard, self.transaction, now)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        shard.finish(self.asked.transactional_id)
        _refuse(shard, self.asked, append_error(error))

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        _refuse(shard, self.asked, code)
