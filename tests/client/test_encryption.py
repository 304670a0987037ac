"""Encrypted values: who can read them, what is noticed, and what an erasure does."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from penstock import Consumer, Producer, serializers
from penstock.client.encryption.envelope import context, key_id_of, seal, unseal
from penstock.encryption import (
    Encrypted,
    EncryptionFailed,
    KeyErased,
    KeyNotFound,
    KeyStore,
    MemoryKeyStore,
    NotAuthentic,
    SqlKeyStore,
    SubjectKey,
    encrypted,
    encrypted_fields,
)
from penstock.errors import DeserializationFailed, OptionError, SerializationFailed
from penstock.testing import Broker
from test_docs import sections

KEY = SubjectKey("k-1", bytes(range(32)))
BOUND_TO = context("orders", "")
ANN = {"customer": "7", "name": "Ann", "address": {"city": "Bern", "street": "Gasse 1"}, "count": 2}


class Counted:
    """Random bytes that are the same in every run, and never repeat."""

    def __init__(self) -> None:
        self.drawn = 0

    def bytes(self, size: int) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(size)

    def below(self, bound: int) -> int:
        raise NotImplementedError

    def uniform(self) -> float:
        raise NotImplementedError


@pytest.fixture
def sql_keys(tmp_path: Path) -> Iterator[SqlKeyStore]:
    database = sqlite3.connect(tmp_path / "keys.db", check_same_thread=False)
    with contextlib.closing(database):
        yield SqlKeyStore(database)


@pytest.fixture(params=["memory", "sql"])
def keys(request: pytest.FixtureRequest, sql_keys: SqlKeyStore) -> KeyStore:
    return MemoryKeyStore() if request.param == "memory" else sql_keys


def customer(value: Any) -> str:
    return str(value["customer"])


def profiles(keys: KeyStore, topic: str = "profiles") -> Encrypted[Any, Any]:
    return encrypted(serializers.json, keys, topic=topic, subject=customer)


def private_fields(keys: KeyStore, *fields: str, topic: str = "profiles") -> Encrypted[Any, Any]:
    return encrypted_fields(
        serializers.json,
        keys,
        topic=topic,
        subject=customer,
        fields=fields or ("name", "address.street"),
    )


def sealed(values: Encrypted[Any, Any], value: Any) -> bytes:
    data = values.serialize(value)
    assert data is not None
    return data


# -- whole values --------------------------------------------------------------------------------


def test_a_value_survives_and_is_not_readable(keys: KeyStore) -> None:
    data = sealed(profiles(keys), ANN)
    assert profiles(keys).deserialize(data) == ANN
    assert b'"Ann"' not in data
    assert b"customer" not in data


def test_the_same_value_is_never_encrypted_alike(keys: KeyStore) -> None:
    assert sealed(profiles(keys), ANN) != sealed(profiles(keys), ANN)


def test_the_format_does_not_change() -> None:
    """Old values must stay readable: this one was written by hand from the description."""
    data_key, wrap_nonce, nonce = bytes([7] * 32), bytes([8] * 12), bytes([9] * 12)
    header = b"PE\x01\x03k-1"
    wrapped = AESGCM(KEY.secret).encrypt(wrap_nonce, data_key, b"penstock data key\x00" + header)
    header += wrap_nonce + wrapped
    bound = b"\x00\x00\x00\x06orders\x00\x00\x00\x00"
    data = header + nonce + AESGCM(data_key).encrypt(nonce, b"tea", header + bound)
    assert key_id_of(data) == "k-1"
    assert unseal(data, KEY, BOUND_TO) == b"tea"
    draws = iter([data_key, wrap_nonce, nonce])
    assert seal(b"tea", KEY, BOUND_TO, lambda _: next(draws)) == data


@given(st.binary(max_size=300), st.text(min_size=1, max_size=20), st.text(max_size=20))
def test_any_bytes_survive(value: bytes, topic: str, path: str) -> None:
    try:
        bound = context(topic, path)
    except UnicodeEncodeError:
        return
    data = seal(value, KEY, bound, Counted().bytes)
    assert unseal(data, KEY, bound) == value


@given(st.data())
def test_every_change_is_noticed(data: st.DataObject) -> None:
    """No byte of the header, the data key or the value can be changed, removed or added."""
    keys = MemoryKeyStore()
    values = encrypted(serializers.raw, keys, topic="orders", subject=lambda _: "7")
    original = sealed(values, b"tea")
    changed = bytearray(original)
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    if bytes(changed) != original:
        with pytest.raises(EncryptionFailed):
            values.deserialize(bytes(changed))


@given(st.binary(max_size=150))
def test_random_bytes_are_refused(data: bytes) -> None:
    values = encrypted(serializers.raw, MemoryKeyStore(), topic="orders", subject=lambda _: "7")
    for each in (data, b"PE\x01" + data, b"PE\x01\x01k" + data):
        with pytest.raises(EncryptionFailed):
            values.deserialize(each)


def test_a_value_of_another_topic_is_refused(keys: KeyStore) -> None:
    data = sealed(profiles(keys, "profiles"), ANN)
    with pytest.raises(NotAuthentic, match="another topic"):
        profiles(keys, "admins").deserialize(data)


def test_topics_and_fields_cannot_be_confused() -> None:
    assert context("ab", "c") != context("a", "bc")
    assert context("a", "") != context("", "a")


def test_a_newer_format_is_named() -> None:
    with pytest.raises(EncryptionFailed, match=r"version 2.*upgrade"):
        key_id_of(b"PE\x02" + bytes(200))


def test_a_plain_value_is_refused(keys: KeyStore) -> None:
    with pytest.raises(EncryptionFailed, match="not encrypted"):
        profiles(keys).deserialize(json.dumps(ANN).encode())


@pytest.mark.parametrize("name", [b"a\nERROR: x", b"\x1b[2J", b"a\x7f", b"a\r", b"\xff\xfe"])
def test_a_key_id_that_is_not_printable_is_not_repeated(name: bytes) -> None:
    """It comes from the log, and the error goes to a terminal or to another log."""
    with pytest.raises(NotAuthentic, match="damaged") as raised:
        profiles(MemoryKeyStore()).deserialize(b"PE\x01" + bytes([len(name)]) + name + bytes(200))
    assert str(raised.value).isprintable()


def shown(error: BaseException) -> str:
    """Returns the texts of the error and of all errors that it refers to."""
    chain = [str(error), repr(vars(error))]
    for each in (error.__cause__, error.__context__):
        chain += [] if each is None else [shown(each)]
    return " ".join(chain)


class Strict(BaseModel):
    customer: str
    name: Literal["Ann"]


class Loose(BaseModel):
    customer: str
    name: str


def test_a_failed_decode_does_not_show_the_decrypted_value(keys: KeyStore) -> None:
    """pydantic and json put the data into their errors, and consumers log them."""
    options: dict[str, Any] = {"topic": "t", "subject": lambda value: value.customer}
    written, read = serializers.Pydantic(Loose), serializers.Pydantic(Strict)
    pairs = [
        (encrypted(written, keys, **options), encrypted(read, keys, **options)),
        (
            encrypted_fields(written, keys, fields=["name"], **options),
            encrypted_fields(read, keys, fields=["name"], **options),
        ),
    ]
    for producer, consumer in pairs:
        data = sealed(producer, Loose(customer="7", name="s3cret"))
        with pytest.raises(EncryptionFailed, match="ValidationError") as raised:
            consumer.deserialize(data)
        assert "s3cret" not in shown(raised.value)


def test_a_failing_subject_does_not_show_the_decrypted_value(keys: KeyStore) -> None:
    def subject(value: Any) -> str:
        return str({"s3cret": "8"}[value["name"]])

    options: dict[str, Any] = {"topic": "t", "fields": ["name"]}
    written = encrypted_fields(serializers.json, keys, subject=customer, **options)
    data = sealed(written, {"customer": "7", "name": "hidden"})
    with pytest.raises(EncryptionFailed, match="argument subject failed") as raised:
        encrypted_fields(serializers.json, keys, subject=subject, **options).deserialize(data)
    assert "hidden" not in shown(raised.value)


def test_errors_of_an_inner_encryption_are_kept(keys: KeyStore) -> None:
    inner = MemoryKeyStore()
    values = encrypted(profiles(inner), keys, topic="outer", subject=customer)
    data = sealed(values, ANN)
    assert values.deserialize(data) == ANN
    inner.erase("7")
    with pytest.raises(KeyErased):
        values.deserialize(data)


def test_a_value_without_a_subject_is_not_sent(keys: KeyStore) -> None:
    for subject in ("", None, 7):
        values = encrypted(
            serializers.json,
            keys,
            topic="t",
            subject=lambda _, subject=subject: subject,  # type: ignore[misc] # wrong on purpose
        )
        with pytest.raises(EncryptionFailed, match="no subject"):
            values.serialize(ANN)


def test_a_null_stays_null(keys: KeyStore) -> None:
    class Nulls:
        def serialize(self, value: dict[str, str], /) -> bytes | None:
            return None

        def deserialize(self, data: bytes, /) -> dict[str, str]:
            raise AssertionError(data)

    assert (
        encrypted(Nulls(), keys, topic="t", subject=customer).serialize({"customer": "7"}) is None
    )
    fields = encrypted_fields(Nulls(), keys, topic="t", subject=customer, fields=["name"])
    assert fields.serialize({"customer": "7"}) is None


def test_an_erased_value_can_be_replaced(keys: KeyStore) -> None:
    values = encrypted(serializers.json, keys, topic="t", subject=customer, erased=None)
    data = values.serialize(ANN)
    assert data is not None
    assert values.deserialize(data) == ANN
    keys.erase("7")
    assert values.deserialize(data) is None
    with pytest.raises(KeyErased):
        values.serialize(ANN)


def test_a_replacement_hides_no_other_error(keys: KeyStore) -> None:
    values = encrypted(serializers.json, keys, topic="t", subject=customer, erased=None)
    data = sealed(values, ANN)
    with pytest.raises(NotAuthentic):
        values.deserialize(data[:-1] + bytes([data[-1] ^ 1]))
    others = encrypted(serializers.json, MemoryKeyStore(), topic="t", subject=customer, erased=None)
    with pytest.raises(KeyNotFound):
        others.deserialize(data)


def test_another_key_with_the_same_id_is_noticed() -> None:
    data = seal(b"tea", KEY, BOUND_TO, Counted().bytes)
    with pytest.raises(NotAuthentic, match="another key k-1"):
        unseal(data, SubjectKey("k-1", bytes(32)), BOUND_TO)


def test_a_topic_is_required() -> None:
    with pytest.raises(OptionError, match="topic"):
        encrypted(serializers.json, MemoryKeyStore(), topic="", subject=customer)
    with pytest.raises(OptionError, match="topic"):
        encrypted_fields(
            serializers.json, MemoryKeyStore(), topic="", subject=customer, fields=["name"]
        )


# -- with a broker -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [profiles, private_fields])
def test_values_go_through_a_broker_encrypted(
    live_broker: Broker,
    make: Callable[..., Encrypted[Any, Any]],
    sql_keys: SqlKeyStore,
) -> None:
    """A reader without the keys finds no name, and after the erasure nobody does."""
    topic = live_broker.new_topic()
    keys = sql_keys
    values = make(keys, topic=topic)
    with Producer(live_broker.bootstrap, value_serializer=values) as producer:
        for name in ("Ann", "Anna"):
            producer.send(topic, {**ANN, "name": name}, key=b"7").result()
            keys.create("7")
        producer.send(topic, None, key=b"7").result()
    options: dict[str, Any] = {"topics": topic, "auto_offset_reset": "earliest"}
    with Consumer(live_broker.bootstrap, **options) as consumer:
        stored = [next(consumer).value for _ in range(3)]
    assert stored[2] is None
    assert not [data for data in stored[:2] if b'"Ann' in (data or b"")]
    with Consumer(live_broker.bootstrap, value_deserializer=values, **options) as consumer:
        found = [next(consumer).value for _ in range(3)]
        assert found == [ANN, {**ANN, "name": "Anna"}, None]
        keys.erase("7")
        consumer.seek_to_beginning()
        with pytest.raises(DeserializationFailed, match=r"KeyErased: the key .* was erased"):
            while True:
                consumer.poll(timeout_ms=1000)
    with (
        Producer(live_broker.bootstrap, value_serializer=values) as producer,
        pytest.raises(SerializationFailed, match="was erased") as raised,
    ):
        producer.send(topic, ANN)
    assert isinstance(raised.value.__cause__, KeyErased)


def test_the_examples_of_the_page_run(
    live_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/ENCRYPTION.md, with a broker for its address and a topic for its topic."""
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).resolve().parents[2] / "docs" / "ENCRYPTION.md"
    blocks = [block for each in sections(page.read_text("utf-8")).values() for block in each]
    assert len(blocks) == 2
    for block in blocks:
        code = block.code.replace("localhost:9092", live_broker.bootstrap)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            names: dict[str, Any] = {"database": None}
            exec(code.replace('"profiles"', f'"{live_broker.new_topic()}"'), names)
        if names["database"] is not None:
            names["database"].close()
            assert stat.S_IMODE((tmp_path / "keys.db").stat().st_mode) == 0o600
        assert printed.getvalue().splitlines() == block.prints


def test_the_page_says_how_much_values_grow() -> None:
    keys = MemoryKeyStore()
    values = encrypted(serializers.raw, keys, topic="t", subject=lambda _: "7")
    assert len(sealed(values, b"tea")) - len(b"tea") == 124
    field = json.loads(sealed(private_fields(keys, "name"), {"customer": "7", "name": "Ann"}))
    assert len(field["name"]) - len("Ann") == 217
