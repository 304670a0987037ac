"""The faults to inject, as a list of rules. Pure.

A rule applies to one API or to all, for a number of requests or until it is cleared. The script
gives a verdict for each request: the sum of all delays that apply, and for every other kind of
fault the oldest rule that applies. Each rule that contributes to a verdict is used once.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, auto
from typing import Final

from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode

_NAMES: Final = {key.api_name: key for key in ApiKey}
_FOLDED: Final = {name.lower(): key for name, key in _NAMES.items()}


class Fault(Enum):
    DELAY = auto()
    FAIL = auto()
    SILENCE = auto()
    CUT = auto()


@dataclass(slots=True)
class Rule:
    fault: Fault
    api: ApiKey | None
    """None: all APIs."""
    times: int | None
    """To how many more requests the rule applies; None: no limit."""
    amount: float = 0
    """Seconds of delay, bytes before a cut, or an error code."""

    def concerns(self, api: int) -> bool:
        return self.api is None or self.api == api


@dataclass(frozen=True, slots=True)
class Verdict:
    delay_s: float = 0.0
    error: ErrorCode | None = None
    silent: bool = False
    cut_bytes: int | None = None


class Script:
    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(self, rule: Rule) -> None:
        if rule.times is not None and rule.times < 1:
            raise ValueError(f"times is {rule.times}: give 1 or more, or None for all requests")
        self._rules.append(rule)

    def clear(self) -> None:
        self._rules.clear()

    def would_fail(self, api: int) -> bool:
        return any(rule.fault is Fault.FAIL and rule.concerns(api) for rule in self._rules)

    def verdict(self, api: int) -> Verdict:
        """Returns what happens to a request of this API that has just arrived."""
        used: dict[Fault, Rule] = {}
        delay_s = 0.0
        for rule in self._rules:
            if not rule.concerns(api) or (rule.fault is not Fault.DELAY and rule.fault in used):
                continue
            used[rule.fault] = rule
            if rule.fault is Fault.DELAY:
                delay_s += rule.amount
            if rule.times is not None:
                rule.times -= 1
        self._rules = [rule for rule in self._rules if rule.times is None or rule.times > 0]
        failure, cut = used.get(Fault.FAIL), used.get(Fault.CUT)
        return Verdict(
            delay_s,
            None if failure is None else ErrorCode(int(failure.amount)),
            Fault.SILENCE in used,
            None if cut is None else int(cut.amount),
        )


def api_of(given: str | int) -> ApiKey:
    """Returns an API by its name in Kafka's spelling (`OffsetCommit`) or its number."""
    if isinstance(given, int):
        return ApiKey(given)
    found = _FOLDED.get(given.lower().replace("_", ""))
    if found is None:
        raise ValueError(f"there is no API {given!r}{_nearest(given, list(_NAMES))}")
    return found


def error_of(given: str | int) -> ErrorCode:
    """Returns an error by Kafka's name (`NOT_LEADER_OR_FOLLOWER`) or its number."""
    if isinstance(given, int):
        return ErrorCode(given)
    names = ErrorCode.__members__
    if given.upper() not in names:
        raise ValueError(f"there is no error {given!r}{_nearest(given.upper(), list(names))}")
    return names[given.upper()]


def _nearest(given: str, known: list[str]) -> str:
    near = get_close_matches(given, known, n=1)
    return f": did you mean {near[0]}?" if near else ""
