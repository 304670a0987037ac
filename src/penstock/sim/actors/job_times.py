"""Draws the due times and expiry times that producers give their records, as queues do.

In some seeds some records have an old timestamp. They are due more than a minute after it, so they
are far records, although they are due soon: brokers schedule them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.records.job_headers import DELIVER_AT, EXPIRES_AT
from penstock.shares.share_schedule import FAR_MS
from penstock.sim.actors.shared_state import Actor

_PLAIN, _PAST, _NEAR, _FAR = "plain", "past", "near", "far"
_KINDS: Final = (_PLAIN, _PAST, _NEAR, _FAR)
_WEIGHTS: Final = (45, 10, 37, 8)
_NEAR_MAX_S: Final = 5.0
_FAR_FROM_S: Final = 30.0
_EXPIRY_SHARE: Final = 0.3
_OLD_SHARE: Final = 0.5
_OLD_MS: Final = (FAR_MS - 1_000, FAR_MS, FAR_MS + 1, FAR_MS + 30_000)
_LIVES_S: Final = (-0.5, 0.2, 1.0, 3.0, 10.0, 300.0)
"""How long records may be delivered from their due time on. Some expire before they are due."""


class JobTimes(NamedTuple):
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    """None: now."""


def draw_times(actor: Actor) -> JobTimes:
    """Returns the times of one record. None in seeds without timed records."""
    plan = actor.shared.scenario.shares
    if plan is None or not plan.timed:
        return JobTimes()
    draws, now_ms = actor.draws, actor.env.clock.wall_ms()
    due_ms, headers, timestamp_ms = now_ms, [], None
    kind = draws.choices(_KINDS, _WEIGHTS)[0]
    if kind == _FAR and plan.due_max_s <= _NEAR_MAX_S:
        kind = _NEAR
    if kind != _PLAIN:
        due_ms += int(1000 * _ahead_s(actor, kind, plan.due_max_s))
        headers.append((DELIVER_AT, str(due_ms).encode()))
        actor.shared.count(f"records_due_{kind}")
        if plan.scheduled and draws.random() < _OLD_SHARE:
            timestamp_ms = due_ms - draws.choice(_OLD_MS)
            actor.shared.count("records_scheduled", due_ms - timestamp_ms > FAR_MS)
    if draws.random() < _EXPIRY_SHARE:
        expires_ms = due_ms + int(1000 * draws.choice(_LIVES_S))
        headers.append((EXPIRES_AT, str(expires_ms).encode()))
        actor.shared.count("records_with_expiry")
    return JobTimes(tuple(headers), timestamp_ms)


def _ahead_s(actor: Actor, kind: str, due_max_s: float) -> float:
    if kind == _PAST:
        return -actor.draws.choice((0.1, 10.0, 3_600.0))
    if kind == _FAR:
        return actor.draws.uniform(min(_FAR_FROM_S, due_max_s / 2), due_max_s)
    return actor.draws.uniform(0.0, _NEAR_MAX_S)
