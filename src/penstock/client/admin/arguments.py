"""Arguments, outcomes and the deadline of the admin client's methods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import datetime
from typing import Final, TypeVar

from penstock.client.admin import offsets
from penstock.client.admin.operations import ResourceType
from penstock.client.errors import BrokerError, DeadlineExceeded, OptionError, RequestTimedOut

T = TypeVar("T")
When = int | datetime | str
"""Milliseconds since 1970, a datetime, or one of the names in `TIMES`."""

TIMES: Final = {
    "earliest": offsets.EARLIEST,
    "latest": offsets.LATEST,
    "max_timestamp": offsets.MAX_TIMESTAMP,
}


def raise_outcome(outcome: BrokerError | None) -> None:
    if outcome is not None:
        raise outcome


def resource_of(
    topic: str | None, broker: int | None, group: str | None
) -> tuple[ResourceType, str]:
    given = [
        (kind, str(name))
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.BROKER, broker),
            (ResourceType.GROUP, group),
        )
        if name is not None
    ]
    if len(given) != 1:
        raise OptionError("give one of topic=NAME, broker=ID and group=ID")
    return given[0]


def time_ms(when: When) -> int:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise OptionError(f"{when} has no time zone: write datetime(..., tzinfo=UTC)")
        return int(when.timestamp() * 1000)
    if isinstance(when, str):
        if when not in TIMES:
            raise OptionError(f"{when!r} is not a time: give milliseconds, or one of {list(TIMES)}")
        return TIMES[when]
    return when


async def within(limit_s: float, what: str, work: Awaitable[T]) -> T:
    """Applies the overall timeout. Retries have their own deadline, but a call may consist of many
    steps with such a deadline each."""
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError as error:
        last = RequestTimedOut(f"the cluster did not answer within {limit_s:g} s")
        raise DeadlineExceeded(what, limit_s, last) from error
