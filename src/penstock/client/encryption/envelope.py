"""The format of an encrypted value, and the errors of encryption. Pure.

Each value has a data key of its own, which encrypts it with AES-256-GCM. The key of the subject
encrypts the data key in the same way, and the result is stored beside the value:

    "PE"  version  length of the key id  key id  nonce  data key + tag  nonce  value + tag
      2         1                     1       n     12         32 + 16     12        n + 16

All but the data key and the value are in the clear, but none of it can be changed: both
encryptions cover what comes before them. The encryption of the value also covers its context: the
topic, and the field for a value that is one field. So a value that someone copies to another topic
or field cannot be decrypted there, if the readers give the name of that topic or field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.client.errors import ClientError

SECRET_BYTES: Final = 32
"""The length of all keys: those of AES-256."""
KEY_ID_BYTES_MAX: Final = 200
"""The longest id of a key."""

_MAGIC: Final = b"PE"
_VERSION: Final = 1
_NAME_AT: Final = 4
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_WRAPPED_BYTES: Final = _NONCE_BYTES + SECRET_BYTES + _TAG_BYTES
_WRAPPING: Final = b"penstock data key\0"
"""What the encryption of a data key covers, before the header: no value has this context."""


class EncryptionFailed(ClientError):
    """A value could not be encrypted or decrypted. Base class of the errors of encryption.

    A producer raises `SerializationFailed` with this error as the cause. A consumer raises
    `DeserializationFailed`, whose text names this error.

    Example:
        from penstock import encryption

        keys = encryption.MemoryKeyStore()
        names = encryption.encrypted(
            serializers.string, keys, topic="customers", subject=lambda name: name
        )
        try:
            names.deserialize(b"Ann")
        except encryption.EncryptionFailed as error:
            print(error)
        #> the value is not encrypted: it may have been sent without encryption
    """


class KeyErased(EncryptionFailed):
    """The key of the subject was erased: nobody can decrypt this value any more.

    `key_id` is the erased key. The argument `erased` of `encrypted` and `encrypted_fields` is a
    value to return instead.

    Example:
        from penstock import encryption

        keys = encryption.MemoryKeyStore()
        names = encryption.encrypted(
            serializers.string, keys, topic="customers", subject=lambda name: "customer-7"
        )
        data = names.serialize("Ann")
        keys.erase("customer-7")
        try:
            names.deserialize(data)
        except encryption.KeyErased as error:
            print(error.retriable)
        #> False
    """

    def __init__(self, key_id: str) -> None:
        super().__init__(f"the key {key_id} was erased: its values cannot be read any more")
        self.key_id = key_id


class KeyNotFound(EncryptionFailed):
    """The key store has never had the key: check that it is the key store of the producer.

    `key_id` is the missing key.

    Example:
        from penstock import encryption

        try:
            encryption.MemoryKeyStore().get("k-1")
        except encryption.KeyNotFound as error:
            print(error.key_id)
        #> k-1
    """

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"the key store has no key {key_id}: use the key store that the producer uses"
        )
        self.key_id = key_id


class NotAuthentic(EncryptionFailed):
    """The value was changed after it was encrypted, or is of another topic, field or subject.

    It is also raised if the key store has another key with the same id.

    Example:
        from penstock import encryption

        keys = encryption.MemoryKeyStore()
        names, mails = (
            encryption.encrypted(serializers.string, keys, topic=topic, subject=lambda _: "ann")
            for topic in ("names", "mails")
        )
        try:
            mails.deserialize(names.serialize("Ann"))
        except encryption.NotAuthentic:
            print("this value was not written for the topic mails")
        #> this value was not written for the topic mails
    """


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """A key of one subject. `id` is stored beside each value; `secret` must stay secret.

    The id must say nothing about the subject: it stays in the log after the key was erased. Key
    stores choose random ids.

    Example:
        from penstock import encryption

        key = encryption.SubjectKey("k-1", bytes(32))
        print(key)
        #> SubjectKey(id='k-1')
    """

    id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.id or not _is_printable(self.id):
            raise ValueError("the id of a key must be printable ASCII: choose another id")
        if len(self.id) > KEY_ID_BYTES_MAX:
            raise ValueError(f"the id of a key may have {KEY_ID_BYTES_MAX} characters at most")
        if len(self.secret) != SECRET_BYTES:
            raise ValueError(
                f"the key {self.id} has {len(self.secret)} bytes: it must have {SECRET_BYTES}"
            )


def _is_printable(key_id: str) -> bool:
    """Says whether errors and logs can repeat the id: it has no line ends or control characters."""
    return key_id.isascii() and key_id.isprintable()


def context(topic: str, path: str) -> bytes:
    """Returns what a value of this topic and field is bound to. The path of a whole value is
    empty."""
    parts = (topic.encode(), path.encode())
    return b"".join(len(part).to_bytes(4) + part for part in parts)


def seal(
    value: bytes, key: SubjectKey, bound_to: bytes, random_bytes: Callable[[int], bytes]
) -> bytes:
    """Encrypts a value. `bound_to` is its context."""
    name = key.id.encode("ascii")
    header = _MAGIC + bytes((_VERSION, len(name))) + name
    data_key, nonce = random_bytes(SECRET_BYTES), random_bytes(_NONCE_BYTES)
    wrapped = AESGCM(key.secret).encrypt(nonce, data_key, _WRAPPING + header)
    header += nonce + wrapped
    nonce = random_bytes(_NONCE_BYTES)
    return header + nonce + AESGCM(data_key).encrypt(nonce, value, header + bound_to)


def key_id_of(data: bytes) -> str:
    """Returns the id of the key that decrypts the value. Raises `EncryptionFailed`."""
    if len(data) < _NAME_AT or data[:2] != _MAGIC:
        raise EncryptionFailed(
            "the value is not encrypted: it may have been sent without encryption"
        )
    if data[2] != _VERSION:
        raise EncryptionFailed(
            f"the value has version {data[2]} of the format, but this client reads version "
            f"{_VERSION}: upgrade it"
        )
    size = data[3]
    name = data[_NAME_AT : _NAME_AT + size].decode("ascii", errors="replace")
    shortest = _NAME_AT + size + _WRAPPED_BYTES + _NONCE_BYTES + _TAG_BYTES
    if not 0 < size <= KEY_ID_BYTES_MAX or len(data) < shortest or not _is_printable(name):
        raise NotAuthentic("the encrypted value is damaged: its header cannot be read")
    return name


def unseal(data: bytes, key: SubjectKey, bound_to: bytes) -> bytes:
    """Decrypts a value whose `key_id_of` is this key's. Raises `NotAuthentic`."""
    wrap_at = _NAME_AT + data[3]
    value_at = wrap_at + _WRAPPED_BYTES
    nonce, wrapped = data[wrap_at : wrap_at + _NONCE_BYTES], data[wrap_at + _NONCE_BYTES : value_at]
    try:
        data_key = AESGCM(key.secret).decrypt(nonce, wrapped, _WRAPPING + data[:wrap_at])
        nonce, sealed = data[value_at : value_at + _NONCE_BYTES], data[value_at + _NONCE_BYTES :]
        return AESGCM(data_key).decrypt(nonce, sealed, data[:value_at] + bound_to)
    except InvalidTag:
        raise NotAuthentic(
            "the encrypted value was changed, or was written for another topic or field, or the "
            f"key store has another key {key.id}"
        ) from None
