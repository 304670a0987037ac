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
        raise Refused("the store says that an object exists which nobody has created")
    yield from create(key, b"first one")
    try:
        yield from create(key, b"second one")
    except AlreadyExists:
        pass
    else:
        raise Refused(
            "the store ignores create-if-absent: a second create of one name has succeeded. Two "
            "leaders could overwrite each other's manifests. Use another store, or a newer version"
        )
    if not (yield from _is_there(key)):
        raise Refused(
            "the store does not show an object that was just created: something remembers that it "
            "was missing. Leaders could miss a boundary. Use no cache in front of the store, and "
            "on NFS lookupcache=positive"
        )
    if (yield from read(key)) != b"first one":
        raise Refused("the store says that a create has failed, and has overwritten the object")


def _check_reads(prefix: str, key: str) -> Procedure[None]:
    found = yield from read_range(key, 2, 3)
    if found != b"rst":
        raise Refused(f"the store ignores ranges: instead of 3 bytes it returned {len(found)}")
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
        f"a listing shows {len(listed)} objects where there is one: the collector would never "
        "find what it has to delete"
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
        f"only {won} of {len(keys)} times the store has told the winner of {creates} creates at "
        "once; try again later"
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
            f"{len(winners)} of {creates} creates of one name have succeeded at once: the store "
            "does not create atomically. Use another store"
        )
    if not winners:
        return False
    found = yield from read(key)
    if found != winners[0]:
        raise Refused("of several creates at once one has succeeded, and another one is stored")
    return True


def _check_deleted(key: str) -> Procedure[None]:
    try:
        yield from read(key)
    except NotFound:
        return
    raise Refused("the store still has an object that was deleted")
