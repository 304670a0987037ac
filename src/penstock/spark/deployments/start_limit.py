"""How long Spark may take to start, and whether a version is to blame if it takes longer. Pure.

Spark never starts for some versions, for example because a package waits without end. Spark starts
slowly on a machine on which several drivers start at once. Both look alike. So the first start that
takes too long does not count towards an automatic rollback, and each further start gets twice the
time, up to a limit. A slow machine then starts the version in the end. A version that never starts
is rolled back after a few attempts.
"""

from __future__ import annotations

from typing import Final

from penstock.spark.deployments.outside_trouble import Failure
from penstock.spark.deployments.supervisor_events import Limits

_DOUBLINGS_MAX: Final = 30


class StartLimit:
    """A recipe is what a driver is started with. The count begins again with another one."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._recipe: tuple[object, ...] = ()
        self._late = 0
        """How many starts in a row took too long."""

    def seconds(self, recipe: tuple[object, ...]) -> float:
        """Returns how long Spark may take to start."""
        late = self._late if recipe == self._recipe else 0
        doubled_s = self._limits.start_s * 2.0 ** min(late, _DOUBLINGS_MAX)
        return min(doubled_s, self._limits.start_max_s)

    def exceeded(self, recipe: tuple[object, ...]) -> Failure:
        """Spark has not started in time."""
        error = f"Spark did not start within {self.seconds(recipe):.0f} s"
        self._late = self._late + 1 if recipe == self._recipe else 1
        self._recipe = recipe
        if self._late > 1:
            return Failure(error)
        next_s = self.seconds(recipe)
        return Failure(
            f"{error}: this machine may be slow, so the next start may take {next_s:.0f} s",
            outside=True,
        )

    def started(self) -> None:
        self._late = 0
