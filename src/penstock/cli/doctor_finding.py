"""The result of one check of `penstock doctor`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Information; nothing has to be done."""
    WARNING = "warning"
    """It works, but not as well as it could, or not for long."""
    PROBLEM = "problem"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    state: State
    found: str
    advice: str = ""
    """What to do; empty if nothing has to be done."""
