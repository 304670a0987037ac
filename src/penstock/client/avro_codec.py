"""Avro via fastavro, plain or with a schema registry's prefix. Imported only if Avro is used."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final

try:
    import fastavro
except ImportError as error:
    raise ImportError("Avro needs fastavro: pip install 'penstock[avro]'") from error

Schema = Mapping[str, Any] | str

_PREFIX: Final = struct.Struct(">bI")
_MAGIC: Final = 0


class AvroCodec:
    def __init__(
        self, schema: Schema, schema_id: int | None, resolve: Callable[[int], Schema] | None
    ) -> None:
        self._schema = _parsed(schema)
        self._resolve = resolve
        self._prefixed = schema_id is not None or resolve is not None
        self._writers: dict[int, Any] = {}
        self._prefix = b""
        if schema_id is not None:
            self._prefix = _PREFIX.pack(_MAGIC, schema_id)
            self._writers[schema_id] = self._schema

    def encode(self, value: Any) -> bytes:
        if self._prefixed and not self._prefix:
            raise ValueError(
                "writing with a schema registry prefix needs an id: give Avro(schema_id=...)"
            )
        out = BytesIO()
        out.write(self._prefix)
        fastavro.schemaless_writer(out, self._schema, value)
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        writer = self._schema
        start = 0
        if self._prefixed:
            writer = self._writer(data)
            start = _PREFIX.size
        source = BytesIO(data)
        source.seek(start)
        value = fastavro.schemaless_reader(source, writer, self._schema)
        if source.tell() != len(data):
            raise ValueError(
                f"{len(data) - source.tell()} bytes are left over: "
                "the data was written with a different schema"
            )
        return value

    def _writer(self, data: bytes) -> Any:
        if len(data) < _PREFIX.size or data[0] != _MAGIC:
            raise ValueError(
                "the data does not begin with a schema registry prefix (zero byte and schema id): "
                "for plain Avro leave out schema_id and resolve"
            )
        schema_id = _PREFIX.unpack_from(data)[1]
        writer = self._writers.get(schema_id)
        if writer is None:
            if self._resolve is None:
                raise ValueError(f"schema id {schema_id} is not known: give Avro(resolve=...)")
            writer = self._writers[schema_id] = _parsed(self._resolve(schema_id))
        return writer


def _parsed(schema: Schema) -> Any:
    return fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else dict(schema))
