"""Combines repeated audit events into one with a count, so that a flood does not fill the log.

Events that were not allowed are combined, and so are logins and allowed checks of rights: a client
may connect very often, and each request is checked. Other events are always written. No event is
lost: the counts of what is written add up to the number of events.

Each action and outcome has room of its own, so a flood of one kind hides nothing of another. It has
three levels, and a level is used when the one before is full:

1. Events that are the same, but for time, request and client id. For a change that was not allowed,
   what it tried to change counts too.
2. Events of the same user. Without a user, and for denied logins, it is the address, or the /64
   network of an IPv6 address: anyone can claim any name.
3. All events of the action and outcome.

A combined event of the levels 2 and 3 lists the first things that were tried: resources and
changes, names that a login has claimed, or the addresses of successful logins. Successful logins of
different users are never combined: they have no level 3, and are written at once instead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from penstock.security.addresses import network_of
from penstock.security.audit import Action, AuditEvent, Outcome

INTERVAL_MS: Final = 60_000
"""How often the same refusal is written."""
KEYS_MAX: Final = 250
"""How many events of an action and outcome each of the levels 1 and 2 tells apart. About 35 actions
can be refused."""
TRIED_MAX: Final = 10
"""How many things that were tried a combined event lists."""
TRIED_CHARS_MAX: Final = 80
"""The length of each of them."""
SEVERAL: Final = "(several)"
"""Stands for the values of a field in which the combined events differ."""

_LAST_LEVEL: Final = 2
"""Counted from 0. It has one key for each action and outcome."""
_COMBINED_FIELDS: Final = ("user", "address", "listener", "resource", "rule", "detail")


class _Key(NamedTuple):
    action: str
    outcome: Outcome
    level: int
    parts: tuple[str | None, ...] = ()
    """What the events have in common."""

    @property
    def budget(self) -> tuple[str, Outcome, int]:
        return self[:3]


@dataclass(slots=True)
class _Repeats:
    since_ms: int
    last: AuditEvent | None = None
    count: int = 0
    """How many events `last` stands for. None of them was written."""
    differing: set[str] = field(default_factory=set)
    """The fields in which they differ."""
    tried: list[str] = field(default_factory=list)
    has_more: bool = False
    """Whether more was tried."""

    def add(self, event: AuditEvent, level: int) -> None:
        last = self.last
        if last is not None:
            self.differing.update(
                name for name in _COMBINED_FIELDS if getattr(last, name) != getattr(event, name)
            )
        self.last = event
        self.count += event.count
        text = _tried(event) if level > 0 else ""
        if text and text not in self.tried:
            if len(self.tried) < TRIED_MAX:
                self.tried.append(text)
            else:
                self.has_more = True

    def combined(self) -> AuditEvent | None:
        event = self.last
        if event is None or self.count == event.count:
            return event
        texts: dict[str, Any] = dict.fromkeys(self.differing, SEVERAL)
        if len(self.tried) > 1:
            texts["detail"] = "; ".join(self.tried) + (" and others" if self.has_more else "")
        return replace(event, count=self.count, **texts)


class AuditThrottle:
    """Writes the same refusal once per interval, with the number of its repeats."""

    def __init__(self, interval_ms: int = INTERVAL_MS, keys_max: int = KEYS_MAX) -> None:
        self._interval_ms = interval_ms
        self._keys_max = keys_max
        self._repeats: dict[_Key, _Repeats] = {}
        self._counts: Counter[tuple[str, Outcome, int]] = Counter()
        """How many keys each action and outcome has in each level."""

    def __len__(self) -> int:
        return len(self._repeats)

    def offer(self, event: AuditEvent, now_ms: int) -> AuditEvent | None:
        """Returns what to write now. Call `flush` every few seconds for what was held back."""
        if event.outcome is Outcome.ALLOWED and not _is_login(event) and not _is_access(event):
            return event
        for key in _keys(event):
            repeats = self._repeats.get(key)
            if repeats is not None:
                repeats.add(event, key.level)
                if now_ms - repeats.since_ms < self._interval_ms:
                    return None
                return self._take(key, now_ms)
            if key.level == _LAST_LEVEL or self._counts[key.budget] < self._keys_max:
                self._repeats[key] = _Repeats(now_ms)
                self._counts[key.budget] += 1
                break
        return event

    def flush(self, now_ms: int, everything: bool = False) -> list[AuditEvent]:
        """Returns what was held back for the whole interval; with `everything`, all of it."""
        events = []
        for key, repeats in list(self._repeats.items()):
            if not everything and now_ms - repeats.since_ms < self._interval_ms:
                continue
            if event := self._take(key, now_ms):
                events.append(event)
            else:
                del self._repeats[key]
                self._counts[key.budget] -= 1
        return events

    def _take(self, key: _Key, now_ms: int) -> AuditEvent | None:
        """Begins the next interval. Returns the event for the one before, if there was any."""
        before = self._repeats[key]
        self._repeats[key] = _Repeats(now_ms)
        return before.combined()


def _is_login(event: AuditEvent) -> bool:
    return event.action in {Action.LOGIN, Action.REAUTHENTICATION}


def _is_access(event: AuditEvent) -> bool:
    return event.action.startswith("access.") or event.action == Action.CONNECTION_REFUSED


def _keys(event: AuditEvent) -> list[_Key]:
    """Returns the keys of an event, one for each level that it has.

    Client id and request id are in none: a client could make every event a new one.
    """
    action, outcome, user = event.action, event.outcome, event.user
    is_login = _is_login(event)
    # The detail of these says nothing about what was tried.
    detail = None if is_login or _is_access(event) else event.detail
    same = (user, event.address, event.listener, event.resource, event.rule, detail)
    is_known = user is not None and not (is_login and outcome is not Outcome.ALLOWED)
    party = ("user", user) if is_known else ("address", network_of(event.address))
    keys = [_Key(action, outcome, 0, same), _Key(action, outcome, 1, party)]
    if not (is_login and outcome is Outcome.ALLOWED):
        keys.append(_Key(action, outcome, _LAST_LEVEL))
    return keys


def _tried(event: AuditEvent) -> str:
    """Returns what tells an event from others of its user or address.

    It is the name that a login has claimed in vain, the address of one that succeeded, and the
    resource and change of other requests.
    """
    if _is_login(event):
        text = event.address if event.outcome is Outcome.ALLOWED else event.user or ""
    else:
        text = " ".join(part for part in (event.resource, event.detail) if part)
    return text if len(text) <= TRIED_CHARS_MAX else text[: TRIED_CHARS_MAX - 3] + "..."
