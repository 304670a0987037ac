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
_STEPS_PER_CHAR: Final = 100
"""How much work one expression may be, for each character of the names of all topics.

A step takes about half a microsecond. `orders-.*` needs less than one step for each character of
names that begin in another way, `.*` 5, `.*(orders|payments|refunds|shipments|users).*v[0-9]+` 15,
and 20 words instead of these 5 need 45. So with 10,000 topics whose names have 67 characters, these
five words take 5 seconds, and the limit is half a minute. It is spent on a thread for matching. An
expression could otherwise need 2,000 steps for each character (`PROGRAM_SIZE_MAX`).
"""


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
    work = Work(max(_STEPS_MIN, _STEPS_PER_CHAR * sum(map(len, names))))
    try:
        matcher = Matcher(regex)
        return frozenset(name for name in names if matcher.full_match(name, work) is not None)
    except (PatternRefused, TooMuchWork):
        return None
