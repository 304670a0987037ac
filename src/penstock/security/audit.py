"""The audit record: who did what, from where, and which rule allowed or denied it.

An `AuditEvent` is one line of JSON, in the audit log and in the topic `__audit`. It is made by one
of the functions here, one per kind of event. None of them takes a password, a token, a key or the
value of a setting, so an event cannot contain one.

Much of an event is text that a client has chosen. It is shortened, and JSON escapes line breaks and
everything that is not ASCII, so a client cannot forge a line.

`audit_throttle` combines repeated refusals into one event with a count. `AuditQuery` selects events
for `penstock audit`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

TEXT_CHARS_MAX: Final = 512
"""The length of each text in an event. A longer one is shortened and ends with `...`."""
NAMES_MAX: Final = 20
"""How many names of settings one event lists."""
_VERSION: Final = 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


class Outcome(StrEnum):
    ALLOWED = "allowed"
    DENIED = "denied"
    """A rule, a wrong password or a limit does not allow it."""
    FAILED = "failed"
    """It was allowed but did not succeed."""


class Action(StrEnum):
    """What was done. The part before the dot is the group: a query for `topic` finds all of it.

    Checks of rights are `access` and the operation of the ACL, such as `access.write`.
    """

    LOGIN = "login"
    REAUTHENTICATION = "login.again"
    CONNECTION_REFUSED = "connection.refused"
    TOPIC_CREATE = "topic.create"
    TOPIC_DELETE = "topic.delete"
    TOPIC_ALTER = "topic.alter"
    RECORDS_DELETE = "topic.delete-records"
    GROUP_DELETE = "group.delete"
    CONFIG_ALTER = "config.alter"
    ACL_CREATE = "acl.create"
    ACL_DELETE = "acl.delete"
    ROLE_GRANT = "role.grant"
    ROLE_REVOKE = "role.revoke"
    ROLE_ALTER = "role.alter"
    USER_ALTER = "user.alter"
    USER_DELETE = "user.delete"
    TOKEN_CREATE = "token.create"  # noqa: S105 - a name
    TOKEN_RENEW = "token.renew"  # noqa: S105 - a name
    TOKEN_EXPIRE = "token.expire"  # noqa: S105 - a name
    QUOTA_ALTER = "quota.alter"
    KEY_ALTER = "key.alter"
    CLUSTER_ALTER = "cluster.alter"
    EVENTS_DROPPED = "audit.dropped"


class LoginFailure(StrEnum):
    """Why a login was denied. It is in the audit record only: a client is told nothing of it."""

    CREDENTIALS = "unknown user or wrong password"
    BEARER = "token not accepted"
    DELEGATION_TOKEN = "delegation token not accepted"  # noqa: S105 - a text
    EXPIRED = "token or session expired"
    MECHANISM = "mechanism not enabled"
    CERTIFICATE = "certificate not accepted"
    PRINCIPAL = "re-authentication as another user"
    PROTOCOL = "message not valid"
    TIMEOUT = "took too long"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from."""

    user: str | None
    """The user that the connection is authenticated as, without `User:`."""
    address: str
    listener: str
    request_id: str | None = None
    """The API and correlation id, such as `CreateTopics 17`."""
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class AuditEvent:
    time_ms: int
    """Milliseconds since 1970."""
    action: str
    outcome: Outcome
    user: str | None
    address: str
    listener: str
    resource: str | None = None
    """Type and name, such as `topic:orders`."""
    rule: str | None = None
    """The rule that decided, as the authorizer names it, or why a login was denied."""
    detail: str | None = None
    """What changed."""
    request_id: str | None = None
    client_id: str | None = None
    count: int = 1
    """How many events this one stands for. The others differ in time, request and client id."""

    def to_json(self) -> str:
        """Returns one line without a line break. Fields without a value are left out."""
        texts = {name: getattr(self, name) for name in _TEXT_FIELDS}
        fields = {"v": _VERSION, "time": format_time(self.time_ms), **texts, "count": self.count}
        present = {name: value for name, value in fields.items() if value is not None}
        return json.dumps(present, separators=(",", ":"))

    @staticmethod
    def from_json(line: str | bytes) -> AuditEvent:
        """Reads an event. Unknown fields are ignored. Raises `ValueError` if it is not valid."""
        try:
            fields = json.loads(line)
        except RecursionError:
            raise ValueError("an audit event is nested too deeply") from None
        if not isinstance(fields, dict) or fields.get("v") != _VERSION:
            raise ValueError(f"an audit event is not an object of version {_VERSION}")
        count = fields.get("count", 1)
        if type(count) is not int or count < 1:
            raise ValueError("count is not a whole number above 0 in an audit event")
        texts: dict[str, Any] = {name: _text_field(fields, name) for name in _TEXT_FIELDS}
        if None in (texts["action"], texts["address"], texts["listener"]):
            raise ValueError("action, address or listener is missing in an audit event")
        texts["outcome"] = Outcome(texts["outcome"])
        return AuditEvent(time_ms=_iso_ms(_text_field(fields, "time") or ""), count=count, **texts)


_TEXT_FIELDS: Final = (
    "action",
    "outcome",
    "user",
    "address",
    "listener",
    "resource",
    "rule",
    "detail",
    "request_id",
    "client_id",
)


def _text_field(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is not a string in an audit event")
    return value


def _event(
    origin: Origin,
    now_ms: int,
    action: str,
    outcome: Outcome,
    resource: str | None = None,
    rule: str | None = None,
    detail: str | None = None,
) -> AuditEvent:
    return AuditEvent(
        time_ms=min(max(now_ms, 0), _TIME_MS_MAX),
        action=action,
        outcome=outcome,
        user=_short(origin.user),
        address=_short(origin.address) or "",
        listener=_short(origin.listener) or "",
        resource=_short(resource),
        rule=_short(rule),
        detail=_short(detail),
        request_id=_short(origin.request_id),
        client_id=_short(origin.client_id),
    )


def _short(text: str | None) -> str | None:
    if text is None or len(text) <= TEXT_CHARS_MAX:
        return text
    return text[: TEXT_CHARS_MAX - 3] + "..."


def login(
    origin: Origin, now_ms: int, mechanism: str, again: bool = False, token_id: str | None = None
) -> AuditEvent:
    """A user has authenticated. `again`: the connection was authenticated before."""
    action = Action.REAUTHENTICATION if again else Action.LOGIN
    return _event(origin, now_ms, action, Outcome.ALLOWED, detail=_how(mechanism, token_id))


def login_denied(
    origin: Origin,
    now_ms: int,
    mechanism: str,
    why: LoginFailure,
    again: bool = False,
    token_id: str | None = None,
) -> AuditEvent:
    """An authentication failed. The user of `origin` is the name that the client claimed.

    It is None if the client sent no name, and for tokens: a name in a token that was not accepted
    means nothing.
    """
    action = Action.REAUTHENTICATION if again else Action.LOGIN
    detail = _how(mechanism, token_id)
    return _event(origin, now_ms, action, Outcome.DENIED, rule=str(why), detail=detail)


def _how(mechanism: str, token_id: str | None) -> str:
    token = "" if token_id is None else f", delegation token {token_id}"
    return f"mechanism {mechanism}{token}"


def access(
    origin: Origin, now_ms: int, allowed: bool, operation: str, resource: str, rule: str
) -> AuditEvent:
    """The authorizer has decided. `operation` is the one of the ACL, such as `WRITE`."""
    name = operation.lower() if operation.isascii() and operation.isidentifier() else "unknown"
    outcome = Outcome.ALLOWED if allowed else Outcome.DENIED
    return _event(origin, now_ms, f"access.{name}", outcome, resource, rule)


def connection_refused(address: str, listener: str, now_ms: int, limit: str) -> AuditEvent:
    """A connection was closed because of a limit, such as `max.connections.per.ip`."""
    origin = Origin(None, address, listener)
    return _event(origin, now_ms, Action.CONNECTION_REFUSED, Outcome.DENIED, rule=limit)


def topic_change(
    origin: Origin, now_ms: int, action: Action, topic: str, outcome: Outcome, detail: str
) -> AuditEvent:
    """A topic was created, deleted or altered. `detail`: numbers, such as `6 partitions`."""
    return _event(origin, now_ms, action, outcome, f"topic:{topic}", detail=detail)


def config_change(
    origin: Origin, now_ms: int, resource: str, settings: Iterable[str], outcome: Outcome
) -> AuditEvent:
    """Settings were changed. The event has their names and never their values."""
    return _event(origin, now_ms, Action.CONFIG_ALTER, outcome, resource, detail=_listed(settings))


def acl_change(
    origin: Origin, now_ms: int, created: bool, acl: str, resource: str, outcome: Outcome
) -> AuditEvent:
    """An ACL was created or deleted. `acl` is its text."""
    action = Action.ACL_CREATE if created else Action.ACL_DELETE
    return _event(origin, now_ms, action, outcome, resource, detail=acl)


def role_change(
    origin: Origin, now_ms: int, action: Action, role: str, grantee: str | None, outcome: Outcome
) -> AuditEvent:
    """A role was granted, revoked or altered."""
    detail = None if grantee is None else f"user {grantee}"
    return _event(origin, now_ms, action, outcome, f"role:{role}", detail=detail)


def user_change(
    origin: Origin, now_ms: int, name: str, mechanism: str, deleted: bool, outcome: Outcome
) -> AuditEvent:
    """A user's password for a mechanism was set or deleted."""
    action = Action.USER_DELETE if deleted else Action.USER_ALTER
    return _event(origin, now_ms, action, outcome, f"user:{name}", detail=f"mechanism {mechanism}")


def token_change(
    origin: Origin,
    now_ms: int,
    action: Action,
    token_id: str,
    owner: str,
    expires_ms: int | None,
) -> AuditEvent:
    """A delegation token was created, renewed or expired. `expires_ms`: None if it was removed.

    A token is named by its id, which is not secret.
    """
    until = "removed" if expires_ms is None else f"expires {_time_text(expires_ms)}"
    detail = f"owner {owner}, {until}"
    return _event(origin, now_ms, action, Outcome.ALLOWED, f"token:{token_id}", detail=detail)


def token_failure(
    origin: Origin, now_ms: int, action: Action, token_id: str, rule: str, outcome: Outcome
) -> AuditEvent:
    """A delegation token was not created, renewed or expired."""
    return _event(origin, now_ms, action, outcome, f"token:{token_id}", rule)


def _time_text(time_ms: int) -> str:
    return format_time(min(max(time_ms, 0), _TIME_MS_MAX))


def quota_change(
    origin: Origin,
    now_ms: int,
    entity: str,
    limits: Mapping[str, float | None],
    outcome: Outcome,
) -> AuditEvent:
    """Quotas of an entity were changed; None for those that were removed."""
    texts = (
        f"{key} removed" if limit is None else f"{key}={limit:.15g}"
        for key, limit in limits.items()
    )
    return _event(
        origin, now_ms, Action.QUOTA_ALTER, outcome, f"quota:{entity}", detail=_listed(texts)
    )


def cluster_change(
    origin: Origin, now_ms: int, action: Action, resource: str, detail: str, outcome: Outcome
) -> AuditEvent:
    """Another change by an administrator: a group, an encryption key's name, a reassignment."""
    return _event(origin, now_ms, action, outcome, resource, detail=detail)


def events_dropped(now_ms: int, count: int, outlet: str) -> AuditEvent:
    """Events could not be written to an outlet, such as the audit log, and are lost there."""
    detail = f"{count} events are missing in {outlet}: they came faster than they could be written"
    origin = Origin(None, "", "")
    return _event(origin, now_ms, Action.EVENTS_DROPPED, Outcome.FAILED, detail=detail)


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    listed = ", ".join(known[:NAMES_MAX])
    more = len(known) - NAMES_MAX
    return f"{listed} and {more} more" if more > 0 else listed


_UNITS_MS: Final = (7 * 86_400_000, 86_400_000, 3_600_000, 60_000, 1000)
_DURATION: Final = re.compile(
    r"(?:([0-9]{1,9})w)?(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?"
)


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which events to show. None does not restrict."""

    since_ms: int | None = None
    until_ms: int | None = None
    """Not included."""
    user: str | None = None
    action: str | None = None
    """An action such as `topic.create`, or a group such as `topic`."""
    outcome: Outcome | None = None

    @staticmethod
    def parse(
        now_ms: int,
        since: str | None = None,
        until: str | None = None,
        user: str | None = None,
        action: str | None = None,
        outcome: str | None = None,
    ) -> AuditQuery:
        """Reads the options of `penstock audit`. Raises `ValueError` with what to write instead."""
        since_ms = None if since is None else parse_time(since, now_ms)
        until_ms = None if until is None else parse_time(until, now_ms)
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            raise ValueError(f"{since} is not before {until}: swap since and until")
        if outcome is not None and outcome not in list(Outcome):
            raise ValueError(f"the outcome {outcome} is unknown: use {', '.join(Outcome)}")
        name = None if user is None else user.removeprefix("User:")
        return AuditQuery(
            since_ms, until_ms, name, action, None if outcome is None else Outcome(outcome)
        )

    def matches(self, event: AuditEvent) -> bool:
        return (
            (self.since_ms is None or event.time_ms >= self.since_ms)
            and (self.until_ms is None or event.time_ms < self.until_ms)
            and (self.user is None or event.user == self.user)
            and (self.outcome is None or event.outcome == self.outcome)
            and (
                self.action is None
                or event.action == self.action
                or event.action.startswith(f"{self.action}.")
            )
        )


def parse_time(text: str, now_ms: int) -> int:
    """Returns the milliseconds since 1970 of a time such as `2026-11-17T12:30`, or of `1h` ago.

    A duration has weeks, days, hours, minutes and seconds: `1h`, `30m`, `1d12h`. A time without a
    time zone is UTC.
    """
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return _iso_ms(text)
    ago_ms = sum(int(n or 0) * unit for n, unit in zip(found.groups(), _UNITS_MS, strict=True))
    return max(0, now_ms - ago_ms)


def format_time(time_ms: int) -> str:
    """Returns the time in UTC, such as `2026-11-17T12:30:00.000Z`."""
    time = _EPOCH + timedelta(milliseconds=time_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _iso_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return (time - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:40]!a} is not a time: write 1h or 30m for a time ago, or "
            "2026-11-17T12:30 for a time in UTC"
        ) from None
