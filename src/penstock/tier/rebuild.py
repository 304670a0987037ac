"""Builds the manifest of a chain again from the footers, when the newest one is damaged. Pure.

The manifest that replaces the damaged one gets the number after it. It begins a leadership, like a
claim: writers that read an older manifest are fenced. It names what the footers show, and its
`dropped` has all other objects, so that older manifests can still be restored.

Some things are in no footer. The start of the log is one: deleted records come back unless the
caller knows it. Which objects were committed is another: some may have been uploaded in vain. Their
records are in the log all the same, because leaders upload only committed records. After an
election that lost records, the leader epochs in the newest footer show how far the objects of older
leaders count.

No collector of the chain may run meanwhile, and none may have stalled: it may have taken an object
for an orphan that is named again here. This is for an operator, not for a broker by itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.partition.epochs import EpochStart
from penstock.tier.chain import NO_BOUNDARY, View, find_boundary, last_manifest
from penstock.tier.commit import ID_BYTES, confirmed, place
from penstock.tier.errors import CorruptObject, EditRefused, NotFound, Overtaken
from penstock.tier.footer import TAIL_BYTES, Footer, decode_footer, decode_trailer
from penstock.tier.keys import (
    SEGMENTS,
    SUB_MANIFESTS,
    Claim,
    TopicIdPartition,
    data_prefix,
    manifest_key,
    parse_data_key,
)
from penstock.tier.manifest import Dropped, Entry, Manifest, Section
from penstock.tier.manifest_format import decode_manifest
from penstock.tier.object_store import ObjectInfo
from penstock.tier.requests import Procedure, list_all, read, read_range
from penstock.tier.spill import Draw

_NO_END: Final = 1 << 63


class Leader(NamedTuple):
    """Who leads a partition from the new manifest on."""

    claim: Claim
    """A new one. Its leader epoch is at least that of every former claim."""
    start_offset: int | None = None
    """The start of the log, if it is known. Otherwise the longest part without a gap is taken."""
    end_offset_min: int = 0
    """Where the local logs of the brokers begin. The objects must reach up to here."""


class FoundObject(NamedTuple):
    key: str
    modified_ms: int
    footer: Footer
    entry: Entry


class Rebuilt(NamedTuple):
    view: View
    damaged: Sequence[str]
    """Objects without a valid footer. They are deleted with the history."""


def rebuild(
    chain: str, leaders: Mapping[TopicIdPartition, Leader], now_ms: int, draw: Draw
) -> Procedure[Rebuilt]:
    """Replaces the newest manifest of a chain, which must be damaged. `leaders` has all partitions
    of the chain.

    Raises `EditRefused` if the manifest can be read, `Overtaken` if another process was faster.
    """
    boundary = yield from find_boundary(chain, NO_BOUNDARY)
    seq = yield from last_manifest(chain, boundary)
    yield from _check_is_damaged(chain, seq)
    sections: dict[TopicIdPartition, Section] = {}
    damaged: list[str] = []
    for owner, leader in leaders.items():
        found, bad, others = yield from _read_footers(owner)
        _check_epoch(owner, leader, found)
        entries = choose(found, leader)
        named = {entry.key for entry in entries}
        unnamed = sorted({*(each.key for each in found), *bad, *others} - named)
        dropped = tuple(Dropped(key, seq + 1) for key in unnamed)
        sections[owner] = _section(owner, leader, entries, dropped)
        damaged += bad
    manifest = Manifest(chain, seq + 1, draw(ID_BYTES).hex(), "", now_ms, sections)
    manifest.check()
    if not (yield from place(manifest)):
        raise Overtaken(f"another process has created manifest {manifest.seq} of {chain}")
    before = View(manifest, boundary)
    return Rebuilt((yield from confirmed(before, manifest)), damaged)


def _check_is_damaged(chain: str, seq: int) -> Procedure[None]:
    if not seq:
        raise EditRefused(f"{chain} has no manifest")
    try:
        decode_manifest((yield from read(manifest_key(chain, seq))), chain, seq)
    except (CorruptObject, NotFound):
        return
    raise EditRefused(f"manifest {seq} of {chain} can be read: there is nothing to rebuild")


def _check_epoch(owner: TopicIdPartition, leader: Leader, found: Sequence[FoundObject]) -> None:
    newest = max((each.footer.leader_epoch for each in found), default=0)
    if newest > leader.claim.epoch:
        raise EditRefused(
            f"{owner}: leader epoch {leader.claim.epoch} cannot claim it: leader epoch {newest} "
            "has uploaded objects"
        )


def _section(
    owner: TopicIdPartition, leader: Leader, entries: Sequence[Entry], dropped: tuple[Dropped, ...]
) -> Section:
    start = leader.start_offset
    if not entries:
        start = start or 0
        return Section(owner, leader.claim, start, start, (), dropped)
    if start is None:
        start = entries[0].base_offset
    end = entries[-1].end_offset
    return Section(owner, leader.claim, start, end, tuple(entries), dropped)


def _read_footers(
    owner: TopicIdPartition,
) -> Procedure[tuple[list[FoundObject], list[str], list[str]]]:
    """Returns the segment objects, those that are damaged, and the sub-manifests."""
    found: list[FoundObject] = []
    damaged: list[str] = []
    for info in (yield from list_all(data_prefix(SEGMENTS, owner))):
        if parse_data_key(info.key) is None:
            continue
        try:
            found.append((yield from _read_footer(owner, info)))
        except CorruptObject:
            damaged.append(info.key)
        except NotFound:  # The listing was late.
            continue
    infos = yield from list_all(data_prefix(SUB_MANIFESTS, owner))
    return found, damaged, [info.key for info in infos if parse_data_key(info.key) is not None]


def _read_footer(owner: TopicIdPartition, info: ObjectInfo) -> Procedure[FoundObject]:
    size = min(info.size, TAIL_BYTES)
    tail = b"" if not size else (yield from read_range(info.key, info.size - size, size))
    trailer = decode_trailer(tail)
    if trailer.object_size != info.size:
        raise CorruptObject(f"{info.key} has {info.size} bytes, not {trailer.object_size}")
    if trailer.tail_size > len(tail):
        start = info.size - trailer.tail_size
        tail = yield from read_range(info.key, start, trailer.tail_size)
    footer = decode_footer(tail)
    name = parse_data_key(info.key)
    if name is None or (footer.owner, footer.base_offset) != (owner, name.base_offset):
        raise CorruptObject(f"{info.key} has the footer of another object")
    if footer.base_offset == footer.end_offset:
        raise CorruptObject(f"{info.key} covers no offsets")
    entry = Entry(
        info.key,
        footer.base_offset,
        footer.end_offset,
        info.size,
        footer.data_size,
        footer.max_timestamp,
        trailer.footer_crc,
    )
    return FoundObject(info.key, info.modified_ms, footer, entry)


def choose(found: Sequence[FoundObject], leader: Leader) -> tuple[Entry, ...]:
    """Returns entries without gaps, up to the largest offset that the last leader knew.

    Of objects that cover the same offsets, the one that was written last is taken: compaction may
    have removed a tombstone since the others. What is after a gap was uploaded in vain, and is left
    out. Raises `CorruptObject` if that would leave out what the leader needs.
    """
    steps = _steps(_in_lineage(found))
    start = leader.start_offset
    if start is None:
        at = max(steps, key=lambda base: (steps[base].reach - base, -base), default=0)
    else:
        bases = [base for base in steps if base <= start < steps[base].reach]
        at = max(bases, key=lambda base: (steps[base].reach, base), default=start)
    entries: list[Entry] = []
    while at in steps:
        entries.append(steps[at].entry)
        at = entries[-1].end_offset
    if at < leader.end_offset_min:
        raise CorruptObject(
            f"the objects are contiguous only from offset {start or 0} to {at}, but the local log "
            f"begins at {leader.end_offset_min}: objects in between are missing"
        )
    while entries and start is not None and entries[0].end_offset <= start:
        del entries[0]
    return tuple(entries)


def _in_lineage(found: Sequence[FoundObject]) -> list[FoundObject]:
    """Leaves out what an election has lost: what is after the end of its leader's epoch in the
    footer of the last leader."""
    if not found:
        return []
    last = max(found, key=lambda each: (each.footer.leader_epoch, each.footer.end_offset))
    usable = []
    for each in found:
        entry = each.entry
        end = min(entry.end_offset, _end_of(each.footer.leader_epoch, last.footer.epochs))
        if entry.base_offset < end:
            usable.append(each._replace(entry=entry._replace(end_offset=end)))
    return usable


def _end_of(leader_epoch: int, epochs: Sequence[EpochStart]) -> int:
    at = bisect_right(epochs, leader_epoch, key=lambda each: each.epoch)
    return epochs[at].start_offset if at < len(epochs) else _NO_END


class _Step(NamedTuple):
    reach: int
    """The largest offset that can be reached without a gap."""
    modified_ms: int
    entry: Entry


def _steps(usable: Sequence[FoundObject]) -> dict[int, _Step]:
    """Returns the best entry for each base offset. An entry may end where another one begins."""
    bases = sorted({each.entry.base_offset for each in usable})
    steps: dict[int, _Step] = {}
    for each in sorted(usable, key=lambda each: each.entry.base_offset, reverse=True):
        base, end = each.entry.base_offset, each.entry.end_offset
        ends = [*bases[bisect_right(bases, base) : bisect_left(bases, end)], end]
        for stop in ends:
            reach = steps[stop].reach if stop in steps else stop
            step = _Step(reach, each.modified_ms, each.entry._replace(end_offset=stop))
            if base not in steps or step > steps[base]:
                steps[base] = step
    return steps
