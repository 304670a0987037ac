"""Fetch, versions 4 to 17: returns batches from the given partitions, as they are in the log.

Each partition returns whole batches, starting with the one that contains the requested offset. The
first batch is returned even if it is larger than the limit, so that every consumer makes progress.
If less than `min_bytes` is available the request waits, at most `max_wait_ms`.

A fetch of more than a few hundred partitions is processed in slices (`large_fetch`).

Large pieces stay in their files until they are sent. What must be read into memory for a client is
limited by the memory that is left for responses: then a fetch returns less, but at least one batch.
The limit does not apply to followers.

A reader of committed records (isolation level 1) gets what is below the last stable offset, where
the first open transaction begins. The response lists the aborted transactions among the batches;
the client leaves their records out.

Consumers get what is committed, followers get everything. The replica id distinguishes them. A
follower also sends its broker epoch, and counts only if that is the registered one: nothing else
can change the in-sync set. Its fetch offset is taken as its log end, unless its log diverges from
this one before that. A follower that learns of a leader before the leader itself does is not
refused, since it would then back off for a while: it waits until the leadership begins here.

A consumer over its quota gets a response without partitions, at once, with the throttle time. A
follower has no quota.

A consumer needs READ on each topic, a follower CLUSTER_ACTION on the cluster. Both are checked each
time partitions are read, so a change of ACLs applies to sessions and to fetches that wait.

Fetch sessions exist from version 7 on. Version 9 sends the leader epoch that the client knows,
version 12 the epoch of its last record (a diverging epoch in the response reports a truncated log),
and from version 13 on topics are named by id only. With version 11 a consumer may read from a
follower, up to the high watermark that the follower knows. A consumer is sent to an in-sync
follower in its own rack if there is one (KIP-392). Version 15 moved the replica id and added the
broker epoch (KIP-903): Penstock brokers send no older version.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.fetch_reads import IDS_SINCE, READ_COMMITTED, FetchReads
from penstock.broker.handlers.fetch_sender import fetching_follower, is_registered, read_rights
from penstock.broker.handlers.large_fetch import LargeFetch
from penstock.broker.partitions.parked_requests import COMMITS_S, DataWait, end_with_news_of_roles
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FetchRequest, FetchResponse


def handle(
    request: FetchRequest, context: RequestContext
) -> FetchResponse | asyncio.Future[FetchResponse]:
    services = context.services
    follower = fetching_follower(request, context.version)
    may_read = read_rights(context, follower)
    is_known = (
        follower is not None
        and is_registered(follower, services)
        and (may_read is None or may_read(""))
    )
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
    meter = None if is_known else context.meter
    fetch = FetchReads(request, services, session, wanted, context.version, may_read, meter)
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
        appends=fetch.is_from_follower,
        stable=request.isolation_level == READ_COMMITTED and not fetch.is_from_follower,
    )
    if fetch.throttled:
        wait.end_within(fetch.throttled_ms / 1000)
    if fetch.is_behind:
        wait.end_within(COMMITS_S)
    if fetch.is_early:
        end_with_news_of_roles(wait, services.replicas)
    return wait.future


def refuse(request: FetchRequest, version: int, code: ErrorCode) -> FetchResponse:
    """Answers with the code at the top level, which exists from version 7 on.

    Older versions get an empty response.
    """
    return FetchResponse(error_code=code)
