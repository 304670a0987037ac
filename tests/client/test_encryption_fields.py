"""Encrypted fields: which are found, which are refused, and what stays readable."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, model_serializer

from penstock import serializers
from penstock.encryption import (
    Encrypted,
    EncryptionFailed,
    KeyErased,
    KeyStore,
    MemoryKeyStore,
    NotAuthentic,
    SqlKeyStore,
    encrypted_fields,
)
from penstock.errors import OptionError

ANN = {"customer": "7", "name": "Ann", "address": {"city": "Bern", "street": "Gasse 1"}, "count": 2}


@pytest.fixture(params=["memory", "sql"])
def keys(request: pytest.FixtureRequest) -> Iterator[KeyStore]:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    with contextlib.closing(database):
        yield MemoryKeyStore() if request.param == "memory" else SqlKeyStore(database)


def customer(value: Any) -> str:
    return str(value["customer"])


def private_fields(
    keys: KeyStore, *fields: str, optional: Sequence[str] = (), topic: str = "profiles"
) -> Encrypted[Any, Any]:
    return encrypted_fields(
        serializers.json,
        keys,
        topic=topic,
        subject=customer,
        fields=fields or ("name", "address.street"),
        optional_fields=optional,
    )


def sealed(values: Encrypted[Any, Any], value: Any) -> bytes:
    data = values.serialize(value)
    assert data is not None
    return data


def test_only_the_named_fields_are_encrypted(keys: KeyStore) -> None:
    values = private_fields(keys)
    stored = json.loads(sealed(values, ANN))
    assert stored["customer"] == "7"
    assert stored["count"] == 2
    assert stored["address"]["city"] == "Bern"
    assert stored["name"].startswith("enc:")
    assert stored["address"]["street"].startswith("enc:")
    assert values.deserialize(json.dumps(stored).encode()) == ANN


@pytest.mark.parametrize("value", [None, True, 7, 0.1, "é", [1, {"a": None}], {"a": []}, "enc:x"])
def test_a_field_may_have_any_json_value(keys: KeyStore, value: Any) -> None:
    values = private_fields(keys, "name")
    data = sealed(values, {"customer": "7", "name": value})
    assert values.deserialize(data) == {"customer": "7", "name": value}


ABSENT: list[dict[str, Any]] = [{}, {"address": None}, {"address": {}}, {"adress": {"street": 1}}]


@pytest.mark.parametrize("absent", ABSENT)
def test_a_value_without_a_required_field_is_not_sent(
    keys: KeyStore, absent: dict[str, Any]
) -> None:
    """A wrong name must not send the field in the clear."""
    with pytest.raises(EncryptionFailed, match=r"no field address\.street.*optional_fields"):
        private_fields(keys).serialize({"customer": "7", "name": "Ann", **absent})


@pytest.mark.parametrize("absent", ABSENT)
def test_optional_fields_may_be_missing(keys: KeyStore, absent: dict[str, Any]) -> None:
    values = private_fields(keys, "name", optional=["address.street"])
    value = {"customer": "7", "name": "Ann", **absent}
    data = sealed(values, value)
    assert values.deserialize(data) == value
    assert {**json.loads(data), "name": "Ann"} == value


def test_optional_fields_are_encrypted_if_they_are_there(keys: KeyStore) -> None:
    values = private_fields(keys, "name", optional=["address.street"])
    data = sealed(values, ANN)
    assert b"Gasse" not in data
    assert values.deserialize(data) == ANN


def test_all_fields_may_be_optional(keys: KeyStore) -> None:
    values = encrypted_fields(
        serializers.json, keys, topic="t", subject=customer, fields=[], optional_fields=["name"]
    )
    assert b'"Ann"' not in sealed(values, ANN)
    assert values.deserialize(b'{"customer": "7"}') == {"customer": "7"}


@pytest.mark.parametrize("address", [["Gasse 1"], "Gasse 1", 7])
def test_an_optional_field_is_not_sent_in_the_clear(keys: KeyStore, address: Any) -> None:
    with pytest.raises(EncryptionFailed, match=r"address\.street cannot be encrypted"):
        private_fields(keys, "name", optional=["address.street"]).serialize(
            {"customer": "7", "name": "Ann", "address": address}
        )


@pytest.mark.parametrize("address", [["Gasse 1"], "Gasse 1", 7])
def test_a_field_that_is_not_found_is_not_sent_in_the_clear(keys: KeyStore, address: Any) -> None:
    with pytest.raises(EncryptionFailed, match=r"address\.street cannot be encrypted"):
        private_fields(keys).serialize({"customer": "7", "name": "Ann", "address": address})


def test_values_without_fields_are_refused(keys: KeyStore) -> None:
    values = encrypted_fields(
        serializers.json, keys, topic="t", subject=lambda _: "7", fields=["name"]
    )
    for value in ([7], "text", 7):
        with pytest.raises(EncryptionFailed, match="only values with fields"):
            values.serialize(value)
    for data in (b"[]", b"7", b"\xff", b""):
        with pytest.raises(EncryptionFailed, match="only values with fields"):
            values.deserialize(data)


@pytest.mark.parametrize(
    "text", ["Ann", "", "enc:", "enc:!", "enc:é", "enc:UEU", None, 7, ["enc:"]]
)
def test_a_field_that_is_not_encrypted_is_refused(keys: KeyStore, text: Any) -> None:
    """Someone who can write to the topic cannot replace a field by a plain one."""
    with pytest.raises(EncryptionFailed):
        private_fields(keys, "name").deserialize(json.dumps({"name": text}).encode())


def test_exchanged_fields_are_noticed(keys: KeyStore) -> None:
    values = private_fields(keys, "name", "mail")
    stored = json.loads(sealed(values, {"customer": "7", "name": "Ann", "mail": "a@b"}))
    stored["name"], stored["mail"] = stored["mail"], stored["name"]
    with pytest.raises(NotAuthentic):
        values.deserialize(json.dumps(stored).encode())
    stored["name"], stored["mail"] = stored["mail"], stored["name"]
    with pytest.raises(NotAuthentic):
        private_fields(keys, "name", topic="other").deserialize(json.dumps(stored).encode())


def test_erased_fields_raise_or_are_replaced(keys: KeyStore) -> None:
    data = sealed(private_fields(keys), ANN)
    replacing = encrypted_fields(
        serializers.json,
        keys,
        topic="profiles",
        subject=customer,
        fields=["name", "address.street"],
        erased=None,
    )
    assert replacing.deserialize(data) == ANN
    keys.erase("7")
    with pytest.raises(KeyErased):
        private_fields(keys).deserialize(data)
    address = {"city": "Bern", "street": None}
    assert replacing.deserialize(data) == {**ANN, "name": None, "address": address}


@dataclass
class Order:
    customer: str
    name: str
    count: int = 1


def test_fields_of_dataclasses_are_encrypted(keys: KeyStore) -> None:
    orders = encrypted_fields(
        serializers.Dataclass(Order),
        keys,
        topic="orders",
        subject=lambda order: order.customer,
        fields=["name", "count"],
    )
    data = orders.serialize(Order("7", "Ann", 3))
    assert data is not None
    assert b'"Ann"' not in data
    assert orders.deserialize(data) == Order("7", "Ann", 3)


def test_fields_of_avro_records_are_encrypted(keys: KeyStore) -> None:
    fields = [{"name": name, "type": "string"} for name in ("customer", "name")]
    codec = serializers.Avro({"type": "record", "name": "Order", "fields": fields})
    orders = encrypted_fields(codec, keys, topic="orders", subject=customer, fields=["name"])
    value = {"customer": "7", "name": "Ann"}
    data = sealed(orders, value)
    assert codec.deserialize(data)["customer"] == "7"
    assert codec.deserialize(data)["name"].startswith("enc:")
    assert orders.deserialize(data) == value
    assert value == {"customer": "7", "name": "Ann"}
    with pytest.raises(EncryptionFailed):
        orders.serialize(["7"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("name", "give a list"),
        ([], "at least one"),
        (["a."], "must be names"),
        ([""], "must be names"),
        (["address", "address.street"], "is within address"),
        (["address.street", "address"], "is within address"),
    ],
)
def test_unusable_fields_are_refused(fields: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        encrypted_fields(
            serializers.json, MemoryKeyStore(), topic="t", subject=customer, fields=fields
        )


def test_a_field_is_required_or_optional() -> None:
    options: dict[str, Any] = {"topic": "t", "subject": customer, "fields": ["name"]}
    for optional, words in (
        ("mail", r"optional_fields=\['mail'\]"),
        (["name"], "in fields and in optional_fields"),
        (["name.first"], "is within name"),
    ):
        with pytest.raises(OptionError, match=words):
            encrypted_fields(
                serializers.json, MemoryKeyStore(), optional_fields=optional, **options
            )


# -- names that a codec never writes -------------------------------------------------------------


class Address(BaseModel):
    street: str


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    customer: str
    name: str = Field(alias="fullName")
    address: Address | None = None


class Generated(RootModel[dict[str, str]]):
    pass


class Custom(BaseModel):
    name: str

    @model_serializer
    def written(self) -> dict[str, str]:
        return {"other": self.name}


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "name", "type": "string"},
        {
            "name": "address",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Address",
                    "fields": [{"name": "street", "type": "string"}],
                },
            ],
        },
    ],
}


def named(codec: Any, *fields: str, optional: Sequence[str] = ()) -> Encrypted[Any, Any]:
    return encrypted_fields(
        codec,
        MemoryKeyStore(),
        topic="t",
        subject=lambda _: "7",
        fields=fields,
        optional_fields=optional,
    )


@pytest.mark.parametrize("codec", [serializers.Pydantic(Aliased), serializers.Avro(AVRO)])
def test_unknown_names_are_refused_at_once(codec: Any) -> None:
    for field in ("nmae", "address.stret"):
        with pytest.raises(OptionError, match=f"no field {field} in what"):
            named(codec, field)
        with pytest.raises(OptionError, match=f"no field {field} in what"):
            named(codec, optional=[field])
    named(codec, "address.street")
    named(codec, "address")


def test_the_alias_of_a_pydantic_field_is_its_name() -> None:
    with pytest.raises(OptionError, match="it has address, customer, fullName"):
        named(serializers.Pydantic(Aliased), "name")
    values = named(serializers.Pydantic(Aliased), "fullName")
    value = Aliased(customer="7", fullName="Ann")
    data = sealed(values, value)
    assert b'"Ann"' not in data
    assert values.deserialize(data) == value


@pytest.mark.parametrize(("model", "field"), [(Generated, "any"), (Custom, "other"), (Open, "any")])
def test_names_that_a_model_decides_itself_are_found_in_values(model: Any, field: str) -> None:
    with pytest.raises(EncryptionFailed, match="no field"):
        named(serializers.Pydantic(model), field, "wrong").serialize(
            model.model_validate({field: "Ann", "name": "Ann"})
        )


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (ConfigDict(validate_by_name=True), Field(alias="fullName")),
        (ConfigDict(), Field(alias="fullName")),
        (ConfigDict(), Field(validation_alias=AliasChoices("name", "fullName"))),
        (ConfigDict(), Field(validation_alias="fullName")),
    ],
)
def test_a_field_that_is_read_by_another_name_is_refused(config: ConfigDict, field: Any) -> None:
    """Someone could add a plain field with the other name, which the model prefers."""
    model = pydantic.create_model("Model", __config__=config, name=(str, field))
    with pytest.raises(OptionError, match="also read as fullName"):
        named(serializers.Pydantic(model), "name")


def test_a_wrong_name_of_a_dataclass_is_found_in_values() -> None:
    with pytest.raises(EncryptionFailed, match="no field nmae"):
        named(serializers.Dataclass(Order), "nmae").serialize(Order("7", "Ann"))
