"""A decision: what to change in the metadata store, and on what condition.

Every decision is a pure function of the image and its arguments, clock and randomness included.
It names for each key the revision it was read at; the store commits all of it or nothing. So a
decision taken on an old image, or by a controller whose term is over, has no effect and is taken
again by whoever may. A request that cannot be met raises `KafkaError` and nothing is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from penstock.metadata.keys import CONTROLLER_KEY
from penstock.metadata.model import Controller

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Change:
    """Write a key, or delete it when `value` is None, if it was last changed at that revision.

    A revision of 0 means the key must not exist. With `leased` the key goes under the lease of the
    broker that commits, and away with it.
    """

    key: str
    value: bytes | None
    expected_revision: int
    leased: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """A key the decision rests on but does not change."""

    key: str
    expected_revision: int


@dataclass(frozen=True, slots=True)
class Decision(Generic[R_co]):
    """`result` holds once the changes are committed, or at once when there are none."""

    changes: tuple[Change, ...]
    result: R_co
    guards: tuple[Guard, ...] = ()


def guarded(decision: Decision[R], term: Controller) -> Decision[R]:
    """The same decision, void unless this controller's term goes on: for all it decides."""
    guard = Guard(CONTROLLER_KEY, term.revision)
    return replace(decision, guards=(*decision.guards, guard))
