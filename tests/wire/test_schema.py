"""Our schema tables agree with Kafka's message definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.wire import generate
from penstock.wire.api import ApiKey
from penstock.wire.schema import EMBEDDED, message_schema
from penstock.wire.schema.notation import (
    NO_VERSIONS,
    Field,
    Struct,
    Versions,
    parse_message,
    parse_versions,
)

from .samples import message_names

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = ROOT.parent / "shared" / "kafka-messages"


OUR_OWN = (
    *("EndTransactionsRequest", "EndTransactionsResponse"),
    *("DescribeRolesRequest", "DescribeRolesResponse"),
    *("AlterRolesRequest", "AlterRolesResponse"),
    *("CheckAccessRequest", "CheckAccessResponse"),
    *("ShareStateRequest", "ShareStateResponse"),
    *("DescribeQueueRequest", "DescribeQueueResponse"),
)
"""Messages of APIs that Kafka does not have."""


@pytest.mark.parametrize("name", [name for name in message_names() if name not in OUR_OWN])
def test_table_agrees_with_kafka(name: str) -> None:
    """Names, order, types, versions, nullability, defaults and tags match, field by field."""
    if not DEFINITIONS.is_dir():
        pytest.skip(f"Kafka's message definitions are not at {DEFINITIONS}")
    kafka = json.loads((DEFINITIONS / f"{name}.json").read_text("utf-8"))
    ours = message_schema(name)
    assert ours.name == kafka["name"]
    assert ours.api_key == kafka.get("apiKey")
    assert ours.versions == parse_versions(kafka["validVersions"])
    assert ours.flexible == parse_versions(kafka["flexibleVersions"])
    shared = {struct["name"]: struct["fields"] for struct in kafka.get("commonStructs", [])}
    compare_structs(name, ours.root, kafka["fields"], shared, {})


def compare_structs(
    path: str,
    ours: Struct,
    kafka: list[dict[str, Any]],
    shared: dict[str, Any],
    seen: dict[str, str],
) -> None:
    assert [field.name for field in ours.fields] == [field["name"] for field in kafka], path
    for field, definition in zip(ours.fields, kafka, strict=True):
        compare_fields(f"{path}.{field.name}", field, definition, shared, seen)


def compare_fields(
    path: str, ours: Field, kafka: dict[str, Any], shared: dict[str, Any], seen: dict[str, str]
) -> None:
    kafka_type = kafka["type"].removeprefix("[]")
    assert ours.is_array == kafka["type"].startswith("[]"), path
    assert ours.versions == parse_versions(kafka["versions"]), path
    assert ours.ignorable == kafka.get("ignorable", False), path
    assert ours.tag == kafka.get("tag"), path
    if ours.tag is not None:
        assert kafka["taggedVersions"] == kafka["versions"], path
    nullable = parse_versions(kafka.get("nullableVersions", "none"))
    assert ours.nullable == overlap(nullable, ours.versions), path
    assert ours.default == kafka_default(kafka), path
    if ours.struct is None:
        assert ours.type == kafka_type, path
        return
    assert seen.setdefault(ours.struct.name, kafka_type) == kafka_type, path
    compare_structs(path, ours.struct, kafka.get("fields") or shared[kafka_type], shared, seen)


def overlap(one: Versions, other: Versions) -> Versions:
    both = Versions(max(one.first, other.first), min(one.last, other.last))
    return both if both.first <= both.last else NO_VERSIONS


def kafka_default(kafka: dict[str, Any]) -> object:
    """Returns the default by Kafka's rules, given or implied."""
    given = str(kafka.get("default", ""))
    if given == "null":
        return None
    if kafka["type"].startswith("[]"):
        assert not given
        return []
    kind = kafka["type"]
    if kind.startswith(("int", "uint")):
        return int(given or "0", 0)
    if kind == "bool":
        return given.lower() == "true"
    if kind == "float64":
        return float(given or 0)
    implied: dict[str, object] = {"string": given, "bytes": b"", "uuid": bytes(16)}
    return implied.get(kind)


def test_every_api_has_its_tables() -> None:
    """ApiKey names exactly the APIs that have a request and a response."""
    by_key = {int(key): key.api_name for key in ApiKey}
    requests = {n for n in message_names() if n.endswith("Request")}
    responses = {n for n in message_names() if n.endswith("Response")}
    assert {f"{name}Request" for name in by_key.values()} == requests
    assert {f"{name}Response" for name in by_key.values()} == responses
    assert requests | responses | set(EMBEDDED) == set(message_names())
    for name in requests:
        key = message_schema(name).api_key
        assert key is not None
        assert by_key[key] == name.removesuffix("Request")


def test_generated_classes_are_current() -> None:
    """The message classes in the repository are those that the generator writes."""
    folder = ROOT / "src" / "penstock" / "wire" / "messages"
    files = generate.render()
    assert {path.name for path in folder.glob("*.py")} == {*files, "base.py"}
    for name, text in files.items():
        assert (folder / name).read_text("utf-8") == text, (
            f"{name} is out of date: run python -m penstock.wire.generate"
        )


def test_the_notation_of_tables_is_parsed() -> None:
    schema = parse_message(
        "Example  key 5  versions 1-4  flexible 3+\n"
        "  Name      string?2+  1+   = null  ignorable\n"
        "  Parts     [Part]?    2-3\n"
        "    Index   int32      2+   = -1\n"
        "  Rest      Part       3+   tag 2"
    )
    name, parts, rest = schema.root.fields
    assert (schema.api_key, schema.versions, schema.flexible.first) == (5, Versions(1, 4), 3)
    assert (name.nullable.first, name.default, name.ignorable) == (2, None, True)
    assert parts.is_array
    assert parts.nullable == parts.versions == Versions(2, 3)
    assert parts.struct is rest.struct
    assert rest.tag == 2
    assert schema.structs() == [parts.struct]


def test_fields_below_a_primitive_type_are_refused() -> None:
    """Fields indented below a primitive type are an error in the table."""
    with pytest.raises(ValueError, match="under no struct"):
        parse_message("Bad  versions 0  flexible never\n  A  int8  0+\n    B  int8  0+")
