"""The delegation tokens of a cluster, as the metadata store holds them.

A stored token has no HMAC and no SCRAM keys: brokers derive them from
`delegation.token.secret.key`, which is not in the store. Instead there is a check, by which brokers
notice that they have different secret keys.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from penstock.metadata.keys import TOKEN_SECRET_KEY, TOKENS_PREFIX
from penstock.metadata.stored_fields import (
    MetadataInvalid,
    count_field,
    decode_fields,
    encode_fields,
)
from penstock.security.delegation_tokens import (
    CHECK_BYTES,
    CHECK_SALT_BYTES,
    DelegationToken,
    SecretCheck,
)

_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_FIELDS: Final = frozenset({"owner", "requester", "renewers", "issued_ms", "expires_ms", "max_ms"})


class TokenTable:
    """The tokens of a cluster image. Only the image changes it."""

    def __init__(self) -> None:
        self._tokens: dict[str, DelegationToken] = {}
        self._owned = Counter[str]()
        self.secret_check: SecretCheck | None = None
        self.by_id: Mapping[str, DelegationToken] = MappingProxyType(self._tokens)

    def count_of(self, owner: str) -> int:
        """Returns how many tokens a user owns."""
        return self._owned[owner]

    def set(self, key: str, value: bytes | None) -> str:
        """Applies a change of the store to a key of `TOKENS_PREFIX`. Returns the token's id."""
        token_id = _token_id(key)
        after = None if value is None else _decode(key, token_id, value)
        before = self._tokens.pop(token_id, None)
        if before is not None:
            self._owned[before.owner] -= 1
            if not self._owned[before.owner]:
                del self._owned[before.owner]
        if after is not None:
            self._tokens[token_id] = after
            self._owned[after.owner] += 1
        return token_id

    def set_secret_check(self, value: bytes | None) -> None:
        self.secret_check = None if value is None else _decode_check(value)


def encode_check(check: SecretCheck) -> bytes:
    return encode_fields({"salt": check.salt.hex(), "digest": check.digest.hex()})


def _decode_check(value: bytes) -> SecretCheck:
    key = TOKEN_SECRET_KEY
    fields = decode_fields(key, value, frozenset({"salt", "digest"}))
    try:
        check = SecretCheck(bytes.fromhex(fields["salt"]), bytes.fromhex(fields["digest"]))
    except (TypeError, ValueError):
        raise MetadataInvalid(key, "it is not a check of a secret key") from None
    if (len(check.salt), len(check.digest)) != (CHECK_SALT_BYTES, CHECK_BYTES):
        raise MetadataInvalid(key, "it is not a check of a secret key")
    return check


def token_key(token_id: str) -> str:
    return TOKENS_PREFIX + token_id


def encode_token(token: DelegationToken) -> bytes:
    return encode_fields(
        {
            "owner": token.owner,
            "requester": token.requester,
            "renewers": list(token.renewers),
            "issued_ms": token.issued_ms,
            "expires_ms": token.expires_ms,
            "max_ms": token.max_ms,
        }
    )


def _token_id(key: str) -> str:
    token_id = key.removeprefix(TOKENS_PREFIX)
    if _ID.fullmatch(token_id) is None:
        raise MetadataInvalid(key, "it does not name a token")
    return token_id


def _decode(key: str, token_id: str, value: bytes) -> DelegationToken:
    fields = decode_fields(key, value, _FIELDS)
    renewers = fields["renewers"]
    if not isinstance(renewers, list):
        raise MetadataInvalid(key, "renewers is not a list")
    return DelegationToken(
        token_id,
        _name(key, fields["owner"]),
        _name(key, fields["requester"]),
        tuple(_name(key, each) for each in renewers),
        count_field(key, fields, "issued_ms"),
        count_field(key, fields, "expires_ms"),
        count_field(key, fields, "max_ms"),
    )


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise MetadataInvalid(key, "a user is not a name")
    return value
