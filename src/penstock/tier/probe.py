"""Checks a store before it is used: a store that lets two creates of one name succeed loses data.

Some servers ignore the header for a create, some let several creates win that run at once, and some
ignore ranges. Each of them is refused, with the reason. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from penstock.tier.errors import (
    AlreadyExists,
    NotFound,
    OutcomeUnknown,
    Refused,
    StoreError,
    Throttled,
)
from penstock.tier.requests import (
    BackOff,
    Create,
    Procedure,
    create,
    delete,
    head,
    list_all,
    read,
    read_range,
    together,
)
from penstock.tier.spill import Draw

ROUNDS: Final = 4
CREATES: Final = 16
RACES_PER_ROUND: Final = 3
LISTINGS: Final = 5
"""Listings may be late, but not for ever."""


def probe(draw: Draw, *, rounds: int = ROUNDS, creates: int = CREATES) -> Procedure[None]:
    """Raises `Refused` if the store is not suitable, and other errors if it cannot be reached."""
    prefix = f"probe/{draw(8).hex()}/"
    keys = [f"{prefix}{number}" for number in range(RACES_PER_ROUND * rounds + 1)]
    try:
        yield from _check_create(keys[0])
        yield from _check_reads(prefix, keys[0])
        del keys[1 + (yield from _check_races(keys[1:], rounds, creates)) :]
    except StoreError:
        for key in keys:
            with suppress(StoreError):
                yield from delete(key)
        raise
    for key in keys:
        yield from delete(key)
    yield from _check_deleted(keys[0])


def _check_create(key: str) -> Procedure[None]:
    # What was missing once must be found when it exists: nothing may remember that it was missing.
    if (yield from _is_there(key)):
        raise Refused("the store reports an object that was never created")
    yield from create(key, b"first one")
    try:
        yield from create(key, b"second one")
    except AlreadyExists:
        pass
    else:
        raise Refused(
            "the store ignores create-if-absent: a second create of one name succeeded. Two "
            "leaders could overwrite each other's manifests. Use another store, or a newer version"
        )
    if not (yield from _is_there(key)):
        raise Refused(
            "the store does not show an object that was just created: a cache still says that "
            "it is missing. Leaders could miss a boundary. Use no cache in front of the store; on "
            "NFS, mount with lookupcache=positive"
        )
    if (yield from read(key)) != b"first one":
        raise Refused("the store reported that a create failed, but it overwrote the object")


def _check_reads(prefix: str, key: str) -> Procedure[None]:
    found = yield from read_range(key, 2, 3)
    if found != b"rst":
        raise Refused(f"the store ignores ranges: it returned {len(found)} bytes instead of 3")
    info = yield from head(key)
    if info.size != len(b"first one"):
        raise Refused(f"the store reports {info.size} bytes for an object of 9")
    listed: list[str] = []
    for attempt in range(LISTINGS):
        if attempt:
            yield BackOff(attempt)
        listed = [each.key for each in (yield from list_all(prefix))]
        if listed == [key]:
            return
    raise Refused(
        f"a listing shows {len(listed)} objects instead of one: the collector would not find "
        "what it must delete"
    )


def _is_there(key: str) -> Procedure[bool]:
    try:
        yield from head(key)
    except NotFound:
        return False
    return True


def _check_races(keys: Sequence[str], rounds: int, creates: int) -> Procedure[int]:
    """Returns how many races there were. One in which nobody is known to have won shows nothing
    about the store, and is repeated."""
    won = 0
    for number, key in enumerate(keys, 1):
        won += yield from _check_race(key, creates)
        if won == rounds:
            return number
    raise Throttled(
        f"the store reported a winner in only {won} of {len(keys)} races of {creates} concurrent "
        "creates; try again later"
    )


def _check_race(key: str, creates: int) -> Procedure[bool]:
    """Returns whether a create has won."""
    bodies = [b"%d" % number for number in range(creates)]
    outcomes = yield from together([Create(key, [body]) for body in bodies])
    for outcome in outcomes:
        if isinstance(outcome, StoreError) and not isinstance(
            outcome, AlreadyExists | OutcomeUnknown | Throttled
        ):
            raise outcome
    winners = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is None]
    if len(winners) > 1:
        raise Refused(
            f"{len(winners)} of {creates} concurrent creates of one name succeeded: the store "
            "does not create atomically. Use another store"
        )
    if not winners:
        return False
    found = yield from read(key)
    if found != winners[0]:
        raise Refused(
            "of several concurrent creates, the store reported success for one but stored the data "
            "of another. Use another store"
        )
    return True


def _check_deleted(key: str) -> Procedure[None]:
    try:
        yield from read(key)
    except NotFound:
        return
    raise Refused("the store still returns an object that was deleted")
