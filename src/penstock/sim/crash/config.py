"""Draws the configuration of one crash case before it starts. It is printed when the case fails.

Everything is tiny: segments of a few batches, an index entry for every other one, a file pool that
is always too small. What happens once a day in production happens here in every case.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Protocol

from penstock.records.batch import Codec
from penstock.storage.config import LogConfig
from penstock.storage.sealed_format import PAGE_BYTES_MIN


class CaseDraws(Protocol):
    """The part of `random.Random` that a case uses."""

    def random(self) -> float: ...

    def randrange(self, start: int, stop: int, /) -> int: ...

    def getrandbits(self, count: int, /) -> int: ...


def pick(draws: CaseDraws, options: tuple[int, ...]) -> int:
    return options[draws.randrange(0, len(options))]


WEIGHTS: Final[dict[str, int]] = {
    "append": 30,
    "append_replica": 6,
    "flush": 9,
    "flush_split": 6,
    "note": 5,
    "roll": 3,
    "read": 6,
    "time": 3,
    "truncate": 4,
    "delete": 4,
    "reopen": 4,
    "crash": 5,
    "fill": 3,
    "rot": 4,
    "compact": 15,
    "epoch": 1,
}
"""The relative frequency of each operation, before a case turns some of them off."""


@dataclass(frozen=True, slots=True)
class CaseConfig:
    operations: int
    segment_bytes: int
    index_interval_bytes: int
    segment_index_bytes: int
    handles_max: int
    reserve_bytes: int
    codecs: tuple[Codec, ...]
    producers: int
    transactions: bool
    compact: bool
    value_bytes_max: int
    gaps: bool
    """Replicas receive batches with gaps between their offsets, as compaction leaves them."""
    crash_chance: float
    """The chance that an operation is interrupted, at a random disk call."""
    power_share: float
    fault_chance: float
    short_write_chance: float
    without: tuple[str, ...]
    """Operations that this case does not have."""
    encryption: str = "off"
    """off, on, or mixed: it may change whenever the log is opened."""
    page_bytes: int = 64 << 10
    """The size of the pages of encrypted files."""

    def log_config(self, key_name: str = "") -> LogConfig:
        return LogConfig(
            encryption=key_name,
            segment_bytes=self.segment_bytes,
            index_interval_bytes=self.index_interval_bytes,
            segment_index_bytes=self.segment_index_bytes,
            compact=self.compact,
            delete_retention_ms=5_000,
        )

    def weights(self) -> dict[str, int]:
        left = {name: weight for name, weight in WEIGHTS.items() if name not in self.without}
        if self.compact:
            left["roll"] = 20  # Small segments, for compaction to join.
        else:
            left.pop("compact", None)
        return left

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def draw_config(draws: CaseDraws) -> CaseConfig:
    """Draws a configuration. A third of the cases have no faults and most no rot, so that plain
    bugs are easy to see."""
    calm = draws.random() < 0.34
    without = [name for name in ("truncate", "delete", "reopen", "fill") if draws.random() < 0.3]
    if calm or draws.random() < 0.5:
        without.append("rot")
    if calm:
        without.append("fill")
    compact = draws.random() < 0.3
    return CaseConfig(
        operations=draws.randrange(20, 61),
        segment_bytes=pick(draws, (300, 600, 1000, 2000, 4000, 4000)),
        index_interval_bytes=pick(draws, (0, 0, 50, 150, 300, 500)),
        segment_index_bytes=pick(draws, (16, 80, 1 << 20, 1 << 20)),
        handles_max=pick(draws, (2, 8, 100, 100)),
        reserve_bytes=pick(draws, (0, 0, 300)),
        codecs=(Codec.NONE,) if draws.random() < 0.6 else tuple(Codec),
        producers=pick(draws, (0, 1, 2, 3)),
        transactions=draws.random() < (0.7 if compact else 0.4),
        compact=compact,
        value_bytes_max=pick(draws, (8, 40, 40) if compact else (8, 40, 120, 700)),
        gaps=draws.random() < 0.15,
        crash_chance=(0.0, 0.04, 0.12)[draws.randrange(0, 3)],
        power_share=(0.2, 0.6, 1.0)[draws.randrange(0, 3)],
        fault_chance=0.0 if calm else (0.0, 0.1, 0.25)[draws.randrange(0, 3)],
        short_write_chance=0.0 if calm else (0.0, 0.1)[draws.randrange(0, 2)],
        without=tuple(without),
        encryption=("off", "off", "on", "mixed")[draws.randrange(0, 4)],
        page_bytes=pick(draws, (PAGE_BYTES_MIN, 500, 64 << 10)),
    )
