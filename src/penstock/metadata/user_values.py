"""The users of a cluster: their SCRAM credentials, as the metadata store holds them.

A credential is not a password: a broker checks a client's proof with it, and cannot log in with it.
Still, nobody but brokers should be able to read the store: with a credential, passwords can be
guessed offline.

The names of users that do not exist must look like those that do. So brokers make decoys for them
(`security.decoys`) from a secret that all brokers of the cluster share.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, unquote

from penstock.metadata.keys import DECOY_SECRET_KEY, USERS_PREFIX
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.security.scram_credentials import (
    CredentialInvalid,
    CredentialKey,
    ScramCredential,
    ScramMechanism,
    decode,
)

DECOY_SECRET_BYTES: Final = 32


class UserTable:
    """The users of a cluster image. Only the image changes it."""

    def __init__(self) -> None:
        self._credentials: dict[CredentialKey, ScramCredential] = {}
        self.credentials: Mapping[CredentialKey, ScramCredential] = MappingProxyType(
            self._credentials
        )
        self.problems: dict[str, str] = {}
        """Key -> why the credential cannot be read. Its user cannot log in with it."""
        self.decoy_secret: bytes | None = None
        """None until the first broker with a SASL listener has written it."""

    def set_credential(self, key: str, value: bytes | None) -> None:
        """Applies a change of the store to a key of `USERS_PREFIX`.

        A value that cannot be read locks out its user, and nobody else: the broker goes on."""
        self.problems.pop(key, None)
        try:
            owner = _owner(key)
            self._credentials.pop(owner, None)
            if value is not None:
                self._credentials[owner] = _credential(owner, value)
        except CredentialInvalid as error:
            if value is not None:
                self.problems[key] = str(error)

    def set_decoy_secret(self, value: bytes | None) -> None:
        if value is not None and len(value) != DECOY_SECRET_BYTES:
            raise MetadataInvalid(DECOY_SECRET_KEY, f"it does not have {DECOY_SECRET_BYTES} bytes")
        self.decoy_secret = value


def user_key(user: str, mechanism: ScramMechanism) -> str:
    return f"{USERS_PREFIX}{quote(user, safe='')}/{int(mechanism)}"


def _owner(key: str) -> CredentialKey:
    name, _, number = key.removeprefix(USERS_PREFIX).partition("/")
    try:
        owner = unquote(name, errors="strict"), ScramMechanism(int(number))
    except ValueError as error:
        raise CredentialInvalid("the key does not name a user and a mechanism") from error
    # Accept only the form that `user_key` writes: one user must not have two keys.
    if user_key(*owner) != key:
        raise CredentialInvalid("the key is not in the form that brokers write")
    return owner


def _credential(owner: CredentialKey, value: bytes) -> ScramCredential:
    credential = decode(value)
    if credential.mechanism != owner[1]:
        raise CredentialInvalid(f"it is for {credential.mechanism.sasl_name}")
    return credential
