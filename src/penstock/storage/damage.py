"""Damage: bytes that were safe on disk and are bad now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Damage:
    """A quarantined range. It is kept as evidence, never served, and never cut off as a torn
    tail."""

    segment_base: int
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    reason: str
