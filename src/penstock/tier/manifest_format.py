"""Encodes and decodes manifests, sub-manifests and boundaries: JSON with a checksum. Pure.

    {"format":"penstock-manifest","version":1,...}
    crc32c 0a1b2c3d

`docs/TIERED.md` lists the fields.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from crc32c import crc32c

from penstock.tier.errors import CorruptObject
from penstock.tier.keys import (
    SEGMENTS,
    SUB_MANIFESTS,
    Claim,
    TopicIdPartition,
    is_data_key,
)
from penstock.tier.manifest import (
    Dropped,
    DroppedKind,
    Entry,
    Item,
    Manifest,
    Section,
    SubManifest,
)

VERSION: Final = 1
_MARK: Final = b"\ncrc32c "
_MANIFEST: Final = "penstock-manifest"
_ENTRIES: Final = "penstock-sub-manifest"
_DROPPED: Final = "penstock-dropped-list"
_BOUNDARY: Final = "penstock-boundary"
_ENTRY_FIELDS: Final = len(Entry._fields)
_SUB_MANIFEST_FIELDS: Final = len(SubManifest._fields)
_INT64_END: Final = 1 << 63


def encode_manifest(manifest: Manifest) -> bytes:
    return _frame(
        _MANIFEST,
        {
            "chain": manifest.chain,
            "seq": manifest.seq,
            "id": manifest.id,
            "parent": manifest.parent,
            "written_ms": manifest.written_ms,
            "sections": [_section(each) for _, each in sorted(manifest.sections.items())],
        },
    )


def _section(section: Section) -> dict[str, Any]:
    return {
        "topic": section.owner.topic_id,
        "partition": section.owner.partition,
        "epoch": section.claim.epoch,
        "claim": section.claim.id,
        "start": section.start_offset,
        "end": section.end_offset,
        "items": [["e" if isinstance(each, Entry) else "s", *each] for each in section.items],
        "dropped": [[each.key, each.seq, each.kind.value] for each in section.dropped],
    }


def decode_manifest(data: bytes, chain: str, seq: int) -> Manifest:
    """Returns the manifest that was read under this name."""
    fields = _unframe(_MANIFEST, data)
    try:
        sections = [_decode_section(each) for each in fields["sections"]]
        manifest = Manifest(
            str(fields["chain"]),
            _number(fields["seq"]),
            str(fields["id"]),
            str(fields["parent"]),
            _number(fields["written_ms"], -_INT64_END),
            {each.owner: each for each in sections},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptObject(f"manifest {seq} of {chain} cannot be decoded: {error!r}") from error
    if (manifest.chain, manifest.seq) != (chain, seq) or not manifest.id:
        raise CorruptObject(
            f"the object named manifest {seq} of {chain} contains manifest {manifest.seq} of "
            f"{manifest.chain}"
        )
    if len(manifest.sections) != len(sections):
        raise CorruptObject(f"manifest {seq} of {chain} has a partition twice")
    manifest.check()
    return manifest


def _decode_section(fields: dict[str, Any]) -> Section:
    owner = TopicIdPartition(str(fields["topic"]), _number(fields["partition"]))
    claim = Claim(_number(fields["epoch"]), str(fields["claim"]))
    if not owner.is_possible() or not claim.is_possible():
        raise ValueError(f"the manifest has an invalid partition or claim: {owner}, {claim}")
    return Section(
        owner,
        claim,
        _number(fields["start"]),
        _number(fields["end"]),
        tuple(_decode_item(each) for each in fields["items"]),
        tuple(_decode_dropped(each) for each in fields["dropped"]),
    )


def _decode_item(fields: list[Any]) -> Item:
    kind, key, *numbers = fields
    for number in numbers:
        _number(number, -1)
    if kind == "e" and len(numbers) == _ENTRY_FIELDS - 1 and is_data_key(key, SEGMENTS):
        entry = Entry(key, *numbers)
        if entry.size > entry.data_size >= 0:
            return entry
    if kind == "s" and len(numbers) == _SUB_MANIFEST_FIELDS - 1 and is_data_key(key, SUB_MANIFESTS):
        return SubManifest(key, *numbers)
    raise ValueError(f"item {str(fields)[:200]} is impossible or of an unknown kind")


def _decode_dropped(fields: list[Any]) -> Dropped:
    key, seq, kind = fields
    if not is_data_key(key, SEGMENTS) and not is_data_key(key, SUB_MANIFESTS):
        raise ValueError(f"{str(key)[:200]} is not the name of an object")
    return Dropped(key, _number(seq), DroppedKind(kind))


def _number(value: object, least: int = 0) -> int:
    """Returns the value if it is an integer of 64 bits. Others would be rounded, or be ranges and
    names that no store has."""
    if type(value) is not int or not least <= value < _INT64_END:
        raise ValueError(f"{str(value)[:200]} is not an integer of {least} or more")
    return value


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Returns a sub-manifest."""
    return _frame(_ENTRIES, {"items": [["e", *each] for each in entries]})


def decode_entries(data: bytes, reference: SubManifest) -> tuple[Entry, ...]:
    """Returns the entries of the sub-manifest that a manifest refers to."""
    if crc32c(data) != reference.crc:
        raise CorruptObject(f"{reference.key} is not the sub-manifest that its manifest names")
    return _decode_entries(data, reference.key)


def decode_dropped_entries(data: bytes, key: str) -> tuple[Entry, ...]:
    """Returns the entries of a sub-manifest that was dropped, and whose CRC is not known."""
    return _decode_entries(data, key)


def _decode_entries(data: bytes, key: str) -> tuple[Entry, ...]:
    try:
        items = [_decode_item(each) for each in _unframe(_ENTRIES, data)["items"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptObject(f"{key} cannot be decoded: {error!r}") from error
    entries = tuple(each for each in items if isinstance(each, Entry))
    if len(entries) != len(items):
        raise CorruptObject(f"{key} is a sub-manifest, so it must not name another sub-manifest")
    return entries


def encode_dropped(dropped: Sequence[Dropped]) -> bytes:
    """Returns a list of dropped keys."""
    return _frame(_DROPPED, {"items": [[each.key, each.seq, each.kind.value] for each in dropped]})


def decode_dropped(data: bytes, key: str) -> tuple[Dropped, ...]:
    try:
        items = tuple(_decode_dropped(each) for each in _unframe(_DROPPED, data)["items"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptObject(f"{key} cannot be decoded: {error!r}") from error
    if any(each.kind is DroppedKind.LIST for each in items):
        raise CorruptObject(
            f"{key} is a list of dropped objects, so it must not name another such list"
        )
    return items


def encode_boundary(chain: str, number: int, floor: int) -> bytes:
    return _frame(_BOUNDARY, {"chain": chain, "number": number, "floor": floor})


def decode_boundary(data: bytes, chain: str, number: int) -> int:
    """Returns the sequence number below which manifests do not count."""
    fields = _unframe(_BOUNDARY, data)
    try:
        found = (str(fields["chain"]), _number(fields["number"]))
        floor = _number(fields["floor"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptObject(f"boundary {number} of {chain} cannot be decoded") from error
    if found != (chain, number):
        raise CorruptObject(f"the object named boundary {number} of {chain} contains {found}")
    return floor


def _frame(kind: str, fields: dict[str, Any]) -> bytes:
    text = json.dumps({"format": kind, "version": VERSION, **fields}, separators=(",", ":"))
    body = text.encode()
    return b"%s%s%08x\n" % (body, _MARK, crc32c(body + b"\n"))


def _unframe(kind: str, data: bytes) -> dict[str, Any]:
    body, mark, checksum = data.rpartition(_MARK)
    try:
        wanted = int(checksum, 16) if mark and len(checksum) == 9 else None
    except ValueError:
        wanted = None
    if wanted is None or crc32c(body + b"\n") != wanted:
        raise CorruptObject(f"{data[:80]!r}... fails its checksum: it was truncated or damaged")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptObject(f"{body[:80]!r}... is not JSON") from error
    if not isinstance(fields, dict) or fields.get("format") != kind:
        raise CorruptObject(f"{body[:80]!r}... is not a {kind}")
    if fields.get("version") != VERSION:
        raise CorruptObject(
            f"{kind} version {fields.get('version')} is newer than this broker; upgrade penstock"
        )
    return fields
