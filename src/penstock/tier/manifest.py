"""What a manifest says, and what it means. Pure.

A manifest has a section for each partition of its chain. A section names the objects that hold the
partition's records, in the order of offsets and without gaps: entries, and references to
sub-manifests, which have older entries. It also names what earlier manifests had and it has not,
so that the collector knows from the newest manifest alone which objects are still needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from penstock.tier.errors import CorruptObject
from penstock.tier.keys import Claim, TopicIdPartition
from penstock.tier.segment_object import EncodedObject


class Entry(NamedTuple):
    """Names a segment object."""

    key: str
    base_offset: int
    end_offset: int
    """Readers stop here. The object may go on, if it was truncated."""
    size: int
    data_size: int
    """Of the batches. Footer and trailer are the rest."""
    max_timestamp: int
    footer_crc: int

    @classmethod
    def of(cls, key: str, encoded: EncodedObject) -> Entry:
        footer = encoded.footer
        return cls(
            key,
            footer.base_offset,
            footer.end_offset,
            encoded.size,
            footer.data_size,
            footer.max_timestamp,
            encoded.footer_crc,
        )


class SubManifest(NamedTuple):
    """Names a sub-manifest."""

    key: str
    base_offset: int
    end_offset: int
    size: int
    max_timestamp: int
    entry_count: int
    crc: int
    """CRC32C of all its bytes."""
    objects_size: int
    """Bytes of all segment objects that it names."""


Item: TypeAlias = Entry | SubManifest


class DroppedKind(Enum):
    OBJECT = "o"
    """One object."""
    SUB_MANIFEST = "s"
    """A sub-manifest, and every object that it names."""
    LIST = "l"
    """A list of dropped keys, and everything that it names."""


class Dropped(NamedTuple):
    """What the manifest before `seq` named, and that one does not."""

    key: str
    seq: int
    kind: DroppedKind = DroppedKind.OBJECT


@dataclass(frozen=True, slots=True)
class Section:
    """One partition."""

    owner: TopicIdPartition
    claim: Claim
    start_offset: int
    """Readers see nothing below. The first item may begin lower."""
    end_offset: int
    items: tuple[Item, ...] = ()
    dropped: tuple[Dropped, ...] = ()

    def check(self) -> None:
        """Raises `CorruptObject` if the items leave a gap, overlap, or do not fit the offsets."""
        for before, after in pairwise(self.items):
            if before.end_offset != after.base_offset:
                raise CorruptObject(f"{self.owner}: {after} does not follow {before}")
        for item in self.items:
            if not 0 <= item.base_offset < item.end_offset:
                raise CorruptObject(f"{self.owner}: {item} covers no offsets")
        if not 0 <= self.start_offset <= self.end_offset:
            raise CorruptObject(
                f"{self.owner}: the partition ends at {self.end_offset}, before its start"
            )
        if self.items:
            first, last = self.items[0], self.items[-1]
            if not first.base_offset <= self.start_offset < first.end_offset:
                raise CorruptObject(
                    f"{self.owner}: the partition starts at {self.start_offset}, outside its "
                    f"first item {first}"
                )
            if last.end_offset != self.end_offset:
                raise CorruptObject(
                    f"{self.owner}: the partition ends at {self.end_offset}, but its last "
                    f"item does not: {last}"
                )
        elif self.start_offset != self.end_offset:
            raise CorruptObject(
                f"{self.owner}: the partition has no objects for {self.start_offset} to "
                f"{self.end_offset}"
            )


@dataclass(frozen=True, slots=True)
class Manifest:
    chain: str
    seq: int
    id: str
    """Drawn at random for each attempt to create the manifest."""
    parent: str
    """The id of the manifest before; empty if there is none."""
    written_ms: int
    sections: Mapping[TopicIdPartition, Section] = field(default_factory=dict)

    def check(self) -> None:
        for section in self.sections.values():
            section.check()


def empty_manifest(chain: str) -> Manifest:
    """Returns what precedes the first manifest of a chain."""
    return Manifest(chain, 0, "", "", 0)


def needed_sub_manifests(items: Sequence[Item], start: int, end: int) -> list[SubManifest]:
    """Returns the sub-manifests that have entries on both sides of a bound, or inside."""
    return [
        item
        for item in items
        if isinstance(item, SubManifest) and item.base_offset < end and start < item.end_offset
    ]
