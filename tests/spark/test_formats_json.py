"""Tests JSON columns as structs: Arrow must read the same as Python's json."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from time import process_time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.formats import Decoded, decoder
from penstock.testing.slowness import patient

FLAT = pa.struct([("id", pa.int64()), ("name", pa.string()), ("ok", pa.bool_())])
RICH = pa.struct(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("in", pa.struct([("x", pa.float64()), ("y", pa.list_(pa.struct([("z", pa.int8())])))])),
        ("by", pa.map_(pa.string(), pa.int64())),
    ]
)
MAPLESS = pa.struct([RICH.field(index) for index in range(RICH.num_fields - 1)])


def decode(values: list[bytes | None], target: pa.DataType = FLAT) -> Decoded:
    decoded = decoder("json", "", target)(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    assert len(decoded.column) == len(values)
    assert decoded.column.type == target
    assert all(decoded.column[row].as_py() is None for row in decoded.bad)
    return decoded


def alone(value: bytes | None, target: pa.DataType = FLAT) -> Decoded:
    return decode([value], target)


def test_missing_fields_are_null_and_unknown_ones_are_ignored() -> None:
    """Fields are matched by name."""
    decoded = decode([b'{"name":"ann","id":7,"more":[1,{"a":null}]}', b"{}"])
    assert decoded.column.to_pylist() == [
        {"id": 7, "name": "ann", "ok": None},
        {"id": None, "name": None, "ok": None},
    ]
    assert not decoded.bad


def test_every_type_is_decoded() -> None:
    """Dates, timestamps, decimals, binary, lists, structs and maps."""
    text = (
        b'{"id":1,"name":"\\u00fc","at":"2026-01-02T03:04:05.000006+01:00","day":"2026-01-02",'
        b'"price":12345678.90,"raw":"/w==","tags":["a",null],"in":{"x":1e3,"y":[{"z":-1},null]},'
        b'"by":{"a":1,"b":null}}'
    )
    assert decode([text], RICH).column.to_pylist() == [
        {
            "id": 1,
            "name": "ü",
            "at": datetime(2026, 1, 2, 2, 4, 5, 6, tzinfo=UTC),
            "day": date(2026, 1, 2),
            "price": Decimal("12345678.90"),
            "raw": b"\xff",
            "tags": ["a", None],
            "in": {"x": 1000.0, "y": [{"z": -1}, None]},
            "by": [("a", 1), ("b", None)],
        }
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"id":1', "not JSON"),
        (b'{"id":1}}', "not JSON"),
        (b'{"id":1}{"id":2}', "not JSON"),
        (b'{"id":1} null', "not JSON"),
        (b'{"id":1}null{"id":2}', "not JSON"),
        (b"null", "not an object"),
        (b"[1]", "not an object"),
        (b'"text"', "not an object"),
        (b"\xff\xfe", "utf-8"),
        (b'{"name":"\xff"}', "utf-8"),
        (b'{"name":"a\nb"}', "not JSON"),
        (b'{"id":"7"}', 'id is "7", not BIGINT'),
        (b'{"id":1.0}', "id is 1.0, not BIGINT"),
        (b'{"id":9223372036854775808}', "not BIGINT"),
        (b'{"ok":1}', "ok is 1, not BOOLEAN"),
        (b'{"name":{"a":1}}', 'name is {"a": 1}, not STRING'),
        (b'{"id":1,"id":2}', "twice"),
        (b'{"name":"\\ud800"}', "surrogate"),
        (b"\xef\xbb\xbf{}", "BOM"),
        ('{"id":1}'.encode("utf-16-le"), "not JSON"),
    ],
)
def test_bad_records_are_null_with_a_reason(value: bytes, reason: str) -> None:
    """A bad record does not affect its neighbors."""
    good = b'{"id":5}'
    decoded = decode([good, value, good])
    assert list(decoded.bad) == [1]
    assert reason in decoded.bad[1]
    assert [row and row["id"] for row in decoded.column.to_pylist()] == [5, None, 5]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"in":{"y":[{"z":1},{"z":128}]}}', "in.y[1].z is 128, not TINYINT"),
        (b'{"tags":["a",5]}', "tags[1] is 5, not STRING"),
        (b'{"tags":"a"}', 'tags is "a", not an ARRAY'),
        (b'{"by":{"a":"b"}}', 'by.a is "b", not BIGINT'),
        (b'{"by":[1]}', "by is [1], not an object"),
        (b'{"at":"yesterday"}', "not a TIMESTAMP"),
        (b'{"at":5}', "not a TIMESTAMP"),
        (b'{"day":"2026-13-01"}', "not a DATE"),
        (b'{"day":"2026-02-30"}', "2026-02-30"),
        (b'{"raw":"?"}', "not BINARY in base64"),
        (b'{"price":1.234}', "not a DECIMAL(10, 2)"),
        (b'{"price":123456789.0}', "not a DECIMAL(10, 2)"),
        (b'{"price":true}', "not a DECIMAL(10, 2)"),
    ],
)
def test_reasons_name_the_field(value: bytes, reason: str) -> None:
    """At any depth, with the value found and the expected type."""
    decoded = decode([b"{}", value], RICH)
    assert reason in decoded.bad[1]
    assert decode([b"{}"], RICH).bad == {}


def test_nulls_are_tombstones_and_not_bad_records() -> None:
    decoded = decode([None, b'{"id":1}', None])
    assert decoded.column.to_pylist() == [None, {"id": 1, "name": None, "ok": None}, None]
    assert not decoded.bad


def test_line_breaks_between_tokens_are_ignored() -> None:
    """Pretty-printed JSON is valid JSON."""
    text = json.dumps({"id": 1, "name": "a"}, indent=2).encode()
    assert decode([text, text]).column.to_pylist() == [{"id": 1, "name": "a", "ok": None}] * 2


def test_a_missing_not_null_field_is_a_bad_record() -> None:
    """Spark relies on NOT NULL."""
    target = pa.struct([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    decoded = decode([b'{"id":1}', b'{"name":"a"}', b'{"id":null}', None], target)
    assert sorted(decoded.bad) == [1, 2]
    assert "NOT NULL" in decoded.bad[1]


def test_very_large_values() -> None:
    """Values of several megabytes, and several at once, are read like any others."""
    name = "x" * (3 << 20)
    text = json.dumps({"id": 1, "name": name}).encode()
    decoded = decode([text, b'{"id":2}', text])
    assert decoded.column[2].as_py()["name"] == name
    assert not decoded.bad


def test_deep_nesting_in_ignored_fields() -> None:
    """Deeper than Python's parser supports."""
    deep = b'{"z":' + b"[" * 5000 + b"]" * 5000 + b',"id":1}'
    assert decode([deep, b'{"id":"bad"}']).column.to_pylist()[0]["id"] == 1


def test_text_that_resembles_null_is_still_decoded_in_one_pass() -> None:
    """Text that looks like the `null` that Arrow cannot handle costs an extra check,
    but no separate decoding."""
    texts: list[bytes | None] = [b'{"id":%d,"name":"{a}none"}' % row for row in range(20_000)]
    began = process_time()
    decoded = decode(texts)
    assert process_time() - began < patient(5)
    assert decoded.column[19_999].as_py()["name"] == "{a}none"
    assert not decoded.bad


@pytest.mark.parametrize(
    "bad",
    [
        b'{"id":"wrong type"}',
        b'{"id":1',
        b"\xff",
        b"null",
        b'{"id":1.5}',
        b'{"at":"tomorrow"}',
        b'{"raw":"*"}',
        b'{"price":0.001}',
    ],
)
def test_many_bad_records_are_fast(bad: bytes) -> None:
    """A tenth of 100,000 records is bad: this takes seconds, not minutes."""
    rows = 100_000
    good = b'{"id":1,"name":"somebody","at":"2026-01-02T03:04:05Z","price":1.25}'
    began = process_time()
    decoded = decode([bad if row % 10 == 0 else good for row in range(rows)], MAPLESS)
    assert process_time() - began < patient(10)
    assert len(decoded.bad) == rows // 10
    assert decoded.column.null_count == rows // 10


# -- against Python's own json ---------------------------------------------------------------------

SCALARS = {
    "id": st.integers(-(2**31), 2**31 - 1),
    "name": st.text(st.characters(exclude_categories=["Cs"])),
    "tags": st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    "in": st.fixed_dictionaries(
        {},
        optional={
            "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "y": st.none()
            | st.lists(st.none() | st.fixed_dictionaries({"z": st.integers(-128, 127)})),
        },
    ),
    "by": st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 9)),
    "more": st.recursive(
        st.none() | st.booleans() | st.integers() | st.text('ab{}[]null\\" '),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
        max_leaves=5,
    ),
}
OBJECTS = st.fixed_dictionaries(
    {}, optional={name: st.none() | values for name, values in SCALARS.items()}
)


def expected(value: Any, kind: pa.DataType) -> Any:
    """Returns what Python's json reads, in the form in which Arrow shows it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        fields = map(kind.field, range(kind.num_fields))
        return {field.name: expected(value.get(field.name), field.type) for field in fields}
    if pa.types.is_map(kind):
        return list(value.items())
    if pa.types.is_list(kind):
        return [expected(item, kind.value_type) for item in value]
    return value


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.none() | OBJECTS, max_size=8),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from([RICH, MAPLESS]),
)
def test_decoding_equals_pythons_json(
    objects: list[Any], ascii_only: bool, indent: int | None, target: pa.DataType
) -> None:
    """Everything that json.dumps writes is read as json.loads reads it."""
    texts = [
        None if value is None else json.dumps(value, ensure_ascii=ascii_only, indent=indent)
        for value in objects
    ]
    decoded = decode([text if text is None else text.encode() for text in texts], target)
    assert not decoded.bad
    assert decoded.column.to_pylist() == [
        None if text is None else expected(json.loads(text), target) for text in texts
    ]


TOKENS = [
    *(b"null", b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\u0000", b"\\ud800", b"1e999", b"-"),
    *(b"true", b"\x00", b"\xff", b"\n", b"\r", b"\x0c", b" ", b'"id"', b"NaN", b"Inf", b"Infinity"),
    *(b"1.5", b'"2026-01-02"', b'"2026-01-02 03:04"', b'"1.2"', b"{}", b"{}null{}"),
]
WHOLE = [
    b'{"id":1,"at":"2026-01-01T00:00:00Z","tags":["x",null],"in":{"x":1.5,"y":[]},"z":[{"q":1}]}',
    b'{"id":null,"in":null,"tags":null,"price":"1.20","day":"2026-01-02","raw":"aGk="}',
    b"{}",
    b' {"name":"}null"} ',
]


def damaged(random: Random) -> bytes:
    value = bytearray(random.choice(WHOLE))
    for _ in range(random.choice([0, 0, 1, 1, 2, 5])):
        kind, topic_partition = random.randrange(3), random.randrange(len(value) + 1)
        if kind == 0:
            value[topic_partition:topic_partition] = random.choice(TOKENS)
        elif kind == 1:
            del value[topic_partition : topic_partition + random.randrange(1, 6)]
        else:
            value[topic_partition : topic_partition + 1] = bytes([random.randrange(256)])
    return bytes(value)


@pytest.mark.parametrize("target", [MAPLESS, RICH], ids=["flat lists", "with maps"])
def test_damaged_values_never_crash_the_process(target: pa.DataType) -> None:
    """Thousands of damaged values: no crash, and each has the same result as when decoded alone."""
    random = Random(5)
    for _ in range(60):
        values = [damaged(random) for _ in range(random.randrange(1, 30))]
        together = decode([*values], target)
        for row, value in enumerate(values):
            single = alone(value, target)
            assert (row in together.bad) == (0 in single.bad), value
            assert repr(single.column[0].as_py()) == repr(together.column[row].as_py()), value


@pytest.mark.parametrize(
    ("kind", "samples"),
    [
        (pa.timestamp("us", "UTC"), ["2026-01-02", "2026-01-02 03", "2026-01-02T03:04:05.12+0130"]),
        (pa.decimal128(6, 3), ["1.250", "-1e2", "123456", "0.001", ".5", "5.", "+1"]),
    ],
)
def test_the_check_in_python_is_never_stricter_than_arrow(
    kind: pa.DataType, samples: list[str]
) -> None:
    """Values at the limits of a type: decoded next to a bad record, they are bad
    only if they are bad alone."""
    random = Random(7)
    target = pa.struct([("a", kind)])
    for _ in range(300):
        text = list(random.choice(samples))
        for _ in range(random.randrange(3)):
            topic_partition = random.randrange(len(text) + 1)
            text[topic_partition : topic_partition + random.randrange(2)] = random.choice(
                "0123456789-:.TZ+ eE"
            )
        value = json.dumps({"a": "".join(text)}).encode()
        beside = decode([value, b'{"a":[]}'], target)
        assert (0 in beside.bad) == bool(alone(value, target).bad), value
