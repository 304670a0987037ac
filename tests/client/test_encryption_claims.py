"""The table of docs/ENCRYPTION.md: a test for each row, which does what the row says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import serializers
from penstock.client.encryption.envelope import key_id_of
from penstock.encryption import (
    Encrypted,
    EncryptionFailed,
    MemoryKeyStore,
    NotAuthentic,
    encrypted,
    encrypted_fields,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ENCRYPTION.md"
NO = "no"
NOTICED = "no (`EncryptionFailed`)"
NOT_AUTHENTIC = "no (`NotAuthentic`)"
YES = "yes"

ANN = {"customer": "7", "name": "Ann", "iban": "CH7", "city": "Bern"}
BOB = {"customer": "8", "name": "Bob", "iban": "CH8", "city": "Bonn"}

_tests: dict[str, str] = {}
"""The rows that have a test, with their answers."""


def answers(row: str, answer: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Says which row of the table a test is about."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        assert row not in _tests
        _tests[row] = answer
        return test

    return mark


def table() -> Iterator[tuple[str, str]]:
    _, _, text = PAGE.read_text("utf-8").partition("| can such a person ... | |\n|---|---|\n")
    for line in text.splitlines():
        if not line.startswith("|"):
            return
        row, answer = line.strip("| ").split(" | ")
        yield row, answer


def customer(value: Any) -> str:
    return str(value["customer"])


@pytest.fixture
def keys() -> MemoryKeyStore:
    return MemoryKeyStore()


def whole(keys: MemoryKeyStore, topic: str = "profiles", **options: Any) -> Encrypted[Any, Any]:
    return encrypted(serializers.json, keys, topic=topic, subject=customer, **options)


def private(keys: MemoryKeyStore, **options: Any) -> Encrypted[Any, Any]:
    given: dict[str, Any] = {"topic": "profiles", "subject": customer, "fields": ["name", "iban"]}
    return encrypted_fields(serializers.json, keys, **{**given, **options})


def sent(values: Encrypted[Any, Any], value: Any) -> bytes:
    data = values.serialize(value)
    assert data is not None
    return data


def stored(values: Encrypted[Any, Any], value: Any) -> dict[str, Any]:
    """Returns the JSON object that is in the log."""
    found: dict[str, Any] = json.loads(sent(values, value))
    return found


def read(values: Encrypted[Any, Any], value: dict[str, Any]) -> Any:
    return values.deserialize(json.dumps(value).encode())


def changed_field(text: str) -> str:
    """Changes a character in the middle of the encrypted data."""
    at = len(text) - 12
    return text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]


def test_each_row_has_a_test_and_each_test_a_row() -> None:
    assert dict(table()) == _tests


@answers("read an encrypted value or field?", NO)
def test_values_and_fields_cannot_be_read(keys: MemoryKeyStore) -> None:
    data = sent(whole(keys), ANN)
    assert not [name for name in ANN if f'"{name}"'.encode() in data]
    fields = stored(private(keys), ANN)
    assert [name for name in ANN if fields[name] == ANN[name]] == ["customer", "city"]
    assert '"Ann"' not in json.dumps(fields)


@answers("change an encrypted value or field, unnoticed?", NOTICED)
def test_changes_are_noticed(keys: MemoryKeyStore) -> None:
    """test_encryption has the same for every byte of a value."""
    data = sent(whole(keys), ANN)
    with pytest.raises(EncryptionFailed):
        whole(keys).deserialize(data[:-1] + bytes([data[-1] ^ 1]))
    fields = stored(private(keys), ANN)
    with pytest.raises(EncryptionFailed):
        read(private(keys), {**fields, "name": changed_field(fields["name"])})


@answers(
    "copy a value to another topic, or a field to another field, unnoticed?",
    f"{NOT_AUTHENTIC}, if each topic has its own serializer",
)
def test_copies_to_other_topics_and_fields_are_noticed(keys: MemoryKeyStore) -> None:
    data = sent(whole(keys), ANN)
    with pytest.raises(NotAuthentic):
        whole(keys, "admins").deserialize(data)
    assert whole(keys, "profiles").deserialize(data) == ANN  # one serializer for all topics
    fields = stored(private(keys), ANN)
    with pytest.raises(NotAuthentic):
        read(private(keys, topic="admins"), fields)
    with pytest.raises(NotAuthentic):
        read(private(keys), {**fields, "name": fields["iban"]})


@answers("replace an encrypted value or field by a plain one, unnoticed?", NOTICED)
def test_plain_values_and_fields_are_noticed(keys: MemoryKeyStore) -> None:
    with pytest.raises(EncryptionFailed):
        read(whole(keys), ANN)
    for values in (private(keys), private(keys, fields=["iban"], optional_fields=["name"])):
        with pytest.raises(EncryptionFailed):
            read(values, {**stored(values, ANN), "name": "Ann"})


@answers("remove one of `fields`, unnoticed?", NOTICED)
def test_removed_fields_are_noticed(keys: MemoryKeyStore) -> None:
    fields = stored(private(keys), ANN)
    del fields["iban"]
    with pytest.raises(EncryptionFailed, match="no field iban"):
        read(private(keys), fields)
    nested = private(keys, fields=["bank.iban"])
    found = stored(nested, {"customer": "7", "bank": {"iban": "CH7"}})
    for bank in ("null", "{}"):
        with pytest.raises(EncryptionFailed, match=r"no field bank\.iban"):
            read(nested, {**found, "bank": json.loads(bank)})


@answers("remove one of `optional_fields`, unnoticed?", YES)
def test_removed_optional_fields_are_not_noticed(keys: MemoryKeyStore) -> None:
    values = private(keys, fields=["name"], optional_fields=["iban"])
    fields = stored(values, ANN)
    del fields["iban"]
    assert read(values, fields) == {"customer": "7", "name": "Ann", "city": "Bern"}


@answers(
    "put encrypted fields of another subject into a value, unnoticed?",
    f"{NOT_AUTHENTIC}, if the subject is computed from readable fields",
)
def test_fields_of_another_subject_are_noticed(keys: MemoryKeyStore) -> None:
    ann, bob = (stored(private(keys), each) for each in (ANN, BOB))
    for taken in (["name"], ["iban"], ["name", "iban"]):
        with pytest.raises(NotAuthentic):
            read(private(keys), {**bob, **{name: ann[name] for name in taken}})
    with pytest.raises(NotAuthentic, match="another subject"):
        read(private(keys), {**ann, "customer": "8"})
    one = private(keys, fields=["name"])
    with pytest.raises(NotAuthentic, match="another subject"):
        read(one, {**stored(one, BOB), "name": stored(one, ANN)["name"]})


@answers(
    "put all encrypted fields of another value into one whose subject is computed from them?", YES
)
def test_an_encrypted_subject_moves_with_its_fields(keys: MemoryKeyStore) -> None:
    values = private(keys, subject=lambda value: value["name"])
    ann, bob = (stored(values, each) for each in (ANN, BOB))
    moved = {**bob, "name": ann["name"], "iban": ann["iban"]}
    assert read(values, moved) == {**BOB, "name": "Ann", "iban": "CH7"}
    with pytest.raises(NotAuthentic):
        read(values, {**bob, "iban": ann["iban"]})


@answers(
    "put an encrypted field into another value of the same subject and topic?",
    f"{YES}, if both have the same key",
)
def test_fields_of_one_subject_can_be_exchanged(keys: MemoryKeyStore) -> None:
    old, new = (stored(private(keys), {**ANN, "iban": iban}) for iban in ("old", "new"))
    assert read(private(keys), {**new, "iban": old["iban"]}) == {**ANN, "iban": "old"}
    keys.create("7")
    newest = stored(private(keys), ANN)
    with pytest.raises(NotAuthentic, match="different keys"):
        read(private(keys), {**newest, "iban": old["iban"]})


@answers(
    "make a value look erased, or all encrypted fields of a value?",
    f"{YES}, with the id of an erased key",
)
def test_anyone_can_make_a_value_look_erased(keys: MemoryKeyStore) -> None:
    values = whole(keys, erased="(erased)")
    dead = sent(values, BOB)
    fields = private(keys, erased="(erased)")
    ann, bob = (stored(fields, each) for each in (ANN, BOB))
    keys.erase("8")
    header = dead[: 4 + dead[3]]
    assert key_id_of(header + bytes(200)) == key_id_of(dead)
    assert values.deserialize(header + os.urandom(200)) == "(erased)"
    found = read(fields, {**ann, "name": bob["name"], "iban": bob["iban"]})
    assert found == {**ANN, "name": "(erased)", "iban": "(erased)"}


@answers("make only some of the encrypted fields look erased, unnoticed?", NOT_AUTHENTIC)
def test_a_mixture_of_erased_and_other_fields_is_noticed(keys: MemoryKeyStore) -> None:
    ann, bob = (stored(private(keys), each) for each in (ANN, BOB))
    keys.erase("8")
    for values in (private(keys), private(keys, erased=None)):
        for taken in ("name", "iban"):
            with pytest.raises(NotAuthentic, match="different keys"):
                read(values, {**ann, taken: bob[taken]})


@answers("change fields that are not encrypted and do not name the subject?", YES)
def test_readable_fields_can_be_changed(keys: MemoryKeyStore) -> None:
    fields = stored(private(keys), ANN)
    assert read(private(keys), {**fields, "city": "Rome"}) == {**ANN, "city": "Rome"}


@answers("copy a value to another offset or record key of the same topic, or delete records?", YES)
def test_a_value_does_not_know_its_record(keys: MemoryKeyStore) -> None:
    """A serializer gets the bytes of the value, and nothing else of the record."""
    for values in (whole(keys), private(keys)):
        data = sent(values, ANN)
        assert [values.deserialize(data) for _ in range(2)] == [ANN, ANN]


@answers("see record keys, headers, timestamps, lengths, and which values have the same key?", YES)
def test_lengths_and_key_ids_can_be_seen(keys: MemoryKeyStore) -> None:
    """Nothing encrypts the rest of a record: `Encrypted` returns only the value."""
    short, long = (sent(whole(keys), {**ANN, "name": name}) for name in ("Ann", "Ann-Marie"))
    assert len(long) - len(short) == len("-Marie")
    assert key_id_of(short) == key_id_of(long) != key_id_of(sent(whole(keys), BOB))


def test_the_length_of_a_field_says_nothing_about_its_subject(keys: MemoryKeyStore) -> None:
    values = private(keys, fields=["name"])
    lengths = {len(stored(values, {**ANN, "customer": each})["name"]) for each in ("7", "7" * 90)}
    assert len(lengths) == 1


def test_a_subject_may_be_any_text(keys: MemoryKeyStore) -> None:
    """Also one that UTF-8 cannot write."""
    values = private(keys, subject=lambda _: "\ud800")
    assert read(values, stored(values, ANN)) == ANN
