"""Commits changes: creates the next manifest of a chain, and finds out whose create it was. Pure.

The create of manifest n + 1 is the commit. Its answer decides nothing: an answer can be lost, a
client may repeat a request that had succeeded, and a server may say "exists" when nothing is there.
What counts is whose id is under the name. Then the boundary is read: if it is above n + 1, the name
may have been free only because the collector had deleted the manifest that had it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.tier.chain import View, find, find_boundary
from penstock.tier.edits import ClaimPartition, Edit, expanded, replaced
from penstock.tier.errors import (
    AlreadyExists,
    CorruptObject,
    EditRefused,
    Fenced,
    NotFound,
    OutcomeUnknown,
    Overtaken,
    StoreError,
    Throttled,
    TierError,
)
from penstock.tier.keys import CLAIM_BYTES, Claim, TopicIdPartition, manifest_key
from penstock.tier.manifest import Manifest, Section
from penstock.tier.manifest_format import decode_entries, decode_manifest, encode_manifest
from penstock.tier.requests import BackOff, Procedure, create, read
from penstock.tier.spill import DEFAULT_LIMITS, Draw, SpillLimits, SubObject, spill

_CREATES_MAX: Final = 8
_ROUNDS_MAX: Final = 50
ID_BYTES: Final = 16
Sections = dict[TopicIdPartition, Section]


class Committed(NamedTuple):
    view: View
    refused: tuple[TierError | None, ...]
    """For each edit: None if it is committed, or why it was refused."""


def claim(
    view: View,
    owner: TopicIdPartition,
    epoch: int,
    now_ms: int,
    draw: Draw,
    *,
    start_offset: int = 0,
    limits: SpillLimits = DEFAULT_LIMITS,
) -> Procedure[tuple[View, Claim]]:
    """Begins a leadership, once for each process: `renew` it later. Upload under the claim only
    when this has returned."""
    new = new_claim(epoch, draw)
    edit = ClaimPartition(owner, new, start_offset)
    view = yield from commit_one(view, edit, now_ms, draw, limits=limits)
    return view, new


def new_claim(epoch: int, draw: Draw) -> Claim:
    return Claim(epoch, draw(CLAIM_BYTES).hex())


def renew(
    view: View,
    owner: TopicIdPartition,
    new: Claim,
    tried: Sequence[Claim],
    now_ms: int,
    draw: Draw,
    *,
    limits: SpillLimits = DEFAULT_LIMITS,
) -> Procedure[View]:
    """Goes on under another claim, so that the collector can delete what the leader has dropped.

    `tried` are all claims that this process has made or tried for the partition. Add `new` to them
    before the call. If its outcome is unknown, any of them may be the claim, now or later: the one
    in the newest manifest is the one to upload under. Raises `Fenced` if it is none of them.
    """
    edit = ClaimPartition(owner, new, renews=tuple(tried))
    return (yield from commit_one(view, edit, now_ms, draw, limits=limits))


def commit_one(
    view: View, edit: Edit, now_ms: int, draw: Draw, *, limits: SpillLimits = DEFAULT_LIMITS
) -> Procedure[View]:
    """Commits one edit, or raises why it was refused."""
    done = yield from commit(view, [edit], now_ms, draw, limits=limits)
    if done.refused[0] is not None:
        raise done.refused[0]
    return done.view


def commit(
    view: View,
    edits: Sequence[Edit],
    now_ms: int,
    draw: Draw,
    *,
    limits: SpillLimits = DEFAULT_LIMITS,
) -> Procedure[Committed]:
    """Commits edits in one manifest: those that are not refused, or none if all are.

    Raises `Throttled` if nothing was changed, `OutcomeUnknown` or `Overtaken` if the caller must
    `find` the newest manifest and look.
    """
    for _ in range(_ROUNDS_MAX):
        try:
            work = yield from _apply(view, edits, draw, limits)
            if work.is_empty:
                return Committed(view, work.refused)
            yield from _write_sub_objects(work.objects)
        except NotFound as error:
            newer = yield from find(view.chain, view)
            if newer.seq == view.seq:
                raise CorruptObject(f"manifest {view.seq} names a missing object") from error
            view = newer
            continue
        manifest = Manifest(
            view.chain,
            view.seq + 1,
            draw(ID_BYTES).hex(),
            view.manifest.id,
            now_ms,
            work.sections,
        )
        if (yield from place(manifest)):
            return Committed((yield from confirmed(view, manifest)), work.refused)
        view = yield from find(view.chain, view)
    raise Throttled(
        f"another writer created the next manifest of {view.chain} first, {_ROUNDS_MAX} times in a "
        "row; try again"
    )


class _Work(NamedTuple):
    sections: Sections
    objects: list[SubObject]
    refused: tuple[TierError | None, ...]
    is_empty: bool


def _apply(view: View, edits: Sequence[Edit], draw: Draw, limits: SpillLimits) -> Procedure[_Work]:
    sections = dict(view.manifest.sections)
    refused: list[TierError | None] = []
    seq = view.seq + 1
    for edit in edits:
        before = sections.get(edit.owner)
        try:
            _check_claim_is_committed(view, before, edit)
            section = edit.apply((yield from _expand(before, edit, seq)), seq)
        except (Fenced, EditRefused) as error:
            refused.append(error)
            continue
        refused.append(None)
        sections[edit.owner] = section
    changed = [each for each in sections if sections[each] is not view.manifest.sections.get(each)]
    objects: list[SubObject] = []
    for owner in changed:
        section = _pruned(sections[owner], view.boundary.floor)
        if _may_write_objects(view, section):
            section, spilled = spill(section, limits, draw)
            objects += spilled
        section.check()
        sections[owner] = section
    return _Work(sections, objects, tuple(refused), not changed)


def _check_claim_is_committed(view: View, section: Section | None, edit: Edit) -> None:
    """Raises `EditRefused` for objects of a claim that an earlier edit of this commit makes.

    The collector takes objects of a claim that is in no manifest for orphans. A leader that stalls
    between an upload and its claim could commit an object that is gone.
    """
    if isinstance(edit, ClaimPartition) or section is None or section.claim != edit.claim:
        return
    if not _may_write_objects(view, section):
        raise EditRefused(
            f"{edit.owner}: the claim is not committed: commit it first, then upload objects and "
            "commit them"
        )


def _may_write_objects(view: View, section: Section) -> bool:
    """Returns whether the claim is committed. A manifest that makes a claim names no new objects,
    for the same reason."""
    before = view.manifest.sections.get(section.owner)
    return before is not None and before.claim == section.claim


def _expand(section: Section | None, edit: Edit, seq: int) -> Procedure[Section | None]:
    """Reads the sub-manifests that the edit changes."""
    needed = edit.needs(section)
    if section is None or not needed:
        return section
    contents = []
    for reference in needed:
        data = yield from read(reference.key)
        contents.append((reference, decode_entries(data, reference)))
    return expanded(section, contents, seq)


def _pruned(section: Section, floor: int) -> Section:
    """Forgets dropped keys that no manifest names any more that counts."""
    kept = tuple(each for each in section.dropped if each.seq > floor)
    return replaced(section, dropped=kept)


def _write_sub_objects(objects: Sequence[SubObject]) -> Procedure[None]:
    for each in objects:
        for attempt in range(_CREATES_MAX):
            if attempt:
                yield BackOff(attempt)
            # The name is random, so if it exists, this writer has created it.
            with suppress(AlreadyExists, OutcomeUnknown):
                yield from create(each.key, each.data)
            try:
                found = yield from read(each.key)
            except NotFound:
                continue
            if found != each.data:
                raise CorruptObject(f"{each.key} was read back and differs from what was written")
            break
        else:
            raise Throttled(
                f"{each.key} could not be written in {_CREATES_MAX} attempts; try again"
            )


def place(manifest: Manifest) -> Procedure[bool]:
    """Creates the manifest. Returns whether it is the one under its name."""
    key = manifest_key(manifest.chain, manifest.seq)
    data = encode_manifest(manifest)
    is_pending = False
    for attempt in range(_CREATES_MAX):
        if attempt:
            yield BackOff(attempt)
        try:
            try:
                yield from create(key, data)
            except (AlreadyExists, OutcomeUnknown):
                is_pending = True
                found = yield from read(key)
                return decode_manifest(found, manifest.chain, manifest.seq).id == manifest.id
        except NotFound:
            continue
        except StoreError as error:
            if is_pending:
                raise _unknown(manifest, error) from error
            raise
        return True
    raise _unknown(manifest, f"none of {_CREATES_MAX} attempts to create it was answered")


def confirmed(view: View, manifest: Manifest) -> Procedure[View]:
    """Checks that the boundary has not passed the manifest that was created."""
    try:
        boundary = yield from find_boundary(view.chain, view.boundary)
    except StoreError as error:
        raise _unknown(manifest, error) from error
    if boundary.number and boundary.floor > manifest.seq:
        raise Overtaken(
            f"manifest {manifest.seq} of {view.chain} was created after the boundary had reached "
            f"{boundary.floor}: this writer was stalled for too long. Open the chain again"
        )
    return View(manifest, boundary)


def _unknown(manifest: Manifest, cause: object) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"it is unknown whether manifest {manifest.seq} of {manifest.chain} was created: {cause}"
    )
