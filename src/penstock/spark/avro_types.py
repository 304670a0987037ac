"""Converts an Avro schema to Spark's types, as DDL. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from penstock.client.errors import OptionError

_PLAIN: Final = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
    "fixed": "BINARY",
    "enum": "STRING",
}
_LOGICAL: Final = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
    "uuid": "STRING",
}


def avro_ddl(schema: str, option: str) -> str:
    try:
        parsed = json.loads(schema)
    except json.JSONDecodeError as error:
        raise OptionError(f"{option} is not an Avro schema in JSON: {error}") from None
    return _type(parsed, option, {}, ())


def _type(schema: Any, option: str, named: dict[str, Any], inside: tuple[str, ...]) -> str:
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) != 1:
            raise OptionError(
                f"{option} has the union {json.dumps(schema)}: only a type or null is supported"
            )
        return _type(kinds[0], option, named, inside)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema in inside:
            raise OptionError(
                f"{option}: {schema} contains itself, and Spark has no recursive types: change "
                "the schema"
            )
        if schema in named:
            return _type(named[schema], option, named, inside)
    elif isinstance(schema, dict):
        return _complex(schema, option, named, inside)
    raise OptionError(f"{option} has {json.dumps(schema)}, which is not an Avro type")


def _complex(
    schema: dict[str, Any], option: str, named: dict[str, Any], inside: tuple[str, ...]
) -> str:
    kind = schema.get("type")
    name = schema.get("name", "")
    if name:
        space = schema.get("namespace", "")
        named[name] = named[f"{space}.{name}" if space else name] = schema
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"DECIMAL({schema['precision']}, {schema.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        inner = (*inside, schema.get("name", ""))
        fields = [
            f"`{field['name']}`: {_type(field['type'], option, named, inner)}"
            for field in schema.get("fields", [])
        ]
        return f"STRUCT<{', '.join(fields)}>"
    if kind == "array":
        return f"ARRAY<{_type(schema.get('items'), option, named, inside)}>"
    if kind == "map":
        return f"MAP<STRING, {_type(schema.get('values'), option, named, inside)}>"
    return _type(kind, option, named, inside)
