"""Tests how bytes are displayed: detected format, requested format, truncation."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.model import Record
from penstock.console.shown import Format, indented, show, show_record


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"hello", "text"),
        ("grüße\n".encode(), "text"),
        (b'{"a": 1}', "json"),
        (b" [1, 2]", "json"),
        (b"17", "text"),
        (b"{not json", "text"),
        (b"\x00\x01", "hex"),
        (b"\xff\xfe", "hex"),
        (b"", "text"),
    ],
)
def test_the_format_is_detected(data: bytes, kind: str) -> None:
    """JSON if possible, otherwise text, otherwise hex."""
    assert show(data, Format())["kind"] == kind


def test_null_is_distinguished_from_an_empty_value() -> None:
    """A tombstone is not an empty text."""
    assert show(None, Format())["kind"] == "null"
    assert show(b"", Format()) == {"kind": "text", "text": "", "bytes": 0, "cut": False}


def test_a_hex_dump_is_cut_by_lines() -> None:
    """Only the displayed part is generated: a megabyte costs no more than a line."""
    shown = show(b"\x00A" * 500_000, Format("hex"))
    assert shown["text"].startswith("00000000  00 41 00 41 ")
    assert shown["text"].splitlines()[0].endswith("|.A.A.A.A.A.A.A.A|")
    assert shown["cut"]
    assert shown["bytes"] == 1_000_000
    assert len(shown["text"]) <= 1_000


def test_text_is_truncated_unless_requested_in_full() -> None:
    """Complete JSON is indented."""
    text = json.dumps({"a": "x" * 2_000})
    assert show(text.encode(), Format())["cut"]
    whole = show(text.encode(), Format(characters_max=None))
    assert not whole["cut"]
    assert whole["text"].startswith('{\n  "a": "xxx')


def test_avro_with_and_without_a_schema_registrys_prefix() -> None:
    """Bytes that cannot be decoded are shown as hex."""

    def decode(data: bytes) -> object:
        if data != b"\x08shoe":
            raise ValueError("not mine")
        return {"sku": "shoe", "raw": b"\x01"}

    for data in (b"\x08shoe", b"\x00\x00\x00\x00\x07\x08shoe"):
        shown = show(data, Format("avro", decode))
        assert json.loads(shown["text"]) == {"sku": "shoe", "raw": "01"}
    assert show(b"junk", Format("avro", decode))["kind"] == "hex"


def test_a_record_is_shown_with_all_its_fields() -> None:
    """Keys and headers of an Avro topic are shown in their detected format."""
    record = Record[bytes | None, bytes | None]("t", 1, 5, 9, b"k", None, (("h", b"v"),))
    shown = show_record(record, Format("avro", lambda data: data))
    assert (shown["partition"], shown["offset"], shown["key"]["text"]) == (1, 5, "k")
    assert shown["headers"][0][1]["text"] == "v"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, max_examples=150)
@given(_JSON, st.sampled_from([None, 1, "\t"]))
def test_indenting_changes_no_value(value: object, indent: int | str | None) -> None:
    """For any whitespace in the input."""
    text = json.dumps({"v": value}, indent=indent, ensure_ascii=False)
    assert json.loads(indented(text)) == {"v": value}


def test_indenting_keeps_the_digits_of_numbers() -> None:
    """Numbers are not parsed and written again."""
    text = '{"price":1.10,"id":12345678901234567890123,"e":[],"f":{ }}'
    assert indented(text) == (
        '{\n  "price": 1.10,\n  "id": 12345678901234567890123,\n  "e": [],\n  "f": {}\n}'
    )


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.sampled_from(["auto", "json", "text", "hex"]))
def test_any_bytes_can_be_displayed(data: bytes, name: str) -> None:
    shown = show(data, Format(name))
    assert shown["bytes"] == len(data)
    assert isinstance(shown["text"], str)
