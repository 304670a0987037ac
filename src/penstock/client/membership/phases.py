"""The phases of a group member. `machine` and `consumer_machine` say what each one means. Pure."""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    IDLE = auto()
    DUE = auto()
    JOINING = auto()
    ASSIGNING = auto()
    SYNCING = auto()
    ADOPTING = auto()
    STABLE = auto()
    LEAVING = auto()
    FENCED = auto()
