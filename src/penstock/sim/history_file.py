"""Reads a history from its JSON lines, as `History.lines` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.sim.history import (
    Attempt,
    Commit,
    Committed,
    CopiesRead,
    DelayedSend,
    Deleted,
    Drain,
    DriverRun,
    Entry,
    GivenUp,
    History,
    Joined,
    Latest,
    LeaseRenewal,
    LettersRead,
    LoginAttempt,
    Malformed,
    Metered,
    PasswordChange,
    Pipelined,
    Poll,
    Probe,
    RightChange,
    Send,
    ShareExchange,
    ShareLoad,
    Stable,
    TokenChange,
    TokenLogin,
    Txn,
)

KINDS: Final[Mapping[str, type[Entry]]] = {
    kind.kind: kind
    for kind in (
        *(Send, Poll, Drain, Txn, Deleted, Latest),
        *(Pipelined, Malformed, Commit, Committed, Stable, Joined, Probe),
        *(RightChange, Attempt, PasswordChange, LoginAttempt, Metered, DriverRun),
        *(LeaseRenewal, TokenChange, TokenLogin, ShareExchange, ShareLoad),
        *(LettersRead, GivenUp, DelayedSend, CopiesRead),
    )
}


def read_history(lines: Iterable[str]) -> History:
    """Reads a history from its JSON lines."""
    return History(_entry(json.loads(line)) for line in lines if line.strip())


def _entry(fields: dict[str, Any]) -> Entry:
    kind = KINDS[fields.pop("kind")]
    if "reads" in fields:
        fields["reads"] = {
            partition_name: _pairs(found) for partition_name, found in fields["reads"].items()
        }
    if "records" in fields:
        fields["records"] = _pairs(fields["records"])
    for name in ("moved", "values", "version"):
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    for name in ("delivered", "acks") if kind is ShareExchange else ():
        if name in fields:
            fields[name] = tuple(map(tuple, fields[name]))
    for name in ("letters", "rows"):
        if name in fields:
            fields[name] = tuple(map(tuple, fields[name]))
    return kind(**fields)


def _pairs(found: Iterable[Iterable[Any]]) -> tuple[tuple[int, str], ...]:
    return tuple((int(offset), str(value)) for offset, value in found)
