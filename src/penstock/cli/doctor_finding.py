"""What a check of `penstock doctor` has to say. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing has to be done."""
    WARNING = "warning"
    """It works, but worse than it could, or not for long."""
    PROBLEM = "problem"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    state: State
    found: str
    advice: str = ""
    """What to do; empty where all is well."""
