"""The phases of a driver, as its supervisor sees them."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Phase(Enum):
    IDLE = auto()
    PREPARING = auto()
    STARTING = auto()
    READY = auto()
    ROUND = auto()
    STOPPING = auto()
    KILLING = auto()


WITH_DRIVER: Final = frozenset(
    {Phase.STARTING, Phase.READY, Phase.ROUND, Phase.STOPPING, Phase.KILLING}
)
"""The phases in which there is a process, or something of it may still run."""
