"""Serializers for keys and values. Give the same one to a producer and to a consumer.

    Producer(value_serializer=serializers.json)
    Consumer(value_deserializer=serializers.json)

These are the serializers:

    raw                          bytes, unchanged: the same as giving nothing
    string, String(encoding)     text
    json, Json(...)              any JSON value; compact UTF-8
    int32 int64 float32 float64  big-endian, as in Java
    Dataclass(Class)             a dataclass as JSON, restored with its types
    Pydantic(Model)              a pydantic model as JSON, validated when it is read
    Avro(schema, ...)            Avro, plain or with the prefix of a schema registry

None stays null: it is never passed to a serializer or a deserializer, so plain functions such as
`str.encode` and `json.loads` can be used. If a serializer raises an error, the client raises
`SerializationFailed` or `DeserializationFailed`.
"""

from __future__ import annotations

from penstock.client.serializers import (
    Avro,
    Dataclass,
    Deserializer,
    Json,
    Pydantic,
    Serializer,
    String,
    float32,
    float64,
    int32,
    int64,
    json,
    raw,
    string,
)

__all__ = [
    "Avro",
    "Dataclass",
    "Deserializer",
    "Json",
    "Pydantic",
    "Serializer",
    "String",
    "float32",
    "float64",
    "int32",
    "int64",
    "json",
    "raw",
    "string",
]
