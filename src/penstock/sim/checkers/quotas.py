"""Checks that client quotas limit who has one, and nobody else.

E22  On one connection, while a limit stays in force at the broker, a client uses no more than the
     limit of the time that passed, of Kafka's window of 11 seconds, and of one request. That holds
     also for a client that ignores its throttle times.
E23  A broker whose metadata has no quota for a client does not throttle it.
E24  A connection whose client was throttled is muted: the next answer comes no earlier than the
     throttle time after the throttled request was sent.

A broker measures each client from the time when it has a quota, and starts again after a restart.
So nothing is claimed across connections or changes of quotas. A request that began before a change
and ended after it counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.security.gauges import WINDOWS
from penstock.security.quotas import PRODUCER_BYTE_RATE
from penstock.sim.checkers.logs import Violation
from penstock.sim.history import Entry, Metered

_TOLERANCE: Final = 1.1
"""A window of ten seconds may overlap eleven: that is how Kafka measures."""
_REQUEST_BYTES: Final = 300
"""What a request has besides its batch, at most. It counts for the quota of a producer."""
_ROUNDED_MS: Final = 2.0


def check_quotas(entries: Iterable[Entry]) -> Iterator[Violation]:
    by_connection: dict[tuple[str, int], list[Metered]] = {}
    for entry in entries:
        if isinstance(entry, Metered):
            by_connection.setdefault((entry.process, entry.connection), []).append(entry)
    for of_connection in by_connection.values():
        ordered = sorted(of_connection, key=lambda each: each.begun_ms)
        yield from _check_unlimited(ordered)
        yield from _check_mutes(ordered)
        yield from _check_rates(ordered)


def _check_unlimited(requests: Iterable[Metered]) -> Iterator[Violation]:
    for each in requests:
        if each.throttle_ms and each.version is not None and each.limit is None:
            text = (
                f"broker {each.broker} throttled {each.client_id} for {each.throttle_ms} ms at "
                f"{each.ended_ms:.0f} ms, but has no {each.key} for it"
            )
            yield Violation("E23", each.process, text)


def _check_mutes(requests: Iterable[Metered]) -> Iterator[Violation]:
    muted_until_ms = 0.0
    for each in requests:
        if each.was_answered:
            if each.ended_ms < muted_until_ms - _ROUNDED_MS:
                text = (
                    f"broker {each.broker} had to mute {each.client_id} until "
                    f"{muted_until_ms:.0f} ms, but answered it at {each.ended_ms:.0f} ms"
                )
                yield Violation("E24", each.process, text)
            muted_until_ms = max(muted_until_ms, each.begun_ms + each.throttle_ms)


def _check_rates(requests: Iterable[Metered]) -> Iterator[Violation]:
    """Checks every interval from the start of a request to the end of a later one."""
    by_version: dict[tuple[int, int], list[Metered]] = {}
    for each in requests:
        if each.version is not None and each.limit is not None:
            by_version.setdefault(each.version, []).append(each)
    for of_version in by_version.values():
        limit = (of_version[0].limit or 0.0) * _TOLERANCE
        largest = max(each.amount for each in of_version)
        overhead = _REQUEST_BYTES if of_version[0].key == PRODUCER_BYTE_RATE else 0
        allowance = limit * WINDOWS + largest + overhead
        total, least = 0.0, float("inf")
        for each in of_version:
            least = min(least, total - limit * each.begun_ms / 1000)
            total += each.amount
            over = total - limit * each.ended_ms / 1000 - least - allowance
            if over > 0:
                text = (
                    f"broker {each.broker} let {each.client_id} use {over:.1f} more than the "
                    f"{each.key} of {each.limit} allows until {each.ended_ms:.0f} ms"
                )
                yield Violation("E22", each.process, text)
                break
