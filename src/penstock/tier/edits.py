"""The changes of a section: claim, append, replace, delete below, truncate. Pure.

An edit is applied to the section of the newest manifest. If another writer was faster, it is
applied again to the section of that writer's manifest. So it checks everything each time: above
all that the claim is still the one of its leader.

`needs` returns the sub-manifests that an edit changes. The commit replaces them by their entries
before `apply` runs, so that `apply` meets entries wherever it changes something.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from penstock.tier.errors import EditRefused, Fenced
from penstock.tier.keys import SEGMENTS, Claim, TopicIdPartition, parse_data_key
from penstock.tier.manifest import (
    Dropped,
    DroppedKind,
    Entry,
    Item,
    Section,
    SubManifest,
    needed_sub_manifests,
)


class ClaimPartition(NamedTuple):
    """Begins a leadership. From this manifest on every earlier claim is fenced."""

    owner: TopicIdPartition
    claim: Claim
    start_offset: int = 0
    """Where the partition begins, if the chain does not know it yet."""
    renews: tuple[Claim, ...] = ()
    """For a renewal: all claims that this process has made or tried. The partition must have one of
    them. A former process of the same broker has the same leader epoch, and must not come back."""

    def needs(self, _: Section | None) -> list[SubManifest]:
        return []

    def apply(self, section: Section | None, _: int) -> Section:
        if self.renews and (section is None or section.claim not in self.renews):
            raise Fenced(
                f"{self.owner}: the claim of leader epoch {self.claim.epoch} cannot be renewed: "
                f"{_holder(section)}"
            )
        if section is None:
            return Section(self.owner, self.claim, self.start_offset, self.start_offset)
        if self.claim.epoch < section.claim.epoch:
            raise Fenced(
                f"{self.owner}: leader epoch {self.claim.epoch} is older than "
                f"{section.claim.epoch}, which has claimed the partition"
            )
        return replaced(section, claim=self.claim)


class Append(NamedTuple):
    """Adds objects at the end."""

    owner: TopicIdPartition
    claim: Claim
    entries: tuple[Entry, ...]

    def needs(self, _: Section | None) -> list[SubManifest]:
        return []

    def apply(self, section: Section | None, _: int) -> Section:
        section = _own(section, self.owner, self.claim)
        _check_entries(self.entries, self.claim, self.owner)
        known = {item.key for item in section.items}
        if all(entry.key in known for entry in self.entries):
            return section  # A create whose outcome was unknown has arrived.
        first, last = self.entries[0], self.entries[-1]
        if first.base_offset != section.end_offset:
            raise EditRefused(
                f"{self.owner}: {first.key} begins at {first.base_offset}, but the partition ends "
                f"at {section.end_offset} in the store"
            )
        items = (*section.items, *self.entries)
        return replaced(section, items=items, end_offset=last.end_offset)


class Replace(NamedTuple):
    """Replaces the objects of a range of offsets by others, for compaction."""

    owner: TopicIdPartition
    claim: Claim
    entries: tuple[Entry, ...]
    """They cover the range."""

    def needs(self, section: Section | None) -> list[SubManifest]:
        first, last = self.entries[0], self.entries[-1]
        items = section.items if section else ()
        return needed_sub_manifests(items, first.base_offset, last.end_offset)

    def apply(self, section: Section | None, seq: int) -> Section:
        section = _own(section, self.owner, self.claim)
        _check_entries(self.entries, self.claim, self.owner)
        start, end = self.entries[0].base_offset, self.entries[-1].end_offset
        before = tuple(item for item in section.items if item.end_offset <= start)
        after = tuple(item for item in section.items if item.base_offset >= end)
        old = section.items[len(before) : len(section.items) - len(after)]
        if old == self.entries:
            return section
        if not old or (old[0].base_offset, old[-1].end_offset) != (start, end):
            raise EditRefused(
                f"{self.owner}: no objects cover exactly the offsets {start} to {end}: they were "
                "replaced or deleted in the meantime"
            )
        return replaced(
            section,
            items=(*before, *self.entries, *after),
            dropped=(*section.dropped, *_dropped(old, seq)),
        )


class DeleteBefore(NamedTuple):
    """Raises the start, for retention and DeleteRecords. Objects wholly below it are dropped."""

    owner: TopicIdPartition
    claim: Claim
    start_offset: int

    def needs(self, section: Section | None) -> list[SubManifest]:
        return _cut_through(section, self.start_offset)

    def apply(self, section: Section | None, seq: int) -> Section:
        section = _own(section, self.owner, self.claim)
        if self.start_offset <= section.start_offset:
            return section
        if self.start_offset > section.end_offset:
            raise EditRefused(
                f"{self.owner}: cannot delete up to {self.start_offset}: the partition ends at "
                f"{section.end_offset} in the store"
            )
        kept = tuple(item for item in section.items if item.end_offset > self.start_offset)
        gone = section.items[: len(section.items) - len(kept)]
        return replaced(
            section,
            start_offset=self.start_offset,
            items=kept,
            dropped=(*section.dropped, *_dropped(gone, seq)),
        )


class TruncateTo(NamedTuple):
    """Lowers the end, after an election that lost committed records, and for restores.

    The offset must be the start of a batch: readers leave out a batch that goes beyond the end.
    """

    owner: TopicIdPartition
    claim: Claim
    end_offset: int

    def needs(self, section: Section | None) -> list[SubManifest]:
        return _cut_through(section, self.end_offset)

    def apply(self, section: Section | None, seq: int) -> Section:
        section = _own(section, self.owner, self.claim)
        if self.end_offset >= section.end_offset:
            return section
        kept: list[Item] = [item for item in section.items if item.base_offset < self.end_offset]
        gone = section.items[len(kept) :]
        if kept and kept[-1].end_offset > self.end_offset:
            kept[-1] = kept[-1]._replace(end_offset=self.end_offset)
        start = min(section.start_offset, self.end_offset)
        if kept and kept[-1].end_offset <= start:
            gone = (kept.pop(), *gone)
        return replaced(
            section,
            start_offset=start,
            end_offset=self.end_offset,
            items=tuple(kept),
            dropped=(*section.dropped, *_dropped(gone, seq)),
        )


Edit: TypeAlias = ClaimPartition | Append | Replace | DeleteBefore | TruncateTo


def expanded(
    section: Section, contents: Sequence[tuple[SubManifest, Sequence[Entry]]], seq: int
) -> Section:
    """Replaces sub-manifests by their entries."""
    entries_of = {reference.key: entries for reference, entries in contents}
    items: list[Item] = []
    dropped = [*section.dropped]
    for item in section.items:
        if isinstance(item, SubManifest) and item.key in entries_of:
            items += entries_of[item.key]
            dropped.append(Dropped(item.key, seq))
        else:
            items.append(item)
    return replaced(section, items=tuple(items), dropped=tuple(dropped))


def replaced(
    section: Section,
    *,
    claim: Claim | None = None,
    start_offset: int | None = None,
    end_offset: int | None = None,
    items: tuple[Item, ...] | None = None,
    dropped: tuple[Dropped, ...] | None = None,
) -> Section:
    """Returns the section with other values in some fields."""
    return Section(
        section.owner,
        section.claim if claim is None else claim,
        section.start_offset if start_offset is None else start_offset,
        section.end_offset if end_offset is None else end_offset,
        section.items if items is None else items,
        section.dropped if dropped is None else dropped,
    )


def _own(section: Section | None, owner: TopicIdPartition, claim: Claim) -> Section:
    if section is None or section.claim != claim:
        raise Fenced(
            f"{owner}: the claim of leader epoch {claim.epoch} has ended: {_holder(section)}"
        )
    return section


def _holder(section: Section | None) -> str:
    if section is None:
        return "no leader claims the partition now"
    return (
        f"the partition is now claimed by leader epoch {section.claim.epoch} with claim "
        f"{section.claim.id}"
    )


def _check_entries(entries: Sequence[Entry], claim: Claim, owner: TopicIdPartition) -> None:
    """Raises `EditRefused` unless this leader has uploaded the objects, and they fit together."""
    if not entries:
        raise EditRefused(f"{owner}: nothing to commit")
    end = entries[0].base_offset
    for entry in entries:
        name = parse_data_key(entry.key)
        if name is None or (name.kind, name.owner, name.claim) != (SEGMENTS, owner, claim):
            # The collector may delete objects of other claims at any time.
            raise EditRefused(f"{entry.key} was not uploaded under the claim of this leader")
        if entry.base_offset != end or entry.end_offset <= end:
            raise EditRefused(f"{entry} does not begin at {end}")
        end = entry.end_offset


def _cut_through(section: Section | None, offset: int) -> list[SubManifest]:
    """Returns the sub-manifests with entries on both sides of the offset."""
    return needed_sub_manifests(section.items if section else (), offset, offset)


def _dropped(items: Sequence[Item], seq: int) -> list[Dropped]:
    return [
        Dropped(
            item.key,
            seq,
            DroppedKind.SUB_MANIFEST if isinstance(item, SubManifest) else DroppedKind.OBJECT,
        )
        for item in items
    ]
