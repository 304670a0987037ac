"""Serializers that encrypt what another serializer writes: whole values, or fields of them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, overload

from penstock.client.encryption.envelope import (
    EncryptionFailed,
    KeyErased,
    NotAuthentic,
    SubjectKey,
    context,
    key_id_of,
    seal,
    unseal,
)
from penstock.client.encryption.field_names import check_names
from penstock.client.encryption.fields import FieldPath, Form, checked_paths, form_of
from penstock.client.encryption.key_stores import KeyStore
from penstock.client.errors import OptionError
from penstock.ports import Random
from penstock.runtime import SystemRandom

T = TypeVar("T")
E = TypeVar("E")
T_contra = TypeVar("T_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

_FIELD_PREFIX: Final = "enc:"
"""How the text of an encrypted field begins. The rest is an envelope in base64."""
_DIGEST_BYTES: Final = 32
"""How long the digest of the subject is, at the beginning of the plain data of a field."""
_MISSING: Final[Any] = object()


class Codec(Protocol[T]):
    """A serializer that works in both directions, as those of `penstock.serializers`."""

    def serialize(self, value: T, /) -> bytes | None: ...

    def deserialize(self, data: bytes, /) -> T: ...


class Encrypted(Generic[T_contra, T_co]):
    """A serializer that encrypts. `encrypted` and `encrypted_fields` return one.

    It serializes values of the first type. It returns the second type when it deserializes: the
    same type, or the type of the argument `erased`.

    Example:
        from penstock import encryption

        def names(keys: encryption.KeyStore) -> encryption.Encrypted[str, str | None]:
            return encryption.encrypted(
                serializers.string, keys, topic="names", subject=lambda name: name, erased=None
            )

        print(names(encryption.MemoryKeyStore()).serialize("Ann")[:2])
        #> b'PE'
    """

    def __init__(
        self, encrypt: Callable[[T_contra], bytes | None], decrypt: Callable[[bytes], T_co]
    ) -> None:
        self._encrypt = encrypt
        self._decrypt = decrypt

    def serialize(self, value: T_contra, /) -> bytes | None:
        """Returns the encrypted value. Raises `KeyErased` if its subject was erased."""
        return self._encrypt(value)

    def deserialize(self, data: bytes, /) -> T_co:
        """Returns the decrypted value. Raises `EncryptionFailed` if that is not possible."""
        return self._decrypt(data)


@overload
def encrypted(
    codec: Codec[T],
    keys: KeyStore,
    *,
    topic: str,
    subject: Callable[[T], str],
    random: Random | None = None,
) -> Encrypted[T, T]: ...


@overload
def encrypted(
    codec: Codec[T],
    keys: KeyStore,
    *,
    topic: str,
    subject: Callable[[T], str],
    erased: E,
    random: Random | None = None,
) -> Encrypted[T, T | E]: ...


def encrypted(
    codec: Codec[T],
    keys: KeyStore,
    *,
    topic: str,
    subject: Callable[[T], str],
    erased: Any = _MISSING,
    random: Random | None = None,
) -> Encrypted[T, Any]:
    """Encrypts whole values with the key of their subject.

    `subject` returns the subject of a value, such as the number of a customer. `topic` is the topic
    of the values: a serializer with another topic cannot decrypt them. Nothing compares it with the
    topic of the record, so use each serializer for its own topic only. After the subject was
    erased, reading raises `KeyErased`, or returns `erased` if it is given.

    Example:
        from penstock import encryption

        keys = encryption.MemoryKeyStore()
        profiles = encryption.encrypted(
            serializers.json,
            keys,
            topic="profiles",
            subject=lambda profile: profile["customer"],
            erased=None,
        )
        with Producer("localhost:9092", value_serializer=profiles) as producer:
            producer.send("profiles", {"customer": "7", "name": "Ann"}).result()
        with Consumer(
            "localhost:9092",
            topics="profiles",
            auto_offset_reset="earliest",
            value_deserializer=profiles,
        ) as consumer:
            print(consumer.poll(timeout_ms=10_000)[0].value)
            keys.erase("7")
            consumer.seek_to_beginning()
            print(consumer.poll(timeout_ms=10_000)[0].value)
        #> {'customer': '7', 'name': 'Ann'}
        #> None
    """
    sealer = _Sealer(keys, _checked_topic(topic), random or SystemRandom())

    def encrypt(value: T) -> bytes | None:
        data = codec.serialize(value)
        if data is None:
            return None
        return sealer.seal(data, keys.current(_subject_of(value, subject)), "")

    def decrypt(data: bytes) -> Any:
        try:
            plain = sealer.unseal(data, "")
        except KeyErased:
            if erased is _MISSING:
                raise
            return erased
        return _hiding_values(lambda: codec.deserialize(plain), "its serializer")

    return Encrypted(encrypt, decrypt)


def encrypted_fields(
    codec: Codec[T],
    keys: KeyStore,
    *,
    topic: str,
    subject: Callable[[T], str],
    fields: Collection[str],
    optional_fields: Collection[str] = (),
    erased: Any = _MISSING,
    random: Random | None = None,
) -> Encrypted[T, T]:
    """Encrypts some fields of values, and leaves the others readable for everyone.

    `codec` writes JSON objects, as `Json`, `Dataclass` and `Pydantic` do, or is `Avro` with
    records; there, the encrypted fields must have the type string. `fields` are names, with dots
    for nested ones: `["name", "address.street"]`. A value without one of them is refused, when it
    is sent and when it is read. Fields that only some values have belong in `optional_fields`.

    `subject` and `topic` are as in `encrypted`. `subject` is also called for each value that is
    read: the encrypted fields of another subject are refused. So it should use fields that are not
    encrypted. After the subject was erased, reading raises `KeyErased`, or the fields have the
    value `erased` if it is given.

    Example:
        from penstock import encryption

        keys = encryption.MemoryKeyStore()
        orders = encryption.encrypted_fields(
            serializers.json,
            keys,
            topic="orders",
            subject=lambda order: order["customer"],
            fields=["name"],
            erased="(erased)",
        )
        data = orders.serialize({"customer": "7", "sku": "tea", "name": "Ann"})
        print(serializers.json.deserialize(data)["sku"], orders.deserialize(data)["name"])
        keys.erase("7")
        print(orders.deserialize(data))
        #> tea Ann
        #> {'customer': '7', 'sku': 'tea', 'name': '(erased)'}
    """
    paths = checked_paths(fields, optional_fields)
    check_names(codec, paths)
    sealer = _Sealer(keys, _checked_topic(topic), random or SystemRandom())
    found = _Fields(sealer, form_of(codec), paths, subject, erased)
    return Encrypted(found.encrypt, found.decrypt)


@dataclass(frozen=True, slots=True)
class _Sealer:
    """Encrypts and decrypts values and fields of one topic."""

    keys: KeyStore
    topic: str
    random: Random

    def seal(self, value: bytes, key: SubjectKey, path: str) -> bytes:
        return seal(value, key, context(self.topic, path), self.random.bytes)

    def unseal(self, data: bytes, path: str) -> bytes:
        key = self.keys.get(key_id_of(data))
        return unseal(data, key, context(self.topic, path))

    def seal_field(self, value: Any, key: SubjectKey, subject: str, path: str) -> str:
        plain = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = self.seal(_digest(subject) + plain.encode(), key, path)
        return _FIELD_PREFIX + base64.b64encode(data).decode()


@dataclass(frozen=True, slots=True)
class _Fields(Generic[T]):
    """Encrypts and decrypts the fields of values. `encrypted_fields` explains the arguments."""

    sealer: _Sealer
    form: Form
    paths: Sequence[FieldPath]
    subject: Callable[[T], str]
    erased: Any

    def encrypt(self, value: T) -> bytes | None:
        plain = self.form.plain(value)
        if plain is None:
            return None
        name = _subject_of(value, self.subject)
        key = self.sealer.keys.current(name)
        for path in self.paths:
            plain = path.change(
                plain, lambda found, at: self.sealer.seal_field(found, key, name, at)
            )
        return self.form.to_bytes(plain)

    def decrypt(self, data: bytes) -> Any:
        found = self.form.from_bytes(data)
        opened = _OpenedFields(self.sealer, self.erased)
        for path in self.paths:
            found = path.change(found, opened.unseal)
        opened.check_keys()
        value = _hiding_values(lambda: self.form.value(found), "its serializer")
        opened.check_subject(
            lambda: _hiding_values(lambda: _subject_of(value, self.subject), "the argument subject")
        )
        return value


class _OpenedFields:
    """Decrypts the encrypted fields of one value, and checks that they belong to it."""

    def __init__(self, sealer: _Sealer, erased: Any) -> None:
        self._sealer = sealer
        self._erased = erased
        self._key_ids: set[str] = set()
        self._subjects: set[bytes] = set()
        self._error: KeyErased | None = None

    def unseal(self, text: Any, path: str) -> Any:
        """Returns the plain value of a field, or the argument `erased`."""
        if not isinstance(text, str) or not text.startswith(_FIELD_PREFIX):
            raise EncryptionFailed(
                f"the field {path} is not encrypted: it may have been sent without encryption"
            )
        try:
            data = base64.b64decode(text[len(_FIELD_PREFIX) :].encode("ascii"), validate=True)
        except (binascii.Error, ValueError):
            raise EncryptionFailed(f"the encrypted field {path} is not valid base64") from None
        self._key_ids.add(key_id_of(data))
        try:
            plain = self._sealer.unseal(data, path)
        except KeyErased as error:
            self._error = error
            return self._erased
        self._subjects.add(plain[:_DIGEST_BYTES])
        return _hiding_values(lambda: json.loads(plain[_DIGEST_BYTES:]), "JSON")

    def check_keys(self) -> None:
        """Raises `NotAuthentic` for fields of different keys, or `KeyErased`."""
        if len(self._key_ids) > 1:
            raise NotAuthentic(
                "the encrypted fields have different keys: some belong to another value"
            )
        if self._error is not None and self._erased is _MISSING:
            raise self._error

    def check_subject(self, subject: Callable[[], str]) -> None:
        """Raises `NotAuthentic` if a field was encrypted for another subject.

        An erased field cannot be checked: only its key could tell.
        """
        if self._subjects and self._subjects != {_digest(subject())}:
            raise NotAuthentic(
                "an encrypted field was written for another subject, or the subject function "
                "differs from the producer's"
            )


def _digest(subject: str) -> bytes:
    """Returns what an encrypted field begins with. It has the same length for all subjects, so that
    the length of the field says nothing about the subject."""
    return hashlib.sha256(subject.encode(errors="surrogatepass")).digest()


def _hiding_values(work: Callable[[], T], reader: str) -> T:
    """Does work on decrypted data. Replaces errors, since their texts may show the data.

    The new error does not refer to the old one: logs often have the whole chain.
    """
    try:
        return work()
    except EncryptionFailed:
        raise
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        kind = type(error).__name__
    raise EncryptionFailed(
        f"the value was decrypted, but {reader} failed on it ({kind}). The details are left out "
        "here, since they may show the value"
    )


def _subject_of(value: T, subject: Callable[[T], str]) -> str:
    found = subject(value)
    if not isinstance(found, str) or not found:
        raise EncryptionFailed(
            "the value has no subject: the subject function must return a string that is not empty"
        )
    return found


def _checked_topic(topic: str) -> str:
    if not isinstance(topic, str) or not topic:
        raise OptionError("the topic of encrypted values is empty: give topic=...")
    return topic
