"""Shared by the handlers of transactional requests: passes a request to its shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from penstock.broker.context import RequestContext
from penstock.coordination.effects import Now, Token
from penstock.txns.effects import Effect
from penstock.txns.shard import TransactionShard
from penstock.wire.messages.base import Request

T = TypeVar("T")
U = TypeVar("U")


def ask(
    context: RequestContext,
    transactional_id: str,
    request: Request,
    method: Callable[[TransactionShard], Callable[..., list[Effect]]],
    *more: object,
) -> Any:
    """Passes a request about one transactional id to its shard, followed by the arguments `more`.

    Raises `KafkaError` if another broker coordinates the id, or it is still loading.
    """

    def step(shard: TransactionShard, token: Token, now: Now) -> list[Effect]:
        return method(shard)(request, *more, context.version, token, now)

    reply = context.services.transactions.ask(transactional_id, step)
    return reply.result() if reply.done() else reply


def then(answer: T | asyncio.Future[T], change: Callable[[T], U]) -> U | asyncio.Future[U]:
    """Applies `change` to the answer, now or when it arrives."""
    if not isinstance(answer, asyncio.Future):
        return change(answer)
    changed: asyncio.Future[U] = answer.get_loop().create_future()

    def finish(done: asyncio.Future[T]) -> None:
        if changed.done():
            return
        if done.cancelled():
            changed.cancel()
            return
        try:
            changed.set_result(change(done.result()))
        except Exception as error:  # noqa: BLE001 - dispatch turns it into a response
            changed.set_exception(error)

    cast("asyncio.Future[T]", answer).add_done_callback(finish)
    return changed
