"""A decision: what to change in the metadata store, and under which conditions.

Every decision is a pure function of the image and its arguments; clock and randomness are arguments
too. It names for each key the revision at which it was read. The store commits the whole decision
or nothing. So a decision that is based on an old image, or made by a controller that has been
replaced, has no effect, and is made again from the current state. A request that cannot be met
raises `KafkaError`, and nothing is committed.
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
    """Writes a key, or deletes it if `value` is None, on condition that its revision is unchanged.

    A revision of 0 means that the key must not exist. With `leased`, the key is attached to the
    lease of the committing broker and is deleted when that lease ends.
    """

    key: str
    value: bytes | None
    expected_revision: int
    leased: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """A key that the decision depends on but does not change."""

    key: str
    expected_revision: int


@dataclass(frozen=True, slots=True)
class Decision(Generic[R_co]):
    """A decision. `result` is valid once the changes are committed, or at once if there are
    none."""

    changes: tuple[Change, ...]
    result: R_co
    guards: tuple[Guard, ...] = ()


def guarded(decision: Decision[R], term: Controller) -> Decision[R]:
    """Returns the same decision, on condition that this controller has not been replaced. For
    everything that a controller decides."""
    guard = Guard(CONTROLLER_KEY, term.revision)
    return replace(decision, guards=(*decision.guards, guard))
