"""What the project is about: orders, and how they are written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from penstock import serializers


@dataclass
class Order:
    customer: str
    cents: int


ORDER = serializers.Dataclass(Order)
LEGACY = serializers.Json()
LATIN = serializers.String("latin-1")


def sizes(codec: serializers.Serializer[int] = serializers.int64) -> serializers.Serializer[int]:
    return codec


def reader() -> serializers.Deserializer[float]:
    return serializers.float64


def avro(schema: str) -> serializers.Avro:
    return serializers.Avro(schema, schema_id=7)


def validated(model: Any) -> object:
    """For whoever has pydantic installed."""
    return serializers.Pydantic(model)


def all_numbers() -> list[object]:
    return [serializers.int32, serializers.float32, serializers.raw, serializers.json]


assert_type(ORDER.deserialize(b"{}"), Order)
