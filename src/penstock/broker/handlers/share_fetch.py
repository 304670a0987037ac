"""ShareFetch, versions 1 and 2: a member of a share group acquires records.

A share session (`shares.sessions`) remembers the partitions of the member. The request also carries
acknowledgements: they are applied first. Then the partitions of the session are read in an order
that rotates, and by priority (`share_visits`), up to `max_records` and `max_bytes`. If nothing can
be acquired the request waits, at most `max_wait_ms`, also while a share partition is loaded. If it
asks for more than one byte, it waits until one partition has about as many.

Each partition returns whole batches of the log, with the ranges of offsets that the member has
acquired. The member ignores the other records in them. Records of a group with the setting
`share.isolation.level=read_committed` are read below the last stable offset.

A client over its quota acquires nothing, and gets the throttle time. A session that is refused
because there are too many gets its answer after `max_wait_ms`, and after 5 seconds at most.

The client needs READ on the group and on each topic; both are checked again after a wait. Version 2
added renewals, which return no records, and the record-limit mode (KIP-1206). The API is served
unless `group.share.enable` is false.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps, at_once, in_slices
from penstock.broker.handlers.share_reads import ShareReads
from penstock.broker.handlers.share_requests import (
    Acks,
    acknowledge,
    acks_of,
    is_large,
    outcomes,
)
from penstock.ports import Clock
from penstock.security.acls import AclOperation
from penstock.shares.sessions import Effect, Fetch, Refuse, SessionKey, SharedPartition
from penstock.shares.states import AcquireMode
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ShareFetchRequest, ShareFetchResponse

HELD_BACK_MS_MAX: Final = 5000
"""How long a refused session waits for its answer at most. Its connection may be closed by then."""


def handle(
    request: ShareFetchRequest, context: RequestContext
) -> asyncio.Future[ShareFetchResponse]:
    key = SessionKey(request.group_id or "", request.member_id or "")
    context.require_group(AclOperation.READ, key.group_id)
    _check(request)
    if not is_large(request, context):
        acks, event = at_once(_asked(request, context, key))
        return context.spawn(_begin(request, context, acks, event))
    context.is_large = True
    return context.spawn(_begin_large(request, context, key))


def _asked(
    request: ShareFetchRequest, context: RequestContext, key: SessionKey
) -> Steps[tuple[Acks, Fetch]]:
    """Returns what the request asks for, in steps."""
    acks = yield from acks_of(request)
    listed: list[SharedPartition] = []
    for topic in request.topics:
        for each in topic.partitions:
            listed.append(SharedPartition(topic.topic_id, each.partition_index))
            yield
    forgotten: list[SharedPartition] = []
    for gone in request.forgotten_topics_data:
        for index in gone.partitions:
            forgotten.append(SharedPartition(gone.topic_id, index))
            yield
    epoch, connection = request.share_session_epoch, context.turn
    return acks, Fetch(key, epoch, connection, tuple(listed), tuple(forgotten), bool(acks))


async def _begin_large(
    request: ShareFetchRequest, context: RequestContext, key: SessionKey
) -> ShareFetchResponse:
    acks, event = await in_slices(_asked(request, context, key), context.slices())
    return await _begin(request, context, acks, event)


def _begin(
    request: ShareFetchRequest, context: RequestContext, acks: Acks, event: Fetch
) -> Coroutine[Any, Any, ShareFetchResponse]:
    connection = context.turn
    if connection is None or connection.is_closed:
        # The session would never end.
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the connection is closed")
    verdict, later = context.services.shares.on_request(event)
    if isinstance(verdict, Refuse):
        if verdict.is_held_back:
            return _held_back(context.services.env.clock, request.max_wait_ms, verdict.error)
        raise KafkaError(verdict.error)
    if len(verdict.partitions) > context.slicing.elements:
        context.is_large = True
    reads = ShareReads(request, context, event.key, verdict.partitions)
    return _serve(request, context, reads, acks, later)


def _check(request: ShareFetchRequest) -> None:
    if request.share_acquire_mode not in [int(each) for each in AcquireMode]:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{request.share_acquire_mode} is not a mode to acquire records: use 0 or 1",
        )
    limits = request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records
    if request.is_renew_ack and any(limits):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "a fetch that renews acknowledgements returns no records: set max_wait_ms, min_bytes, "
            "max_bytes and max_records to 0",
        )


async def _held_back(clock: Clock, wait_ms: int, error: ErrorCode) -> ShareFetchResponse:
    """Answers late, so that a client does not try again at once."""
    await clock.sleep(max(0, min(wait_ms, HELD_BACK_MS_MAX)) / 1000)
    raise KafkaError(error)


async def _serve(
    request: ShareFetchRequest,
    context: RequestContext,
    reads: ShareReads,
    acks: Acks,
    later: list[Effect],
) -> ShareFetchResponse:
    begun = await acknowledge(context, reads.key, acks, is_renew=request.is_renew_ack)
    context.services.shares.carry_out(later)
    reading = await reads.read()
    slices = context.slices()
    acknowledged = await outcomes(begun, slices)
    return await in_slices(reads.response(reading, acknowledged), slices)
