"""Tests rows as records: JSON by whole columns, and the columns that the driver refuses."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.client.errors import OptionError, SerializationFailed
from penstock.spark.encoding import Encoder, check_columns
from penstock.spark.formats import decoder
from penstock.spark.json_writing import write_json
from penstock.spark.options import Format, Formats, SinkOptions

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
RICH = pa.struct(
    [
        ('odd " name', pa.int64()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("number", pa.float64()),
        ("price", pa.decimal128(12, 3)),
        ("raw", pa.binary()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("list", pa.list_(pa.list_(pa.string()))),
        ("map", pa.map_(pa.string(), pa.struct([("x", pa.int8())]))),
    ]
)
VALUES = st.fixed_dictionaries(
    {
        'odd " name': st.none() | st.integers(-(2**63), 2**63 - 1),
        "text": st.none() | TEXT,
        "flag": st.none() | st.booleans(),
        "number": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "price": st.none()
        | st.decimals(-999_999_999, 999_999_999, places=3, allow_nan=False, allow_infinity=False),
        "raw": st.none() | st.binary(max_size=8),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "local": st.none() | st.datetimes(),
        "day": st.none() | st.dates(),
        "list": st.none()
        | st.lists(st.none() | st.lists(st.none() | TEXT, max_size=3), max_size=3),
        "map": st.none()
        | st.dictionaries(
            TEXT, st.none() | st.fixed_dictionaries({"x": st.integers(-128, 127)}), max_size=3
        ).map(lambda entries: list(entries.items())),
    }
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.none() | VALUES, max_size=6), st.integers(0, 3))
def test_written_json_is_valid_and_read_back(rows: list[Any], skipped: int) -> None:
    """For any value of any type: json.loads accepts the text, and the source returns the value."""
    column = pa.array(rows, RICH)[skipped:]  # A slice must not contain rows outside of it.
    written = write_json(column)
    for text, row in zip(written.to_pylist(), rows[skipped:], strict=True):
        assert (text is None) == (row is None)
        if text is not None:
            assert json.loads(text)["text"] == row["text"]
            assert json.loads(text)['odd " name'] == row['odd " name']
    decoded = decoder("json", "", RICH)(written)
    assert not decoded.bad
    assert decoded.column.to_pylist() == column.to_pylist()


def test_the_json_text_of_each_type() -> None:
    """Fixed here, because other readers depend on it."""
    row = {
        'odd " name': 1,
        "text": 'a"\\\n\x01ü',
        "flag": True,
        "number": 0.5,
        "price": Decimal("1.200"),
        "raw": b"\xff",
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "local": datetime(2026, 1, 2),  # noqa: DTZ001 (a local time is what is tested)
        "day": date(2026, 1, 2),
        "list": [["a", None], None],
        "map": [("k", {"x": 1}), ("n", None)],
    }
    assert write_json(pa.array([row], RICH))[0].as_py().decode() == (
        '{"odd \\" name":1,"text":"a\\"\\\\\\n\\u0001ü","flag":true,"number":0.5,"price":1.200,'
        '"raw":"/w==","at":"2026-01-02T03:04:05.000006Z","local":"2026-01-02T00:00:00.000000",'
        '"day":"2026-01-02","list":[["a",null],null],"map":{"k":{"x":1},"n":null}}'
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_cannot_represent_are_refused(number: float) -> None:
    """No text that other readers cannot parse, and no silent null. The error names the column."""
    column = pa.array([{"a": {"b": 1.0}}, {"a": {"b": number}}])
    with pytest.raises(SerializationFailed, match=r"value\.a\.b contains NaN or an infinity"):
        write_json(column)


def test_timestamps_of_any_time_zone_are_written_in_utc() -> None:
    column = pa.array([{"at": 0}], pa.struct([("at", pa.timestamp("us", "America/New_York"))]))
    assert write_json(column)[0].as_py() == b'{"at":"1970-01-01T00:00:00.000000Z"}'


def sink(topic: str | None = "t", *, key: Format = "bytes", value: Format = "bytes") -> SinkOptions:
    return SinkOptions("localhost:9092", topic, Formats(key=key, value=value))


def columns(**kinds: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


HEADERS = ArrayType(columns(key=StringType(), value=BinaryType()))


@pytest.mark.parametrize(
    ("options", "schema"),
    [
        (sink(), columns(value=StringType())),
        (sink(None), columns(topic=StringType(), value=BinaryType(), key=StringType())),
        (sink(), columns(value=BinaryType(), headers=HEADERS, partition=IntegerType())),
        (sink(), columns(value=BinaryType(), timestamp=TimestampType())),
        (sink(value="json"), columns(key=StringType(), a=LongType(), b=StringType())),
        (sink(value="json"), columns(value=columns(a=LongType()))),
        (sink(value="json"), columns(value=MapType(StringType(), LongType()))),
        (sink(value="avro"), columns(a=LongType())),
    ],
)
def test_columns_that_can_be_written(options: SinkOptions, schema: StructType) -> None:
    check_columns(options, schema)


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        (sink(None), columns(value=StringType()), "set the option topic, or add a topic column"),
        (sink(), columns(key=StringType()), "there is no value column"),
        (sink(), columns(value=StringType(), a=LongType(), b=LongType()), "columns a, b are not"),
        (sink(), columns(value=LongType()), "column value is bigint: cast it to string or binary"),
        (sink(), columns(value=StringType(), key=LongType()), "column key is bigint"),
        (sink(), columns(value=StringType(), partition=LongType()), "partition is bigint.*int"),
        (sink(), columns(value=StringType(), topic=LongType()), "topic is bigint: it must be str"),
        (sink(), columns(value=StringType(), headers=StringType()), "headers is string: it must"),
        (sink(), columns(value=StringType(), timestamp=StringType()), "timestamp is string"),
        (sink(value="json"), columns(value=StringType()), "set valueFormat to string"),
        (sink(value="json"), columns(key=StringType(), topic=StringType()), "no value column"),
        (sink(value="json"), columns(a=DayTimeIntervalType()), "a .*which JSON does not have"),
        (sink(value="json"), columns(a=MapType(LongType(), LongType())), "keys that are not str"),
        (
            sink(),
            StructType([StructField("value", StringType()), StructField("value", StringType())]),
            "more than one column value",
        ),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    options: SinkOptions, schema: StructType, message: str
) -> None:
    """On the driver, with an error that says what to do."""
    with pytest.raises(OptionError, match=message):
        check_columns(options, schema)


def test_other_columns_become_fields_of_the_value() -> None:
    """With a format and without a value column, all columns without a
    special meaning form the value."""
    batch = pa.RecordBatch.from_pydict({"key": ["k"], "a": [1], "b": ["x"], "partition": [3]})
    encoded = Encoder(sink(value="json")).encode(batch)
    assert encoded.to_pylist() == [{"key": "k", "partition": 3, "value": b'{"a":1,"b":"x"}'}]


def test_a_key_with_a_format() -> None:
    batch = pa.RecordBatch.from_pydict({"key": [{"id": 1}, None], "value": ["v", None]})
    encoded = Encoder(sink(key="json")).encode(batch)
    assert encoded.column("key").to_pylist() == [b'{"id":1}', None]
    assert encoded.column("value").to_pylist() == ["v", None]
