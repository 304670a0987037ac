"""Serializers that encrypt what another serializer writes: whole values, or fields of them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, overload

from penstock.client.encryption.envelope import (
    EncryptionFailed,
    KeyErased,
    SubjectKey,
    context,
    key_id_of,
    seal,
    unseal,
)
from penstock.client.encryption.key_stores import KeyStore
from penstock.client.errors import OptionError
from penstock.client.serializers import Avro
from penstock.ports import Random
from penstock.runtime import SystemRandom

T = TypeVar("T")
E = TypeVar("E")
T_contra = TypeVar("T_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

_FIELD_PREFIX: Final = "enc:"
"""How the text of an encrypted field begins. The rest is an envelope in base64."""
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
    of the values: in another topic they cannot be decrypted. After the subject was erased, reading
    raises `KeyErased`, or returns `erased` if it is given.

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
        return codec.deserialize(plain)

    return Encrypted(encrypt, decrypt)


def encrypted_fields(
    codec: Codec[T],
    keys: KeyStore,
    *,
    topic: str,
    subject: Callable[[T], str],
    fields: Collection[str],
    erased: Any = _MISSING,
    random: Random | None = None,
) -> Encrypted[T, T]:
    """Encrypts some fields of values, and leaves the others readable for everyone.

    `codec` writes JSON objects, as `Json`, `Dataclass` and `Pydantic` do, or is `Avro` with
    records; there, the encrypted fields must have the type string. `fields` are names, with dots
    for nested ones: `["name", "address.street"]`. A field that a value does not have is left out.
    `subject` and `topic` are as in `encrypted`. After the subject was erased, reading raises
    `KeyErased`, or the fields have the value `erased` if it is given.

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
    paths = _checked_fields(fields)
    sealer = _Sealer(keys, _checked_topic(topic), random or SystemRandom())
    form: _Form = _Records(codec) if isinstance(codec, Avro) else _Objects(codec)

    def encrypt(value: T) -> bytes | None:
        plain = form.plain(value)
        if plain is None:
            return None
        key = keys.current(_subject_of(value, subject))
        for path in paths:
            plain = _change(plain, path, lambda found, at: sealer.seal_field(found, key, at))
        return form.to_bytes(plain)

    def decrypt(data: bytes) -> Any:
        found = form.from_bytes(data)
        for path in paths:
            found = _change(found, path, lambda text, at: sealer.unseal_field(text, at, erased))
        return form.value(found)

    return Encrypted(encrypt, decrypt)


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

    def seal_field(self, value: Any, key: SubjectKey, path: str) -> str:
        plain = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return _FIELD_PREFIX + base64.b64encode(self.seal(plain.encode(), key, path)).decode()

    def unseal_field(self, text: Any, path: str, erased: Any) -> Any:
        if not isinstance(text, str) or not text.startswith(_FIELD_PREFIX):
            raise EncryptionFailed(
                f"the field {path} is not encrypted: it may have been sent without encryption"
            )
        try:
            data = base64.b64decode(text[len(_FIELD_PREFIX) :].encode("ascii"), validate=True)
        except (binascii.Error, ValueError):
            raise EncryptionFailed(f"the encrypted field {path} is not valid base64") from None
        try:
            return json.loads(self.unseal(data, path))
        except KeyErased:
            if erased is _MISSING:
                raise
            return erased


class _Form(Protocol):
    """How a codec's values become objects with fields, and back."""

    def plain(self, value: Any) -> dict[str, Any] | None: ...

    def to_bytes(self, fields: dict[str, Any]) -> bytes: ...

    def from_bytes(self, data: bytes) -> dict[str, Any]: ...

    def value(self, fields: dict[str, Any]) -> Any: ...


class _Objects:
    """JSON objects: the codec writes and reads them, and the fields are changed in between."""

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec = codec

    def plain(self, value: Any) -> dict[str, Any] | None:
        data = self._codec.serialize(value)
        return None if data is None else self.from_bytes(data)

    def to_bytes(self, fields: dict[str, Any]) -> bytes:
        return json.dumps(
            fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()

    def from_bytes(self, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        return _checked_object(found)

    def value(self, fields: dict[str, Any]) -> Any:
        return self._codec.deserialize(self.to_bytes(fields))


class _Records:
    """Avro records, which are dicts: the fields are changed before they are written."""

    def __init__(self, codec: Avro) -> None:
        self._codec = codec

    def plain(self, value: Any) -> dict[str, Any]:
        return _checked_object(value)

    def to_bytes(self, fields: dict[str, Any]) -> bytes:
        return self._codec.serialize(fields)

    def from_bytes(self, data: bytes) -> dict[str, Any]:
        return _checked_object(self._codec.deserialize(data))

    def value(self, fields: dict[str, Any]) -> Any:
        return fields


def _change(
    fields: dict[str, Any], path: Sequence[str], change: Callable[[Any, str], Any]
) -> dict[str, Any]:
    """Returns a copy in which the field at the path is changed. Leaves a missing one out.

    Raises `EncryptionFailed` if the path leads through something else than objects: the field must
    never be sent unencrypted because it was not found.
    """
    return _changed(fields, path, change, ".".join(path))


def _changed(
    fields: Mapping[str, Any], path: Sequence[str], change: Callable[[Any, str], Any], whole: str
) -> dict[str, Any]:
    first, *rest = path
    if first not in fields:
        return dict(fields)
    found = fields[first]
    if not rest:
        return {**fields, first: change(found, whole)}
    if found is None:
        return dict(fields)
    if not isinstance(found, dict):
        raise EncryptionFailed(
            f"the field {whole} cannot be encrypted: {first} is no object. Encrypt {first} as a "
            "whole"
        )
    return {**fields, first: _changed(found, rest, change, whole)}


def _checked_object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise EncryptionFailed(
            "only values with fields can have encrypted fields: use encrypted for other values"
        )
    return found


def _subject_of(value: T, subject: Callable[[T], str]) -> str:
    found = subject(value)
    if not isinstance(found, str) or not found:
        raise EncryptionFailed(
            "the value has no subject: the argument subject must return a text that is not empty"
        )
    return found


def _checked_topic(topic: str) -> str:
    if not isinstance(topic, str) or not topic:
        raise OptionError("the topic of encrypted values is empty: give topic=...")
    return topic


def _checked_fields(fields: Collection[str]) -> list[list[str]]:
    if isinstance(fields, str):
        raise OptionError(f"fields is one text: give a list, fields=[{fields!r}]")
    paths = sorted(field.split(".") for field in set(fields))
    if not paths or not all(all(path) for path in paths):
        raise OptionError("fields must be names such as name or address.street: give at least one")
    for one in paths:
        for other in paths:
            if one is not other and other[: len(one)] == one:
                raise OptionError(
                    f"the field {'.'.join(other)} is within {'.'.join(one)}: leave it out"
                )
    return paths
