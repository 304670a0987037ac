"""Assignors: they divide a group's partitions among its members. Pure.

`RANGE` and `ROUNDROBIN` produce the same assignments as Java's. `STICKY` and `COOPERATIVE_STICKY`
are as balanced as Java's and move no more partitions.
"""

from __future__ import annotations

from typing import Final

from penstock.client.errors import OptionError
from penstock.client.membership.assignors.base import Assignment, Assignor, Memory, Peer
from penstock.client.membership.assignors.cooperative import CooperativeStickyAssignor
from penstock.client.membership.assignors.ranges import RangeAssignor
from penstock.client.membership.assignors.roundrobin import RoundRobinAssignor
from penstock.client.membership.assignors.sticky import StickyAssignor

RANGE: Final = RangeAssignor()
ROUNDROBIN: Final = RoundRobinAssignor()
STICKY: Final = StickyAssignor()
COOPERATIVE_STICKY: Final = CooperativeStickyAssignor()

DEFAULT: Final[tuple[Assignor, ...]] = (RANGE, COOPERATIVE_STICKY)
"""Java's default: members can be switched to cooperative rebalances one by one."""

_KNOWN: Final[dict[str, Assignor]] = {
    assignor.name: assignor for assignor in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY)
}

__all__ = [
    "COOPERATIVE_STICKY",
    "DEFAULT",
    "RANGE",
    "ROUNDROBIN",
    "STICKY",
    "Assignment",
    "Assignor",
    "Memory",
    "Peer",
    "assignor_named",
]


def assignor_named(name: str) -> Assignor:
    """Returns the assignor with this name. Raises `OptionError` for an unknown name."""
    try:
        return _KNOWN[name]
    except KeyError:
        raise OptionError(
            f"partition_assignment_strategy: unknown assignor {name!r}; use one of "
            f"{', '.join(map(repr, _KNOWN))}, or your own object with an assign() method"
        ) from None
