"""Decides when the next round of a pipeline begins. Pure.

Times are milliseconds of the wall clock, because a schedule must survive its worker. The wall clock
may jump. After a jump forward, all times that were missed are one round. After a jump back, the
next round is never further away than the schedule allows: `not_later` makes sure of it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from cronsim import CronSim, CronSimError

from penstock.spark.deployments.model import Schedule

_LEAST_EVERY_S: Final = 1.0
_MS: Final = 1_000


class ScheduleInvalid(ValueError):
    """A schedule that names no time, or more than one kind of time."""


def check(schedule: Schedule) -> None:
    """Raises `ScheduleInvalid`, with one line that says what to do."""
    given = [schedule.continuous, bool(schedule.every_s), bool(schedule.cron)]
    if sum(given) != 1:
        raise ScheduleInvalid(
            "a schedule must be exactly one of: continuous, an interval in seconds, a cron "
            "expression"
        )
    if schedule.every_s and not schedule.every_s >= _LEAST_EVERY_S:
        raise ScheduleInvalid("rounds must be at least 1 s apart: use a continuous schedule")
    if not 0 <= schedule.interval_s < float("inf") or not schedule.every_s < float("inf"):
        raise ScheduleInvalid("the time between rounds must be 0 s or more, and finite")
    if schedule.cron:
        _next_cron(schedule.cron, 0)


def first_round(schedule: Schedule, now_ms: int) -> int:
    """Returns when the first round of a deployment begins: at once, except by cron."""
    return _next_cron(schedule.cron, now_ms) if schedule.cron else now_ms


def next_round(schedule: Schedule, began_ms: int, ended_ms: int) -> int:
    """Returns when the round after this one begins. The time may have passed already: then the
    round begins at once, and stands for all that were missed."""
    if schedule.cron:
        return _next_cron(schedule.cron, began_ms)
    if schedule.every_s:
        return max(began_ms + round(schedule.every_s * _MS), ended_ms)
    return ended_ms + round(schedule.interval_s * _MS)


def not_later(schedule: Schedule, due_ms: int, now_ms: int) -> int:
    """Returns `due_ms`, or an earlier time if the clock was set back since it was decided."""
    if schedule.cron:
        return min(due_ms, _next_cron(schedule.cron, now_ms))
    pause_s = schedule.every_s or schedule.interval_s
    return min(due_ms, now_ms + round(pause_s * _MS))


def _next_cron(cron: str, after_ms: int) -> int:
    """Returns the first time after this one."""
    try:
        at = datetime.fromtimestamp(after_ms / _MS, UTC)
        return int(next(CronSim(cron, at)).timestamp()) * _MS
    except CronSimError as error:
        raise ScheduleInvalid(
            f"{cron!r} is not a cron schedule ({error}): give minute, hour, day, month and day of "
            "the week, such as '0 3 * * *'"
        ) from None
    except StopIteration:
        raise ScheduleInvalid(f"{cron!r} never matches a time: change it") from None
