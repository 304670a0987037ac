"""Decodes the keys and values of records into typed columns.

Decoding works on a whole column. Text is checked and reinterpreted without a copy, JSON is read by
Arrow's own reader, and only Avro is read record by record. A value that cannot be decoded is null
in the result and listed as bad, with the reason. `bad_records` decides what happens to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import time
from typing import Any, Final, NamedTuple
from uuid import UUID

import pyarrow as pa

from penstock.client.errors import OptionError
from penstock.client.serializers import Avro
from penstock.spark.options import Format


class Decoded(NamedTuple):
    column: pa.Array
    bad: Mapping[int, str]
    """Row -> why it could not be decoded."""


Decoder = Callable[[pa.Array], Decoded]
_NONE_BAD: Final[Mapping[int, str]] = {}


def decoder(
    kind: Format, schema: str, target: pa.DataType, schema_id: int | None = None
) -> Decoder:
    """Returns a function that converts a column of bytes to a column of the target type."""
    if kind == "bytes":
        return lambda column: Decoded(column, _NONE_BAD)
    if kind == "string":
        return decode_text
    if kind == "json":
        return json_decoder(target)
    return avro_decoder(schema, target, schema_id)


def decode_text(column: pa.Array) -> Decoded:
    text = pa.Array.from_buffers(
        pa.string(), len(column), column.buffers(), column.null_count, column.offset
    )
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return _one_by_one(column, lambda data: data.decode("utf-8"), pa.string())
    return Decoded(text, _NONE_BAD)


def json_decoder(target: pa.StructType) -> Decoder:
    # Imports slow down the start of every worker process, and most topics are not JSON.
    from penstock.spark.json_reading import JsonReader  # noqa: PLC0415 -- only when used

    reader = JsonReader(target)

    def decode(column: pa.Array) -> Decoded:
        texts = decode_text(column)
        structs, bad = reader.read(texts.column)
        return Decoded(structs, {**texts.bad, **bad})

    return decode


def avro_codec(schema: str, schema_id: int | None = None) -> Avro:
    """Returns an Avro codec. With an id, values begin with a schema registry's prefix, and a record
    with another id is bad."""
    try:
        return Avro(json.loads(schema), schema_id=schema_id)
    except ImportError:
        raise OptionError(
            "the avro format needs fastavro on the driver and on executors: "
            'pip install "penstock[avro]"'
        ) from None
    except Exception as error:  # noqa: BLE001 (fastavro's errors have no common parent)
        raise OptionError(f"the Avro schema is not valid: {error}") from None


def avro_decoder(schema: str, target: pa.DataType, schema_id: int | None = None) -> Decoder:
    read = avro_codec(schema, schema_id).deserialize
    if not any(name in schema for name in _UNLIKE_SPARK):
        return lambda column: _one_by_one(column, read, target)
    return lambda column: _one_by_one(
        column, lambda data: _as_spark_has_it(read(data), target), target
    )


_UNLIKE_SPARK: Final = ("uuid", "time-millis", "time-micros")
"""Logical types that fastavro returns as objects, while Spark's column has text or numbers."""


def _as_spark_has_it(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, dict):
        is_map = pa.types.is_map(kind)
        return {
            name: _as_spark_has_it(each, kind.item_type if is_map else kind.field(name).type)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [_as_spark_has_it(each, kind.value_type) for each in value]
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        microseconds = seconds * 1_000_000 + value.microsecond
        return microseconds // 1000 if kind == pa.int32() else microseconds
    return value


def _one_by_one(column: pa.Array, read: Callable[[bytes], Any], target: pa.DataType) -> Decoded:
    bad: dict[int, str] = {}
    values: list[Any] = []
    for row, data in enumerate(column.to_pylist()):
        value = None
        if data is not None:
            try:
                value = read(data)
            except Exception as error:  # noqa: BLE001 (any exception means that the record is bad)
                bad[row] = str(error) or type(error).__name__
        values.append(value)
    try:
        return Decoded(pa.array(values, target), bad)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        # A value is outside the range of the column's type. This is rare, so the search is slow.
        for row, value in enumerate(values):
            try:
                pa.array([value], target)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                values[row], bad[row] = None, f"not a valid {target}: {error}"
        return Decoded(pa.array(values, target), bad)
