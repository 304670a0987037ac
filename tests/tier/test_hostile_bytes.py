"""Hostile bytes: every object may have been written by somebody else, with a valid checksum."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from struct import pack_into
from typing import Any

import pytest
from crc32c import crc32c

from penstock.tier.errors import CorruptObject, Refused
from penstock.tier.footer import decode_footer, encode_footer
from penstock.tier.keys import parse_data_key, sequence_number
from penstock.tier.manifest import Dropped, DroppedKind
from penstock.tier.manifest_format import (
    decode_boundary,
    decode_dropped,
    decode_manifest,
    encode_boundary,
    encode_dropped,
    encode_manifest,
)
from penstock.tier.object_store import ObjectInfo
from penstock.tier.requests import List, Request, list_all

from .object_samples import OWNER, sample_object
from .procedure_runner import Runner
from .test_manifest_format import SAMPLE, reframed

FIXED, SECTION = 72, 12
FOOTER = sample_object(0, 3).footer


def framed(body: str) -> bytes:
    data = body.encode() + b"\n"
    return data + b"crc32c %08x\n" % crc32c(data)


def fields() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode_manifest(SAMPLE).splitlines()[0])
    return found


def refused(data: bytes) -> None:
    with pytest.raises(CorruptObject):
        decode_manifest(data, "shared/0", 9)


def test_json_that_is_nested_deeply_is_refused() -> None:
    refused(framed("[" * 100_000))


@pytest.mark.parametrize("number", ["1e999", "-Infinity", "NaN", "1.5", "9.0", '"9"', "true"])
def test_numbers_are_integers(number: str) -> None:
    text = json.dumps(fields()).replace('"written_ms": 1234', f'"written_ms": {number}')
    assert number in text
    refused(framed(text))
    boundary = encode_boundary("shared/0", 3, 17).decode().partition("\n")[0]
    with pytest.raises(CorruptObject):
        decode_boundary(framed(boundary.replace("17", number)), "shared/0", 3)


def _section(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda found: found["sections"][0].update({name: value})


def _item(at: int, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda found: found["sections"][0]["items"][1].__setitem__(at, value)


@pytest.mark.parametrize(
    "change",
    [
        _section("topic", "../../etc"),
        _section("topic", "0" * 31),
        _section("partition", -1),
        _section("partition", 1 << 31),
        _section("claim", "c" * 15),
        _section("epoch", -1),
        _section("end", 1 << 63),
        _section("dropped", [["../x", 4, "o"]]),
        _item(1, "../../etc/passwd"),
        _item(1, "sub" + SAMPLE.sections[OWNER].items[1].key[3:]),
        _item(4, -5),
        _item(5, -5),
        _item(5, 1 << 63),
    ],
)
def test_fields_that_nobody_can_use_are_refused(change: Callable[[dict[str, Any]], None]) -> None:
    """They would be names and ranges in requests to the store."""
    found = fields()
    change(found)
    refused(reframed(found))


def test_a_list_of_dropped_keys_names_no_other_list() -> None:
    """It could name itself."""
    data = encode_dropped([Dropped(SAMPLE.sections[OWNER].items[0].key, 4, DroppedKind.LIST)])
    with pytest.raises(CorruptObject):
        decode_dropped(data, "sub/l")


def test_digits_of_other_scripts_are_not_ours() -> None:
    """The store refuses such a name, so the collector could never delete it."""
    prefix = "man/shared/0/"
    assert sequence_number(prefix + "\u0660" * 19 + "1", prefix) is None
    key = SAMPLE.sections[OWNER].items[1].key
    assert parse_data_key(key) is not None
    assert parse_data_key(key.replace("0-4-", "\u0660-4-", 1)) is None


def test_batches_without_an_index_are_refused() -> None:
    """A reader would take the object for an empty one, and skip its records."""
    with pytest.raises(CorruptObject):
        decode_footer(encode_footer(replace(FOOTER, index=())))


def reencoded(body: bytearray, data_size: int = FOOTER.data_size) -> bytes:
    """Returns a footer with another content, and a valid trailer."""
    trailer = bytearray(encode_footer(FOOTER)[-32:])
    pack_into(">IIq", trailer, 12, len(body), crc32c(bytes(body)), data_size)
    pack_into(">I", trailer, 28, crc32c(bytes(trailer[:28])))
    return bytes(body) + bytes(trailer)


def body() -> bytearray:
    return bytearray(encode_footer(FOOTER)[:-32])


def test_the_footer_of_a_test_can_be_read() -> None:
    assert decode_footer(reencoded(body())) == FOOTER


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [(16, ">i", -1), (20, ">i", -1), (48, ">q", -1), (56, ">q", -7), (40, ">q", -2)],
)
def test_negative_counts_are_refused(at: int, layout: str, value: int) -> None:
    changed = body()
    pack_into(layout, changed, at, value)
    with pytest.raises(CorruptObject):
        decode_footer(reencoded(changed))


def test_sections_of_a_footer_do_not_share_bytes() -> None:
    """A thousand of them would need a thousand times the memory."""
    changed = body()
    pack_into(">HHII", changed, FIXED + SECTION, 99, 0, 0, len(changed))
    with pytest.raises(CorruptObject):
        decode_footer(reencoded(changed))


def test_a_section_of_a_footer_is_there_once() -> None:
    changed = body()
    pack_into(">H", changed, FIXED + SECTION, 1)
    with pytest.raises(CorruptObject):
        decode_footer(reencoded(changed))


def test_the_index_and_the_epochs_fit_the_object() -> None:
    for index in (
        [b._replace(base_offset=-1) for b in FOOTER.index],
        [b._replace(base_offset=99) for b in FOOTER.index],
    ):
        with pytest.raises(CorruptObject):
            decode_footer(encode_footer(replace(FOOTER, index=tuple(index))))
    epochs = (*FOOTER.epochs, *FOOTER.epochs)
    with pytest.raises(CorruptObject):
        decode_footer(encode_footer(replace(FOOTER, epochs=epochs)))


def test_a_listing_that_makes_no_progress_is_refused() -> None:
    """The server ignores where the next page begins."""
    runner = Runner()

    def same_page(request: Request) -> object:
        assert isinstance(request, List)
        assert len(runner.asked) < 10
        return [ObjectInfo(f"a/{number}", 1, 0) for number in range(request.limit)]

    with pytest.raises(Refused, match="ignores the start of a listing"):
        runner.run(list_all("a/", page=5), same_page)
