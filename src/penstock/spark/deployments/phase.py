"""The phases of a driver, as its supervisor sees them."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from penstock.spark.deployments.model import State


class Phase(Enum):
    IDLE = auto()
    PREPARING = auto()
    STARTING = auto()
    READY = auto()
    ROUND = auto()
    STOPPING = auto()
    KILLING = auto()


_STATES: Final[dict[Phase, State]] = {
    Phase.PREPARING: "PREPARING",
    Phase.STARTING: "STARTING",
    Phase.ROUND: "RUNNING",
    Phase.STOPPING: "STOPPING",
    Phase.KILLING: "STOPPING",
}

WITH_DRIVER: Final = frozenset(
    {Phase.STARTING, Phase.READY, Phase.ROUND, Phase.STOPPING, Phase.KILLING}
)
"""The phases in which there is a process, or something of it may still run."""


def state_of(phase: Phase, *, continuous: bool) -> State | None:
    """Returns the state that is reported in a phase; None if the phase does not say it."""
    if phase is Phase.READY:
        return "RUNNING" if continuous else "WAITING FOR ITS TIME"
    return _STATES.get(phase)
