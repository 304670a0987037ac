"""Defines the columns of a source, as Spark's DDL: the callers have no session to build types with.

The columns are those of Spark's Kafka source. A key or value with a format has that format's type
instead of BINARY: text, or a struct. A query selects a struct's fields as `value.name`, or all of
them as `value.*`. With `badRecords=column`, one more column describes what could not be decoded.
"""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql.types import StructType

from penstock.client.errors import OptionError
from penstock.spark.avro_types import avro_ddl
from penstock.spark.options import Format, SourceOptions

HEADERS_DDL: Final = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
CORRUPT_COLUMN: Final = "_corrupt"
CORRUPT_DDL: Final = "STRUCT<field: STRING, data: BINARY, error: STRING>"


def source_ddl(options: SourceOptions) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in _columns(options))


def check_schema(options: SourceOptions, given: StructType) -> None:
    """Raises `OptionError` if the job passed a schema that is not the source's."""
    names = [name for name, _ in _columns(options)]
    if given.fieldNames() != names:
        raise OptionError(
            f"the columns of this source are {', '.join(names)}, but the given schema has "
            f"{', '.join(given.fieldNames())}: leave out .schema(...), and describe the values "
            "with valueFormat and valueSchema"
        )


def _columns(options: SourceOptions) -> list[tuple[str, str]]:
    formats = options.formats
    columns = [
        ("key", column_ddl(formats.key, formats.key_schema, "keySchema")),
        ("value", column_ddl(formats.value, formats.value_schema, "valueSchema")),
        ("topic", "STRING"),
        ("partition", "INT"),
        ("offset", "BIGINT"),
        ("timestamp", "TIMESTAMP"),
        ("timestampType", "INT"),
    ]
    if options.include_headers:
        columns.append(("headers", HEADERS_DDL))
    if options.bad_records == "column":
        columns.append((CORRUPT_COLUMN, CORRUPT_DDL))
    return columns


def column_ddl(kind: Format, schema: str, option: str) -> str:
    if kind == "bytes":
        return "BINARY"
    if kind == "string":
        return "STRING"
    if kind == "avro":
        return avro_ddl(schema, option)
    return f"STRUCT<{_fields_ddl(schema, option)}>"


def _fields_ddl(schema: str, option: str) -> str:
    """Returns the fields as DDL. They are given as DDL or as the JSON of `df.schema.json()`."""
    if not schema.startswith("{"):
        return schema
    try:
        parsed = StructType.fromJson(json.loads(schema))
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{option} is neither DDL such as 'id BIGINT, name STRING' nor a schema's JSON: {error}"
        ) from None
    return parsed.simpleString().removeprefix("struct<").removesuffix(">")
