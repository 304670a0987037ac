"""Encryption of values in the client, with a key for each subject.

A subject is the person, customer or device that a value is about. Its key is in a key store that is
yours: the brokers never see it. Erasing the key makes all values of the subject unreadable, in all
topics, replicas and backups of the log, without rewriting any of them.

    Path("keys.db").touch(mode=0o600)   # only you may read the keys
    keys = encryption.SqlKeyStore(sqlite3.connect("keys.db", check_same_thread=False))
    profiles = encryption.encrypted(
        serializers.json, keys, topic="profiles", subject=lambda profile: profile["customer"]
    )
    Producer(value_serializer=profiles)
    Consumer(value_deserializer=profiles)

    keys.create("customer-7")   # a new key for new values; old values stay readable
    keys.erase("customer-7")    # no value of customer-7 can be read any more

`encrypted` is for whole values, and `encrypted_fields` for fields of JSON objects and Avro records.
A value that lacks a field which must be encrypted is refused.
docs/ENCRYPTION.md says what is protected and what is not.
"""

from __future__ import annotations

from penstock.client.encryption.encrypted_values import Encrypted, encrypted, encrypted_fields
from penstock.client.encryption.envelope import (
    EncryptionFailed,
    KeyErased,
    KeyNotFound,
    NotAuthentic,
    SubjectKey,
)
from penstock.client.encryption.key_stores import KeyStore, MemoryKeyStore, SqlKeyStore

__all__ = [
    "Encrypted",
    "EncryptionFailed",
    "KeyErased",
    "KeyNotFound",
    "KeyStore",
    "MemoryKeyStore",
    "NotAuthentic",
    "SqlKeyStore",
    "SubjectKey",
    "encrypted",
    "encrypted_fields",
]
