"""Regular expressions that members subscribe with: which topics match them.

Kafka uses RE2, which takes linear time. This uses the matcher that checks principals
(`security.linear_matcher`). It takes linear time too, is part of Penstock and runs in the
simulator, so a broker needs no compiled library for it. It supports less than RE2: no flags such as
`(?i)`, no `\\b`. Such an expression is refused with an error that says what is supported; it is
never matched in another way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from penstock.security.linear_matcher import Matcher, PatternRefused, TooMuchWork, Work
from penstock.wire.errors import ErrorCode, KafkaError

_STEPS_MIN: Final = 200_000
_STEPS_PER_TOPIC: Final = 500
"""How much work one expression may be, for each topic of the cluster: `orders-.*` is about 50."""


def require_valid(regex: str) -> None:
    """Raises INVALID_REGULAR_EXPRESSION unless the expression can be used."""
    try:
        Matcher(regex)
    except PatternRefused as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error


def resolve(regexes: Iterable[str], names: Collection[str]) -> Mapping[str, frozenset[str] | None]:
    """Returns the topics that match each expression as a whole; None if one cannot be used, or
    takes too long to match."""
    return {regex: _matches(regex, names) for regex in regexes}


def _matches(regex: str, names: Collection[str]) -> frozenset[str] | None:
    work = Work(max(_STEPS_MIN, _STEPS_PER_TOPIC * len(names)))
    try:
        matcher = Matcher(regex)
        return frozenset(name for name in names if matcher.full_match(name, work) is not None)
    except (PatternRefused, TooMuchWork):
        return None
