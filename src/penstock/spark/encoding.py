"""Encodes the rows of a DataFrame as records.

The columns `key`, `value`, `headers`, `topic`, `partition` and `timestamp` mean what their names
say. If the value has a format, the `value` column may be left out: then all other columns become
fields of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructField, StructType

from penstock.client.errors import OptionError, SerializationFailed
from penstock.spark.formats import avro_codec
from penstock.spark.json_writing import check_json_type, write_json
from penstock.spark.options import Format, SinkOptions

Encode = Callable[[pa.Array], pa.Array]
_MEANINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": (),
    "value": (),
    "headers": ("array<struct<key:string,value:binary>>", "map<string,binary>"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz", "bigint"),
}
"""Columns with a meaning, and their allowed types. Those of key and value depend on the format."""


def check_columns(options: SinkOptions, schema: StructType) -> None:
    """Raises `OptionError` on the driver, before any task runs, if a column does not fit."""
    names = schema.fieldNames()
    _check_names(options, names)
    for field in schema.fields:
        if field.name == "key":
            _check_encodable(field, options.formats.key)
        elif field.name == "value":
            _check_encodable(field, options.formats.value)
        elif field.name not in _MEANINGS:
            if options.formats.value == "json":
                _check_json(field.name, field.dataType)
        elif field.dataType.simpleString() not in _MEANINGS[field.name]:
            raise OptionError(
                f"the column {field.name} is {field.dataType.simpleString()}: it must be "
                f"{' or '.join(_MEANINGS[field.name])}"
            )


def _check_names(options: SinkOptions, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise OptionError(
            f"there is more than one column {', '.join(twice)}: rename or drop all but one"
        )
    if options.topic is None and "topic" not in names:
        raise OptionError(
            "the topic to write to is missing: set the option topic, or add a topic column"
        )
    fields = [name for name in names if name not in _MEANINGS]
    structured = options.formats.value in ("json", "avro")
    if "value" not in names and not (structured and fields):
        raise OptionError(
            "there is no value column: rename a column to value, or set valueFormat to json or "
            "avro to send the other columns as fields"
        )
    if fields and ("value" in names or not structured):
        raise OptionError(
            f"columns {', '.join(fields)} are not parts of a record: drop them, or set valueFormat "
            "to json or avro and leave out the value column, to send them as fields"
        )


def _check_encodable(field: StructField, kind: Format) -> None:
    shown = field.dataType.simpleString()
    if kind in ("bytes", "string") and not isinstance(field.dataType, BinaryType | StringType):
        raise OptionError(
            f"the column {field.name} is {shown}: cast it to string or binary, or set "
            f"{field.name}Format to json or avro"
        )
    if kind == "json":
        if not isinstance(field.dataType, StructType | MapType):
            raise OptionError(
                f"the column {field.name} is {shown}, but {field.name}Format=json needs a struct "
                f"or a map; for text that is already JSON, set {field.name}Format to string"
            )
        _check_json(field.name, field.dataType)


def _check_json(name: str, kind: DataType) -> None:
    try:
        arrow = to_arrow_schema(StructType([StructField(name, kind)]), timezone="UTC")
    except Exception as error:
        raise OptionError(f"the column {name} cannot be written as JSON: {error}") from error
    check_json_type(arrow.field(0).type, name)


class Encoder:
    def __init__(self, options: SinkOptions) -> None:
        formats = options.formats
        self._key = _encode(formats.key, formats.key_schema, formats.key_schema_id)
        self._value = _encode(formats.value, formats.value_schema, formats.value_schema_id)
        if options.is_quarantine and formats.value == "json":
            self._value = partial(write_json, non_finite_as_text=True)

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows with encoded keys and values, for `send_table`."""
        names = batch.schema.names
        columns = {name: batch.column(name) for name in names if name in _MEANINGS}
        if "value" not in columns:
            fields = [name for name in names if name not in _MEANINGS]
            columns["value"] = pa.StructArray.from_arrays(
                [batch.column(name) for name in fields], fields
            )
        columns["value"] = self._value(columns["value"])
        if "key" in columns:
            columns["key"] = self._key(columns["key"])
        return pa.RecordBatch.from_pydict(columns)


def _encode(kind: Format, schema: str, schema_id: int | None) -> Encode:
    if kind == "json":
        return write_json
    if kind == "avro":
        return _avro(schema, schema_id)
    return lambda column: column


def _avro(schema: str, schema_id: int | None) -> Encode:
    serialize = avro_codec(schema, schema_id).serialize

    def encode(column: pa.Array) -> pa.Array:
        encoded = []
        for value in column.to_pylist(maps_as_pydicts="strict"):
            try:
                encoded.append(None if value is None else serialize(value))
            except Exception as error:  # Any exception of fastavro means that the row does not fit.
                raise SerializationFailed(
                    f"{str(value)[:200]} does not match the Avro schema: {error}"
                ) from error
        return pa.array(encoded, pa.binary())

    return encode
