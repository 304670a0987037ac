"""Checks that what was revoked stays revoked.

E20  Between the acknowledgement of a revocation and the request to give the right again, no broker
     accepts a request that needs the right. A record that the user sent in between is not in the
     log before the right is given again. A fetch that began before the acknowledgement returns no
     record that was sent after it.
E21  A broker that has acknowledged that a password is deleted accepts no login with it, until a
     request to set it again. The other brokers learn of it later: the end of a run checks that
     they do.

Both hold whatever happens to brokers. Requests that were not answered may still take effect, so
nothing is closed after one of them: see `actors.rights_admin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from penstock.sim.access_plan import GUEST_TOPIC, READ, WRITE
from penstock.sim.checkers.logs import PartitionLog, Violation
from penstock.sim.history import (
    OK,
    Attempt,
    Entry,
    LoginAttempt,
    PasswordChange,
    RightChange,
    Send,
)

_PARTITION_NAME = f"{GUEST_TOPIC}-0"


class Closed(NamedTuple):
    """A time without a right: from the acknowledgement of its revocation to the next grant."""

    since_ms: float
    until_ms: float


def closed_times(changes: Iterable[RightChange]) -> list[Closed]:
    """Returns when one right was certainly missing."""
    found: list[Closed] = []
    since_ms: float | None = None
    for change in sorted(changes, key=lambda each: each.begun_ms):
        if change.granted:
            if since_ms is not None:
                found.append(Closed(since_ms, change.begun_ms))
            since_ms = None
        elif change.status == OK and since_ms is None:
            since_ms = change.ended_ms
    if since_ms is not None:
        found.append(Closed(since_ms, inf))
    return found


def check_access(entries: Iterable[Entry], logs: Mapping[str, PartitionLog]) -> Iterator[Violation]:
    changes: dict[str, list[RightChange]] = {}
    attempts: dict[str, list[Attempt]] = {}
    logins: list[LoginAttempt] = []
    passwords: list[PasswordChange] = []
    for entry in entries:
        match entry:
            case RightChange():
                changes.setdefault(entry.right, []).append(entry)
            case Attempt():
                attempts.setdefault(entry.right, []).append(entry)
            case LoginAttempt() if entry.status == OK:
                logins.append(entry)
            case PasswordChange():
                passwords.append(entry)
            case _:
                pass
    log = logs.get(_PARTITION_NAME, PartitionLog(_PARTITION_NAME))
    for right, of_right in changes.items():
        for closed in closed_times(of_right):
            for attempt in attempts.get(right, ()):
                yield from _check_attempt(attempt, closed, log)
    yield from _check_logins(logins, passwords)


def _check_attempt(attempt: Attempt, closed: Closed, log: PartitionLog) -> Iterator[Violation]:
    since_ms, until_ms = closed
    revoked = f"the right to {attempt.right} was revoked at {since_ms:.0f} ms"
    where = f"{attempt.process}, at broker {attempt.broker}"
    if attempt.begun_ms >= since_ms:
        if attempt.status == OK and attempt.ended_ms < until_ms:
            text = f"{revoked}, but {where}, used it at {attempt.begun_ms:.0f} ms"
            yield Violation("E20", _PARTITION_NAME, text)
        elif attempt.right == WRITE:
            for value in attempt.values:
                if log.first_read_ms.get(value, inf) < until_ms:
                    text = f"{revoked}, but {value} is in the log, sent at {attempt.begun_ms:.0f}"
                    yield Violation("E20", _PARTITION_NAME, text)
    elif attempt.right == READ and since_ms <= attempt.ended_ms < until_ms:
        for value in attempt.values:
            send: Send | None = log.sends.get(value)
            if send is not None and send.begun_ms >= since_ms:
                text = f"{revoked}, but {where}, got {value}, sent at {send.begun_ms:.0f} ms"
                yield Violation("E20", _PARTITION_NAME, text)


def _check_logins(
    logins: Iterable[LoginAttempt], changes: Iterable[PasswordChange]
) -> Iterator[Violation]:
    ordered = sorted(changes, key=lambda each: each.begun_ms)
    for login in logins:
        deleted_ms: float | None = None
        for change in ordered:
            if change.begun_ms > login.ended_ms:
                break
            if change.is_set and change.status != OK:
                return  # It may still take effect, at any time.
            if change.is_set:
                deleted_ms = None
            elif change.status == OK and change.broker == login.broker:
                deleted_ms = change.ended_ms
        if deleted_ms is not None and login.begun_ms >= deleted_ms:
            text = (
                f"the password was deleted at broker {login.broker} at {deleted_ms:.0f} ms, but "
                f"{login.process} logged in there at {login.begun_ms:.0f} ms"
            )
            yield Violation("E21", login.process, text)
