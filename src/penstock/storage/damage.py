"""Bytes that had been safe and are bad now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Damage:
    """A quarantined range: it is kept as evidence, never served, never counted as a torn tail."""

    segment_base: int
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    reason: str
