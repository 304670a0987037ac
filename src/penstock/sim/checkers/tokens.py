"""Checks delegation tokens (KIP-48).

E31  When the removal of a token was acknowledged, no broker accepts a login with it. When the end
     of a token has passed by the clock of a broker, that broker accepts none.
E32  A login with a token acts as the owner of the token, and has no other rights than the owner.
E33  A broker that has accepted a token accepts it until the token ends, whatever happens to the
     broker and to the controller. A broker that is not sure which tokens exist closes the
     connection instead of refusing the login. A token that has ended by the clock of any broker may
     be removed, since that broker may be the controller.

A request to renew or expire a token that was not answered may take effect at any time: from then on
only the longest lifetime of the token is known. A removal is final.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from penstock.sim.access_plan import OTHERS_GROUP
from penstock.sim.checkers.logs import Violation
from penstock.sim.history import (
    CREATED,
    FAIL,
    INFO,
    OK,
    REMOVED_MS,
    Entry,
    TokenChange,
    TokenLogin,
)


@dataclass(frozen=True, slots=True)
class Life:
    """What is known about the end of a token at some time."""

    removed_ms: float
    """When its removal was acknowledged, by the time of the history."""
    earliest_ms: float
    """Before this time of a broker's clock it has not ended."""
    latest_ms: float
    """From this time of a broker's clock on it has ended."""
    may_be_removed: bool


@dataclass(slots=True)
class _Token:
    changes: list[TokenChange] = field(default_factory=list)
    logins: list[TokenLogin] = field(default_factory=list)


def life_of(changes: Iterable[TokenChange], login: TokenLogin) -> Life:
    """Returns what is known about a token at the time of a login. Brokers may have learned of
    changes that were not answered yet, or not."""
    removed_ms, earliest_ms, latest_ms, max_ms = inf, inf, inf, inf
    is_unknown = may_be_removed = False
    for change in sorted(changes, key=lambda each: each.begun_ms):
        if change.begun_ms > login.ended_ms or change.status == FAIL:
            continue
        removes = change.expires_ms == REMOVED_MS
        if change.action == CREATED:
            max_ms = change.max_ms
        if removes:
            may_be_removed = True
            if change.status == OK:
                removed_ms = min(removed_ms, change.ended_ms)
        elif change.status == INFO or is_unknown:
            is_unknown = True
            earliest_ms, latest_ms = -inf, max_ms
        else:
            is_answered = change.ended_ms <= login.begun_ms
            earliest_ms = min(earliest_ms, change.expires_ms)
            latest_ms = change.expires_ms if is_answered else max(latest_ms, change.expires_ms)
    return Life(removed_ms, earliest_ms, latest_ms, may_be_removed)


def check_tokens(entries: Iterable[Entry]) -> Iterator[Violation]:
    tokens: dict[str, _Token] = {}
    for entry in entries:
        if isinstance(entry, TokenChange):
            tokens.setdefault(entry.token_id, _Token()).changes.append(entry)
        elif isinstance(entry, TokenLogin):
            tokens.setdefault(entry.token_id, _Token()).logins.append(entry)
    for token in tokens.values():
        accepted: dict[int, float] = {}
        for login in sorted(token.logins, key=lambda each: each.ended_ms):
            life = life_of(token.changes, login)
            if login.status == OK:
                yield from _check_accepted(login, life)
                accepted.setdefault(login.broker, login.ended_ms)
            elif login.status == FAIL and accepted.get(login.broker, inf) <= login.begun_ms:
                yield from _check_refused(login, life)


def _check_accepted(login: TokenLogin, life: Life) -> Iterator[Violation]:
    who = f"{login.process} logged in with it at broker {login.broker}"
    if login.begun_ms >= life.removed_ms:
        text = f"the token was removed at {life.removed_ms:.0f} ms, but {who} at"
        yield Violation("E31", login.token_id, f"{text} {login.begun_ms:.0f} ms")
    elif login.wall_ms >= life.latest_ms:
        text = f"the token had expired at {life.latest_ms:.0f} by that broker's clock, but {who}"
        yield Violation("E31", login.token_id, f"{text} at {login.wall_ms:.0f}")
    if OTHERS_GROUP in login.served:
        text = f"{who} and could use a group that the owner of the token may not use"
        yield Violation("E32", login.token_id, text)


def _check_refused(login: TokenLogin, life: Life) -> Iterator[Violation]:
    shown_ms = max(login.wall_until_ms, login.any_wall_until_ms)
    if not life.may_be_removed and shown_ms < life.earliest_ms:
        text = (
            f"broker {login.broker} had accepted the token, which lasts until "
            f"{life.earliest_ms:.0f} by all clocks, but refused it at {shown_ms:.0f}"
        )
        yield Violation("E33", login.token_id, text)
