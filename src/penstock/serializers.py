"""Keys and values as bytes and back: give the same one to a producer and to a consumer.

What there is, and the rule that null stays null, is told in `penstock.client.serializers`.
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
