"""Serializers for keys and values. Give the same one to a producer and to a consumer.

The docstring of `penstock.client.serializers` lists them and explains the handling of nulls.
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
