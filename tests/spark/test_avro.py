"""Tests Avro: schemas as Spark types, records as rows and back."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.errors import OptionError, SerializationFailed
from penstock.client.serializers import Avro
from penstock.spark.avro_types import avro_ddl
from penstock.spark.encoding import Encoder
from penstock.spark.formats import avro_decoder
from penstock.spark.options import Formats, SinkOptions

pytest.importorskip("fastavro", reason="the avro format needs fastavro: pip install fastavro")


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def record(**fields: Any) -> str:
    return json.dumps(
        {
            "type": "record",
            "name": "row",
            "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
        }
    )


RICH = record(
    id="long",
    small="int",
    name=["null", "string"],
    ok="boolean",
    ratio="double",
    raw="bytes",
    day=logical("int", "date"),
    at=logical("long", "timestamp-micros"),
    local=logical("long", "local-timestamp-millis"),
    price=logical("bytes", "decimal", precision=10, scale=2),
    uuid=logical("string", "uuid"),
    clock=logical("int", "time-millis"),
    fine=logical("long", "time-micros"),
    color={"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]},
    tags={"type": "array", "items": ["null", "string"]},
    counts={"type": "map", "values": "long"},
    inner={"type": "record", "name": "inner", "fields": [{"name": "x", "type": "float"}]},
)
RICH_ARROW = pa.struct(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("name", pa.string()),
        ("ok", pa.bool_()),
        ("ratio", pa.float64()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(10, 2)),
        ("uuid", pa.string()),
        ("clock", pa.int32()),
        ("fine", pa.int64()),
        ("color", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("inner", pa.struct([("x", pa.float32())])),
    ]
)
ROW = {
    "id": 2**40,
    "small": -1,
    "name": None,
    "ok": True,
    "ratio": 0.1,
    "raw": b"\xff\x00",
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "local": datetime(2026, 1, 2, 3, 4, 5, 6000),  # noqa: DTZ001 (a local time is what is tested)
    "price": Decimal("12345678.90"),
    "uuid": "3a82adad-f36e-496c-b4fd-a55b13803eb9",
    "clock": 86_399_999,
    "fine": 86_399_999_999,
    "color": "BLUE",
    "tags": ["a", None],
    "counts": [("a", 1)],
    "inner": {"x": 0.5},
}


def test_each_avro_type_has_a_spark_type() -> None:
    """Names and types in order, nested ones too."""
    assert avro_ddl(RICH, "valueSchema") == (
        "STRUCT<`id`: BIGINT, `small`: INT, `name`: STRING, `ok`: BOOLEAN, `ratio`: DOUBLE, "
        "`raw`: BINARY, `day`: DATE, `at`: TIMESTAMP, `local`: TIMESTAMP_NTZ, "
        "`price`: DECIMAL(10, 2), `uuid`: STRING, `clock`: INT, `fine`: BIGINT, "
        "`color`: STRING, `tags`: ARRAY<STRING>, `counts`: MAP<STRING, BIGINT>, "
        "`inner`: STRUCT<`x`: FLOAT>>"
    )


def test_a_named_type_may_be_referenced_by_either_name() -> None:
    """With or without its namespace."""
    point = {
        "type": "record",
        "name": "point",
        "namespace": "geo",
        "fields": [{"name": "x", "type": "int"}],
    }
    schema = record(a=point, b="geo.point", c=["null", "point"])
    assert avro_ddl(schema, "valueSchema") == (
        "STRUCT<`a`: STRUCT<`x`: INT>, `b`: STRUCT<`x`: INT>, `c`: STRUCT<`x`: INT>>"
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "valueSchema is not an Avro schema in JSON"),
        (record(a=["int", "string"]), "only a type or null is supported"),
        (record(a="strange"), "not an Avro type"),
        (record(a=["null", "row"]), "contains itself"),
    ],
)
def test_schemas_that_no_table_can_have_are_refused(schema: str, message: str) -> None:
    """With the reason and the option's name."""
    with pytest.raises(OptionError, match=message):
        avro_ddl(schema, "valueSchema")


def encoder(schema: str) -> Encoder:
    return Encoder(SinkOptions("localhost:9092", "t", Formats(value="avro", value_schema=schema)))


def test_rows_survive_encoding_and_decoding() -> None:
    """fastavro can read what the sink writes, and the source returns the same rows."""
    column = pa.array([ROW, None], RICH_ARROW)
    batch = pa.RecordBatch.from_arrays([column], ["value"])
    written = encoder(RICH).encode(batch).column("value")
    assert Avro(RICH).deserialize(written[0].as_py())["id"] == ROW["id"]
    decoded = avro_decoder(RICH, RICH_ARROW)(written)
    assert not decoded.bad
    assert decoded.column.to_pylist() == [ROW, None]


def test_schema_registry_prefixes() -> None:
    """With a schema id, values are prefixed with it. A record with another id or none is bad."""
    schema, target = record(a="int"), pa.struct([("a", pa.int32())])
    prefixed, other, bare = (
        Avro(schema, schema_id=7).serialize({"a": 1}),
        Avro(schema, schema_id=8).serialize({"a": 1}),
        Avro(schema).serialize({"a": 1}),
    )
    assert prefixed[:5] == b"\x00\x00\x00\x00\x07"
    decoded = avro_decoder(schema, target, 7)(pa.array([prefixed, other, bare], pa.binary()))
    assert decoded.column.to_pylist() == [{"a": 1}, None, None]
    assert "schema id 8 is not known" in decoded.bad[1]
    assert "does not begin with a schema registry prefix" in decoded.bad[2]


def test_records_of_another_schema_are_bad() -> None:
    """Too short, too long, and values that the column's type cannot hold."""
    schema, target = record(a="long"), pa.struct([("a", pa.int64())])
    good = Avro(schema).serialize({"a": 1})
    decoded = avro_decoder(schema, target)(pa.array([good, b"", good + b"x", None], pa.binary()))
    assert decoded.column.to_pylist() == [{"a": 1}, None, None, None]
    assert sorted(decoded.bad) == [1, 2]
    assert "left over" in decoded.bad[2]


def test_a_value_too_large_for_its_column_affects_no_other() -> None:
    """A decimal with more digits than its schema allows does not affect its neighbors."""
    wide = record(a=logical("bytes", "decimal", precision=20, scale=2))
    narrow = record(a=logical("bytes", "decimal", precision=4, scale=2))
    values = [Decimal("1.25"), Decimal("123456789.25"), Decimal("2.50")]
    written = [Avro(wide).serialize({"a": value}) for value in values]
    decoded = avro_decoder(narrow, pa.struct([("a", pa.decimal128(4, 2))]))(
        pa.array(written, pa.binary())
    )
    assert list(decoded.bad) == [1]
    assert decoded.column[2].as_py() == {"a": Decimal("2.50")}


def test_rows_that_do_not_fit_the_schema_fail_the_task() -> None:
    """The error shows which value did not fit."""
    batch = pa.RecordBatch.from_pydict({"value": [{"a": "text"}]})
    with pytest.raises(SerializationFailed, match=r"'text'.* does not match the Avro schema"):
        encoder(record(a="int")).encode(batch)


@pytest.mark.parametrize("schema", ["{", '{"type": "nothing"}'])
def test_an_invalid_schema_is_refused_when_the_sink_is_created(schema: str) -> None:
    with pytest.raises(OptionError, match="Avro schema"):
        encoder(schema)
