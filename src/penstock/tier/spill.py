"""Moves older entries of a section to sub-manifests, and older dropped keys to lists. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.tier.edits import replaced
from penstock.tier.keys import RANDOM_BYTES, SUB_MANIFESTS, DataKey
from penstock.tier.manifest import (
    Dropped,
    DroppedKind,
    Entry,
    Item,
    Section,
    SubManifest,
)
from penstock.tier.manifest_format import encode_dropped, encode_entries

Draw = Callable[[int], bytes]
"""Draws so many random bytes."""


class SpillLimits(NamedTuple):
    """How much a manifest names itself. 400 entries are about 64 KiB."""

    entries_max: int = 400
    dropped_max: int = 400
    sub_manifest_entries_max: int = 400


DEFAULT_LIMITS: Final = SpillLimits()


class SubObject(NamedTuple):
    """An object to be written before the manifest that names it."""

    key: str
    data: bytes


def spill(section: Section, limits: SpillLimits, draw: Draw) -> tuple[Section, list[SubObject]]:
    """Returns the section with fewer entries, and the objects that have the others."""
    objects: list[SubObject] = []
    items = _spill_entries(section, limits, draw, objects)
    dropped = _spill_dropped(section, limits, draw, objects)
    return replaced(section, items=items, dropped=dropped), objects


def _spill_entries(
    section: Section, limits: SpillLimits, draw: Draw, objects: list[SubObject]
) -> tuple[Item, ...]:
    """All entries but the newest quarter of the limit go to sub-manifests, if there are too
    many."""
    count = sum(isinstance(item, Entry) for item in section.items)
    if count <= limits.entries_max:
        return section.items
    left = count - limits.entries_max // 4
    items: list[Item] = []
    run: list[Entry] = []

    def end_run() -> None:
        if run:
            items.append(_sub_manifest(section, tuple(run), draw, objects))
            run.clear()

    for item in section.items:
        if isinstance(item, Entry) and left > 0:
            run.append(item)
            left -= 1
            if len(run) == limits.sub_manifest_entries_max:
                end_run()
        else:
            end_run()
            items.append(item)
    end_run()
    return tuple(items)


def _sub_manifest(
    section: Section, entries: tuple[Entry, ...], draw: Draw, objects: list[SubObject]
) -> SubManifest:
    data = encode_entries(entries)
    key = _key(section, entries[0].base_offset, draw)
    objects.append(SubObject(key, data))
    return SubManifest(
        key,
        entries[0].base_offset,
        entries[-1].end_offset,
        len(data),
        max(entry.max_timestamp for entry in entries),
        len(entries),
        crc32c(data),
        sum(entry.size for entry in entries),
    )


def _spill_dropped(
    section: Section, limits: SpillLimits, draw: Draw, objects: list[SubObject]
) -> tuple[Dropped, ...]:
    lists = [each for each in section.dropped if each.kind is DroppedKind.LIST]
    others = [each for each in section.dropped if each.kind is not DroppedKind.LIST]
    if len(others) <= limits.dropped_max:
        return section.dropped
    kept = limits.dropped_max // 4
    moved = others[: len(others) - kept]
    data = encode_dropped(moved)
    key = _key(section, section.start_offset, draw)
    objects.append(SubObject(key, data))
    lists.append(Dropped(key, max(each.seq for each in moved), DroppedKind.LIST))
    return (*lists, *others[len(moved) :])


def _key(section: Section, base_offset: int, draw: Draw) -> str:
    random = draw(RANDOM_BYTES).hex()
    return str(DataKey(SUB_MANIFESTS, section.owner, base_offset, section.claim, random))
