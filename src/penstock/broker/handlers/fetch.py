"""Fetch, versions 4 to 17: batches from some partitions, as they lie in the log.

Each partition is given whole batches from the one that holds the offset on, the first even if it is
larger than the limit, so that every consumer gets on. When less than `min_bytes` is there the
request waits, at most `max_wait_ms`.

A fetch of more than a few hundred partitions is worked off in slices (`broker/large_fetch`).

Large pieces stay in their files until they are sent. What must be read into memory for a client is
bounded by the memory that is left for answers: then a fetch returns less, but always one batch.
Followers are not bounded by it.

Who reads committed records only (isolation level 1) gets what lies below the last stable offset,
where the first transaction begins that is still open, and is told which transactions among the
batches were aborted: leaving those out is the client's part.

Consumers get what is committed, followers all there is. Which of them asks the replica id says; a
follower also names its broker epoch, and counts only in the life that is registered: nobody else
can move the in-sync set. Its offset is what it has, if its log does not part from this one before.
One that knows of a leader before the leader does is not refused, since it would keep away for a
while then: it waits until the partition is led here.

From version 7 on there are fetch sessions. Version 9 sends the leader epoch the client knows, 12
the epoch of its last record (a truncated log is told by a diverging epoch), and from 13 on topics
are named by id only. With version 11 a consumer may read from a follower, up to the high watermark
that knows of, and is sent to the one in its own rack if there is one in sync (KIP-392). Version 15
moved the replica id and added the broker epoch (KIP-903): brokers of ours send no older one.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.fetch_reads import (
    IDS_SINCE,
    READ_COMMITTED,
    FetchReads,
    fetching_replica,
    is_registered,
)
from penstock.broker.large_fetch import LargeFetch
from penstock.broker.purgatory import COMMITS_S, DataWait, end_with_news_of_roles
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FetchRequest, FetchResponse


def handle(
    request: FetchRequest, context: RequestContext
) -> FetchResponse | asyncio.Future[FetchResponse]:
    services = context.services
    replica = fetching_replica(request, context.version)
    is_known = replica is not None and is_registered(replica, services)
    context.is_replica = is_known
    sessions = services.fetch_sessions
    if sessions.partitions_of(request) > context.slicing.elements:
        context.is_large = True
        return context.spawn(LargeFetch(request, context, privileged=is_known).serve())
    session, wanted = sessions.begin(
        request,
        services.env.clock.monotonic(),
        by_id=context.version >= IDS_SINCE,
        privileged=is_known,
    )
    fetch = FetchReads(request, services, session, wanted, context.version)
    fetch.look_up(0, len(wanted))
    read = fetch.read()
    if read.size >= request.min_bytes or read.must_answer or request.max_wait_ms <= 0:
        return fetch.answer(read)
    hosted = [held for held in fetch.hosted if held is not None and held not in fetch.throttled]
    wait = DataWait(
        hosted,
        request.min_bytes - read.size,
        request.max_wait_ms / 1000,
        lambda: fetch.answer(fetch.read()),
        appends=fetch.is_replicas,
        stable=request.isolation_level == READ_COMMITTED and not fetch.is_replicas,
    )
    if fetch.throttled:
        wait.end_within(fetch.throttled_ms / 1000)
    if fetch.is_behind:
        wait.end_within(COMMITS_S)
    if fetch.is_early:
        end_with_news_of_roles(wait, services.replicas)
    return wait.future


def refuse(request: FetchRequest, version: int, code: ErrorCode) -> FetchResponse:
    """Sessions have a code of their own from version 7 on; before there are none."""
    return FetchResponse(error_code=code)
