"""Decides where a share group begins in a partition that it has never read."""

from __future__ import annotations

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.partition.leadership import Leadership
from penstock.ports import Env
from penstock.shares.offset_reset import OffsetReset, ResetKind
from penstock.storage.timesearch import NotQuick, TimedOffset, search_time


async def decide_start(
    env: Env, hosted: HostedPartition, term: Leadership, reset: OffsetReset
) -> int:
    """Returns an offset of the log.

    Raises `KafkaError` if a new leader does not know yet how much is committed.
    """
    latest = term.latest_offset()
    if reset.kind is ResetKind.EARLIEST:
        return hosted.log.log_start_offset
    if reset.kind is not ResetKind.BY_DURATION:
        return latest
    found = await first_since(env, hosted, env.clock.wall_ms() - reset.duration_ms)
    if found is None or found.offset >= latest:
        return latest
    return max(found.offset, hosted.log.log_start_offset)


async def first_since(env: Env, hosted: HostedPartition, time_ms: int) -> TimedOffset | None:
    """Returns the first record with at least this timestamp; None if there is none."""
    search = search_time(hosted.log, time_ms)
    found: TimedOffset | None = None
    try:
        while True:
            look = search.send(found)
            try:
                found = look.run(quickly=True)
            except NotQuick:
                found = await env.executor.run(look.run)
    except StopIteration as end:
        result: TimedOffset | None = end.value
        return result
