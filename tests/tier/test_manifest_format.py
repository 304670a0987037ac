"""Manifests, sub-manifests and boundaries: what is encoded can be read back, and is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.tier.errors import CorruptObject
from penstock.tier.keys import (
    SEGMENTS,
    SUB_MANIFESTS,
    Claim,
    DataKey,
    TopicIdPartition,
    boundary_key,
    manifest_key,
    manifest_prefix,
    parse_data_key,
    sequence_number,
)
from penstock.tier.manifest import (
    Dropped,
    DroppedKind,
    Entry,
    Manifest,
    Section,
    SubManifest,
)
from penstock.tier.manifest_format import (
    decode_boundary,
    decode_dropped,
    decode_entries,
    decode_manifest,
    encode_boundary,
    encode_dropped,
    encode_entries,
    encode_manifest,
)

from .object_samples import OWNER

CLAIM = Claim(4, "c" * 16)
SUB_KEY = str(DataKey(SUB_MANIFESTS, OWNER, 0, CLAIM, "5" * 16))


def entry(start: int, end: int, claim: Claim = CLAIM, random: str = "r") -> Entry:
    key = str(DataKey(SEGMENTS, OWNER, start, claim, f"{start % 16:x}" * 16))
    return Entry(key, start, end, 1000, 900, end, 77)


def manifest(*items: Entry | SubManifest, start: int = 0) -> Manifest:
    end = items[-1].end_offset if items else start
    dropped = (Dropped(SUB_KEY, 3), Dropped(SUB_KEY, 4, DroppedKind.LIST))
    section = Section(OWNER, CLAIM, start, end, items, dropped)
    other = TopicIdPartition(OWNER.topic_id, 12)
    sections = {OWNER: section, other: Section(other, CLAIM, 5, 5)}
    return Manifest("shared/0", 9, "d" * 32, "e" * 32, 1234, sections)


SAMPLE = manifest(SubManifest(SUB_KEY, 0, 10, 500, 9, 3, 1, 3000), entry(10, 20), entry(20, 25))


def reframed(fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields).encode() + b"\n"
    return body + b"crc32c %08x\n" % crc32c(body)


def test_a_manifest_can_be_read_back() -> None:
    data = encode_manifest(SAMPLE)
    assert decode_manifest(data, "shared/0", 9) == SAMPLE
    assert json.loads(data.splitlines()[0])["sections"][0]["items"][1][0] == "e"


def test_a_manifest_is_refused_under_another_name() -> None:
    """It was copied, or a proxy mixes up answers."""
    data = encode_manifest(SAMPLE)
    for chain, seq in (("shared/0", 8), ("shared/1", 9)):
        with pytest.raises(CorruptObject, match="the object named manifest"):
            decode_manifest(data, chain, seq)


def test_every_damaged_or_cut_manifest_is_refused() -> None:
    data = encode_manifest(SAMPLE)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x20 if damaged[position] not in b"abcdef" else 1
        with pytest.raises(CorruptObject):
            decode_manifest(bytes(damaged), "shared/0", 9)
        with pytest.raises(CorruptObject):
            decode_manifest(data[:position], "shared/0", 9)


@pytest.mark.parametrize(
    ("items", "start"),
    [
        ((entry(0, 10), entry(11, 20)), 0),
        ((entry(0, 10), entry(9, 20)), 0),
        ((entry(0, 10), entry(10, 20)), 10),
        ((entry(5, 10),), 4),
        ((entry(5, 5),), 5),
    ],
)
def test_sections_with_gaps_are_refused(items: tuple[Entry, ...], start: int) -> None:
    with pytest.raises(CorruptObject):
        decode_manifest(encode_manifest(manifest(*items, start=start)), "shared/0", 9)


def test_a_section_without_objects_covers_nothing() -> None:
    section = Section(OWNER, CLAIM, 3, 4)
    with pytest.raises(CorruptObject, match="has no objects for 3 to 4"):
        section.check()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"format": "penstock-boundary"},
        {"sections": 5},
        {"sections": [{}]},
        {"seq": None},
        {"id": ""},
    ],
)
def test_impossible_fields_are_refused(change: dict[str, Any]) -> None:
    fields = json.loads(encode_manifest(SAMPLE).splitlines()[0])
    with pytest.raises(CorruptObject):
        decode_manifest(reframed({**fields, **change}), "shared/0", 9)


def test_a_partition_may_be_there_once_only() -> None:
    fields = json.loads(encode_manifest(SAMPLE).splitlines()[0])
    with pytest.raises(CorruptObject, match="has a partition twice"):
        decode_manifest(reframed({**fields, "sections": fields["sections"] * 2}), "shared/0", 9)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=8,
    )
)
def test_any_json_in_a_section_is_refused_as_corrupt(value: Any) -> None:
    """No other error comes out of the decoder."""
    fields = json.loads(encode_manifest(SAMPLE).splitlines()[0])
    with pytest.raises(CorruptObject):
        decode_manifest(reframed({**fields, "sections": [value]}), "shared/0", 9)


def test_sub_manifests_and_dropped_lists_can_be_read_back() -> None:
    entries = (entry(0, 5), entry(5, 7))
    data = encode_entries(entries)
    reference = SubManifest("sub/a", 0, 7, len(data), 7, 2, crc32c(data), 2000)
    assert decode_entries(data, reference) == entries
    with pytest.raises(CorruptObject, match="is not the sub-manifest"):
        decode_entries(data, reference._replace(crc=1))
    dropped = (Dropped(entries[0].key, 4), Dropped(SUB_KEY, 5, DroppedKind.SUB_MANIFEST))
    assert decode_dropped(encode_dropped(dropped), "sub/l") == dropped


def test_a_boundary_can_be_read_back() -> None:
    data = encode_boundary("shared/0", 3, 17)
    assert decode_boundary(data, "shared/0", 3) == 17
    with pytest.raises(CorruptObject):
        decode_boundary(data, "shared/0", 4)
    with pytest.raises(CorruptObject):
        decode_boundary(data[:-3], "shared/0", 3)


def test_names_sort_by_number_and_tell_who_wrote_them() -> None:
    assert manifest_key("shared/0", 12) < manifest_key("shared/0", 100)
    assert boundary_key("shared/0", 2) == "bnd/shared/0/00000000000000000002"
    key = DataKey(SEGMENTS, OWNER, 12, CLAIM, "a" * 16)
    assert parse_data_key(str(key)) == key
    assert parse_data_key("seg/readme.txt") is None
    prefix = manifest_prefix("shared/0")
    assert sequence_number(manifest_key("shared/0", 12), prefix) == 12
    assert sequence_number(f"{prefix}readme.txt", prefix) is None
