"""Profiles of customers: encrypted, and erased on request."""

from __future__ import annotations

from typing import Any, assert_type

from penstock import Producer, encryption, serializers


def profiles(keys: encryption.KeyStore) -> encryption.Encrypted[Any, Any]:
    return encryption.encrypted_fields(
        serializers.json,
        keys,
        topic="profiles",
        subject=lambda profile: str(profile["customer"]),
        fields=["name"],
        optional_fields=["address.street"],
        erased="(erased)",
    )


def names(keys: encryption.KeyStore) -> encryption.Encrypted[str, str | None]:
    return encryption.encrypted(
        serializers.string, keys, topic="names", subject=lambda name: name, erased=None
    )


def send(bootstrap: str, database: Any) -> None:
    keys = encryption.SqlKeyStore(database)
    with Producer(bootstrap, value_serializer=profiles(keys)) as producer:
        producer.send("profiles", {"customer": 7, "name": "Ann"})
    assert_type(keys.create("7"), encryption.SubjectKey)
    keys.erase("7")


def read(data: bytes) -> str | None:
    try:
        return assert_type(names(encryption.MemoryKeyStore()).deserialize(data), str | None)
    except encryption.KeyNotFound as error:
        return f"wrong key store: {error}"
    except encryption.KeyErased:
        return None
    except encryption.NotAuthentic as error:
        return f"changed by somebody: {error}"
    except encryption.EncryptionFailed as error:
        return str(error)
