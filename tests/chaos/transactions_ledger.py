"""Compares a source that was copied in transactions with what readers got of the copy.

Numbers increase in every partition of the source, and partition i is copied to partition i. So a
reader of committed records must get the copy of a partition exactly like the partition itself:
nothing missing, nothing twice, nothing unknown, in the same order, at increasing offsets. Gaps
between offsets are markers and aborted records. All readers, those during the copy and the one
after it, must have got the same numbers at the same offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SHOWN = 5
KINDS = ("lost", "duplicated", "strange", "reordered", "other")

Sight = list[tuple[int, int]]
"""(offset, number) pairs of one partition, in the order in which a reader got them."""


@dataclass
class Findings:
    """How many errors of each kind, and a few examples of each."""

    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def add(self, kind: str, where: str, what: Sequence[object]) -> None:
        if what:
            self.counts[kind] += len(what)
            self.complaints.append(f"{where}: {len(what)} {kind}: {list(what[:SHOWN])}")


def judge(source: Sequence[Sequence[int]], readers: Mapping[str, Sequence[Sight]]) -> Findings:
    """Returns all errors of each reader, and all differences between readers."""
    found = Findings()
    for name, sights in readers.items():
        for index, (wanted, seen) in enumerate(zip(source, sights, strict=True)):
            _judge_one(found, f"{name}, partition {index}", wanted, seen)
    for (name, ones), (other, twos) in pairwise(readers.items()):
        for index, (one, two) in enumerate(zip(ones, twos, strict=True)):
            if one != two:
                apart = sorted(set(one) ^ set(two)) or [
                    pair
                    for pair, at_same_place in zip(one, two, strict=True)
                    if pair != at_same_place
                ]
                found.add("other", f"{name} and {other} differ in partition {index}", apart)
    return found


def _judge_one(found: Findings, where: str, wanted: Sequence[int], seen: Sight) -> None:
    numbers = [number for _, number in seen]
    times = Counter(numbers)
    found.add("lost", where, [number for number in wanted if number not in times])
    found.add("duplicated", where, sorted(n for n, count in times.items() if count > 1))
    found.add("strange", where, sorted(times.keys() - set(wanted)))
    found.add("reordered", where, [two for one, two in pairwise(numbers) if two < one])
    found.add(
        "other",
        f"{where}, offsets that do not go up",
        [two for (one, _), (two, _) in pairwise(seen) if two <= one],
    )
