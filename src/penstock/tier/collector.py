"""Deletes what no manifest needs: old manifests, and objects that nobody can commit. Pure.

A round of one chain:

    1.  list the objects and the manifests
    2.  find the newest manifest; this comes after the listings, so that what was committed before
        them is known
    3.  store a higher boundary, if the history allows one
    4.  delete manifests below the boundary
    5.  delete orphans that an earlier round has seen

An orphan is an object that no manifest from the boundary on names, and whose claim is not the one
that its partition has now. Leaders commit only objects of their own claim. So nobody can commit an
orphan, however long ago a writer decided to do so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.tier.chain import Boundary, View, find, find_boundary
from penstock.tier.errors import AlreadyExists, OutcomeUnknown
from penstock.tier.keys import (
    SEGMENTS,
    SUB_MANIFESTS,
    boundary_key,
    data_prefix,
    manifest_prefix,
    parse_data_key,
    sequence_number,
)
from penstock.tier.manifest import Dropped, DroppedKind, Entry, Section
from penstock.tier.manifest_format import (
    decode_dropped,
    decode_dropped_entries,
    decode_entries,
    encode_boundary,
)
from penstock.tier.object_store import ObjectInfo
from penstock.tier.requests import Procedure, create, delete, list_all, read

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


class CollectorSettings(NamedTuple):
    history_ms: int = 7 * DAY_MS
    """Manifests of this time can be restored, with every object that they name."""
    orphan_age_ms: int = DAY_MS
    sighting_interval_ms: int = HOUR_MS
    """At least this much time is between the two rounds that see an orphan."""


class Round(NamedTuple):
    view: View
    sightings: Mapping[str, int]
    """Orphans that are left, and when a round saw each of them first. For the next round."""
    deleted: Sequence[str]


def collect(
    chain: str,
    sightings: Mapping[str, int],
    now_ms: int,
    settings: CollectorSettings,
    *,
    known: View | None = None,
    keep: Collection[str] = (),
) -> Procedure[Round]:
    """Collects one chain. `known` is an earlier view of it, to save requests. `keep` are further
    objects that are needed, such as those of branches.

    Raises the errors of the store; the round can then be repeated with the same sightings.
    """
    known = yield from find(chain, known)
    listed: list[ObjectInfo] = []
    for owner in sorted(known.manifest.sections):
        for kind in (SEGMENTS, SUB_MANIFESTS):
            listed += yield from list_all(data_prefix(kind, owner))
    manifests = yield from _list_manifests(chain)
    view = yield from find(chain, known)
    boundary = yield from _raise_boundary(view, manifests, now_ms - settings.history_ms)
    if boundary.floor > view.seq:
        return Round(view, sightings, [])  # Another collector has a newer view.
    deleted: list[str] = []
    for seq, info in manifests:
        if seq < boundary.floor:
            yield from delete(info.key)
            deleted.append(info.key)
    needed = {*keep, *(yield from needed_keys(view, boundary.floor))}
    left: dict[str, int] = {}
    for info in listed:
        if info.key in needed or not _is_out_of_reach(info.key, view):
            continue
        first_ms = sightings.get(info.key, now_ms)
        is_second = info.key in sightings and now_ms - first_ms >= settings.sighting_interval_ms
        if is_second and info.modified_ms <= now_ms - settings.orphan_age_ms:
            yield from delete(info.key)
            deleted.append(info.key)
        else:
            left[info.key] = first_ms
    return Round(View(view.manifest, boundary), left, deleted)


def _is_out_of_reach(key: str, view: View) -> bool:
    """Returns whether the writer of an object is fenced. False for names that are not ours."""
    name = parse_data_key(key)
    if name is None:
        return False
    section = view.manifest.sections.get(name.owner)
    return section is not None and section.claim.id != name.claim.id


def _list_manifests(chain: str) -> Procedure[list[tuple[int, ObjectInfo]]]:
    prefix = manifest_prefix(chain)
    infos = yield from list_all(prefix)
    found = [(sequence_number(info.key, prefix), info) for info in infos]
    return [(seq, info) for seq, info in found if seq is not None]


def _raise_boundary(
    view: View, manifests: Sequence[tuple[int, ObjectInfo]], until_ms: int
) -> Procedure[Boundary]:
    """Stores a boundary at the newest manifest that is older than the history. Returns the
    boundary that is stored."""
    old = [
        seq
        for seq, info in manifests
        if view.boundary.floor < seq <= view.seq and info.modified_ms <= until_ms
    ]
    if not old:
        return view.boundary
    number = view.boundary.number + 1
    data = encode_boundary(view.chain, number, max(old))
    # Whatever the answer: the boundary that is stored is read.
    with suppress(AlreadyExists, OutcomeUnknown):
        yield from create(boundary_key(view.chain, number), data)
    return (yield from find_boundary(view.chain, view.boundary))


def needed_keys(view: View, floor: int) -> Procedure[set[str]]:
    """Returns all objects that manifests from `floor` on name."""
    needed: set[str] = set()
    for section in view.manifest.sections.values():
        needed |= yield from _named_now(section)
        for dropped in section.dropped:
            if dropped.seq > floor:
                needed |= yield from _named_before(dropped)
    return needed


def _named_now(section: Section) -> Procedure[set[str]]:
    keys: set[str] = set()
    for item in section.items:
        keys.add(item.key)
        if not isinstance(item, Entry):
            data = yield from read(item.key)
            keys |= {entry.key for entry in decode_entries(data, item)}
    return keys


def _named_before(dropped: Dropped) -> Procedure[set[str]]:
    keys = {dropped.key}
    if dropped.kind is DroppedKind.SUB_MANIFEST:
        data = yield from read(dropped.key)
        keys |= {entry.key for entry in decode_dropped_entries(data, dropped.key)}
    elif dropped.kind is DroppedKind.LIST:
        data = yield from read(dropped.key)
        for each in decode_dropped(data, dropped.key):
            keys |= yield from _named_before(each)
    return keys
