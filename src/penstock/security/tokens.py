"""Checks JSON Web Tokens: the bearer tokens of OAUTHBEARER.

`TokenChecker` accepts a token only if all of this holds: its algorithm is one of `ALGORITHMS`, the
key set has a key with its `kid`, its signature is valid, and its claims satisfy the `TokenRules`.
The token is parsed once, here, so the header that names the key is the header that was signed.
joserfc reads the keys and checks the signatures.

The token never chooses how it is checked. `none` and HMAC are no algorithms of this module: with
HMAC, the public key of the issuer would be the secret. A token cannot bring a key (`jwk`, `x5c`) or
an address of one (`jku`, `x5u`): such headers are ignored. A token with `crit` is refused.

The order of the checks has one purpose. The claims come before the key, so that an expired token
whose key the issuer has already removed is refused, and does not make the broker fetch the keys.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal

from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from penstock.security.token_verdict import (
    TOKEN_BYTES_MAX,
    KeyUnknown,
    TokenAccepted,
    TokenRejected,
    TokenVerdict,
)
from penstock.security.user_names import name_problem

ALGORITHMS: Final = frozenset(
    {
        *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"),
        *("EdDSA", "Ed25519", "Ed448"),
    }
    & JWSRegistry.algorithms.keys()
)
"""The algorithms that a token may have. Each checks with a public key."""

HEADER_BYTES_MAX: Final = 8 * 1024
"""The longest header of a token, as it is sent: in base64."""
KID_CHARS_MAX: Final = 1000
"""The longest key id, in tokens and in key sets."""
SKEW_MS: Final = 30_000
"""How far the clocks of the issuer and of the broker may differ."""
KEY_SET_BYTES_MAX: Final = 512 * 1024
"""The longest text of a key set."""
KEYS_MAX: Final = 200
"""How many keys a key set may list."""
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192
"""RSA keys outside these bounds are unsafe, or too slow to check with."""

_NUMERIC_DATE_MAX: Final = 253_402_300_799
"""The last second of the year 9999. Later times are errors."""
_KEY_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("n", "e"),
    "EC": ("crv", "x", "y"),
    "OKP": ("crv", "x"),
}
"""The public fields of each type of key. Others are dropped: a private key is not kept."""
_KEY_TYPES: Final[Mapping[str, type[RSAKey | ECKey | OKPKey]]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}
_CURVES: Final = frozenset({"P-256", "P-384", "P-521", "Ed25519", "Ed448"})
_EXPONENT_CHARS_MAX: Final = 11
"""The longest RSA exponent, in base64: 64 bits. A longer one only costs time."""


class AcceptAny(Enum):
    """Turns off a check of `TokenRules`. A token for another service is then accepted here."""

    ISSUER = "any issuer"
    AUDIENCE = "any audience"


class KeySetRefused(ValueError):
    """A text is not a usable JSON Web Key Set."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What the claims of a token must be. Raises `ValueError` if a rule is missing or empty."""

    issuer: str | Literal[AcceptAny.ISSUER]
    """The only `iss`."""
    audiences: frozenset[str] | Literal[AcceptAny.AUDIENCE]
    """One of these must be in `aud`."""
    principal_claim: str = "sub"
    """The claim that is the user name."""
    algorithms: frozenset[str] = ALGORITHMS
    skew_ms: int = SKEW_MS

    def __post_init__(self) -> None:
        if self.issuer is not AcceptAny.ISSUER and not (
            isinstance(self.issuer, str) and self.issuer
        ):
            raise ValueError(
                "the expected issuer of tokens is not set: set sasl.oauthbearer.expected.issuer"
            )
        if self.audiences is not AcceptAny.AUDIENCE and not (
            isinstance(self.audiences, frozenset)
            and self.audiences
            and all(isinstance(each, str) and each for each in self.audiences)
        ):
            raise ValueError(
                "the expected audience of tokens is not set: set sasl.oauthbearer.expected.audience"
            )
        if not self.principal_claim:
            raise ValueError(
                "the claim with the user name is empty: set sasl.oauthbearer.sub.claim.name"
            )
        if not self.algorithms or not self.algorithms <= ALGORITHMS:
            raise ValueError(
                f"the algorithms of tokens must be some of {', '.join(sorted(ALGORITHMS))}"
            )
        if self.skew_ms < 0:
            raise ValueError(f"the clock skew is {self.skew_ms} ms: set it to 0 or more")


@dataclass(frozen=True, slots=True)
class KeySet:
    """The public keys of an issuer. `load_key_set` reads one; `NO_KEYS` is empty."""

    _keys: Mapping[tuple[str, str], RSAKey | ECKey | OKPKey] = field(repr=False)
    """By key id and type. RFC 7517 lets keys of different types share an id."""
    kids: frozenset[str] = field(repr=False)
    skipped: int = 0
    """How many entries are of no use here, such as keys for encryption."""

    def find(self, kid: str, key_type: str) -> RSAKey | ECKey | OKPKey | None:
        return self._keys.get((kid, key_type))


NO_KEYS: Final = KeySet({}, frozenset())
"""The key set of a broker that could not fetch one. No token is accepted with it."""


class TokenChecker:
    """Checks signed tokens."""

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules

    def check(self, token: bytes, keys: KeySet, now_ms: int) -> TokenVerdict:
        """Decides whether the token is valid now. Never raises, whatever the token is."""
        try:
            parts = _read(token)
            algorithm = _algorithm(parts.header, self._rules.algorithms)
            kid = _kid(parts.header)
            accepted = _check_claims(parts.claims, self._rules, now_ms)
            if kid not in keys.kids:
                return KeyUnknown(kid)
            _check_signature(parts, algorithm, kid, keys)
        except _Refused as error:
            return TokenRejected(str(error))
        return accepted


class UnsecuredTokenCheckerForTests:
    """Accepts tokens that nobody has signed. Anyone can be any user: use it in tests only."""

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules

    def check(self, token: bytes, keys: KeySet, now_ms: int) -> TokenVerdict:
        """Decides by the claims alone whether the token is valid now. Ignores the keys."""
        try:
            parts = _read(token)
            _check_unsecured(parts)
            return _check_claims(parts.claims, self._rules, now_ms)
        except _Refused as error:
            return TokenRejected(str(error))


def load_key_set(text: bytes) -> KeySet:
    """Reads a JSON Web Key Set (RFC 7517). Raises `KeySetRefused`.

    Keys that cannot check a signature here are skipped, as RFC 7517 asks: a new type of key must
    not make the others unusable. Keys with the same kid and type are skipped too, because nobody
    can know which of them a token means.
    """
    if len(text) > KEY_SET_BYTES_MAX:
        raise KeySetRefused(
            f"the key set has {len(text)} bytes, the limit is {KEY_SET_BYTES_MAX}: check that the "
            "address is that of a JSON Web Key Set"
        )
    try:
        entries = _json_object(text).get("keys")
    except _Refused as error:
        raise KeySetRefused(
            f"the key set is {error}: check that the address is that of a JSON Web Key Set"
        ) from None
    if not isinstance(entries, list):
        raise KeySetRefused('the key set has no list "keys": it must be a JSON Web Key Set')
    if len(entries) > KEYS_MAX:
        raise KeySetRefused(f"the key set has {len(entries)} keys, the limit is {KEYS_MAX}")
    keys: dict[tuple[str, str], RSAKey | ECKey | OKPKey] = {}
    repeated: set[tuple[str, str]] = set()
    for entry in entries:
        key = _import_key(entry)
        if key is None:
            continue
        name = (entry["kid"], entry["kty"])
        if name in keys:
            repeated.add(name)
        keys[name] = key
    for name in repeated:
        del keys[name]
    if not keys and repeated:
        raise KeySetRefused(
            "the key set has only keys with the same kid and type: the issuer must give each its "
            "own kid"
        )
    if not keys:
        raise KeySetRefused(
            f"none of the {len(entries)} keys of the key set can check a signature: a key needs a "
            f"kid, and must be RSA with {RSA_BITS_MIN} bits or more, EC or Ed25519"
        )
    return KeySet(keys, frozenset(kid for kid, _ in keys), len(entries) - len(keys))


def _import_key(entry: object) -> RSAKey | ECKey | OKPKey | None:
    """Returns the public key of an entry, or None if it is of no use here."""
    if not isinstance(entry, dict) or not _is_label(entry.get("kid"), KID_CHARS_MAX):
        return None
    key_type = entry.get("kty")
    fields = _KEY_FIELDS.get(key_type) if isinstance(key_type, str) else None
    if key_type is None or fields is None or not _is_for_signatures(entry):
        return None
    if any(not isinstance(entry.get(name), str) for name in fields):
        return None
    if not (_is_safe_rsa(entry) if key_type == "RSA" else entry["crv"] in _CURVES):
        return None
    public = {name: entry[name] for name in ("kty", "alg", *fields) if name in entry}
    try:
        return _KEY_TYPES[key_type].import_key(public)
    except (JoseError, ValueError, LookupError, UnsupportedAlgorithm):
        return None


def _is_for_signatures(entry: Mapping[str, Any]) -> bool:
    operations = entry.get("key_ops", ["verify"])
    algorithm = entry.get("alg")
    return (
        entry.get("use", "sig") == "sig"
        and isinstance(operations, list)
        and "verify" in operations
        and (algorithm is None or (isinstance(algorithm, str) and algorithm in ALGORITHMS))
    )


def _is_safe_rsa(entry: Mapping[str, Any]) -> bool:
    if len(entry["e"]) > _EXPONENT_CHARS_MAX:
        return False
    try:
        modulus = int.from_bytes(_decode(entry["n"].encode("ascii", "replace")))
    except _Refused:
        return False
    return RSA_BITS_MIN <= modulus.bit_length() <= RSA_BITS_MAX


class _Refused(Exception):
    """The token is not valid; the text says why, and contains nothing of the token."""


@dataclass(frozen=True, slots=True)
class _Parts:
    header: Mapping[str, Any] = field(repr=False)
    claims: Mapping[str, Any] = field(repr=False)
    signed: bytes = field(repr=False)
    signature: bytes = field(repr=False)


def _read(token: bytes) -> _Parts:
    if len(token) > TOKEN_BYTES_MAX:
        raise _Refused(f"the token has {len(token)} bytes, the limit is {TOKEN_BYTES_MAX}")
    pieces = token.split(b".")
    if len(pieces) != 3:
        raise _Refused("the token is not a signed JSON Web Token: it must have three parts")
    header, claims, signature = pieces
    if len(header) > HEADER_BYTES_MAX:
        raise _Refused(
            f"the header of the token has {len(header)} bytes, the limit is {HEADER_BYTES_MAX}"
        )
    return _Parts(
        _json_object(_decode(header)),
        _json_object(_decode(claims)),
        header + b"." + claims,
        _decode(signature),
    )


def _decode(text: bytes) -> bytes:
    """Decodes base64url without padding. Only one text stands for the same bytes."""
    try:
        data = base64.b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _Refused("not valid base64url") from None
    if base64.urlsafe_b64encode(data).rstrip(b"=") != text:
        raise _Refused("not valid base64url")
    return data


def _json_object(text: bytes) -> dict[str, Any]:
    """Parses a JSON object. Refuses two values for one name: readers would differ about it."""
    try:
        value = json.loads(
            text.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError):
        raise _Refused("not valid JSON") from None
    if not isinstance(value, dict):
        raise _Refused("not a JSON object")
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Refused("not valid JSON: a name occurs twice")
    return made


def _refuse_constant(name: str) -> None:
    raise _Refused(f"not valid JSON: {name} is not a number")


def _is_label(value: object, chars_max: int) -> bool:
    """Whether the value is a text that can be logged and compared."""
    return isinstance(value, str) and 0 < len(value) <= chars_max and value.isprintable()


def _algorithm(header: Mapping[str, Any], allowed: frozenset[str]) -> str:
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in allowed:
        raise _Refused("the algorithm of the token is not allowed")
    if "crit" in header:
        raise _Refused("the token has critical headers, which are not supported")
    return algorithm


def _kid(header: Mapping[str, Any]) -> str:
    kid = header.get("kid")
    if not isinstance(kid, str) or not _is_label(kid, KID_CHARS_MAX):
        raise _Refused(f"the token has no kid of 1 to {KID_CHARS_MAX} printable characters")
    return kid


def _check_unsecured(parts: _Parts) -> None:
    if parts.header.get("alg") != "none" or parts.signature:
        raise _Refused("the token is signed, but this listener takes unsecured tokens only")
    if "crit" in parts.header:
        raise _Refused("the token has critical headers, which are not supported")


def _check_signature(parts: _Parts, algorithm: str, kid: str, keys: KeySet) -> None:
    model = JWSRegistry.algorithms[algorithm]
    key = keys.find(kid, model.key_type)
    try:
        if key is None:
            raise _Refused("the key of the token is not of the token's algorithm")
        model.check_key(key)
        valid = model.verify(parts.signed, parts.signature, key)
    except (JoseError, ValueError, UnsupportedAlgorithm):
        raise _Refused("the key of the token is not of the token's algorithm") from None
    if valid is not True:
        raise _Refused("the signature of the token is not valid")


def _check_claims(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> TokenAccepted:
    """Returns what a valid token with these claims grants. Raises `_Refused`."""
    expires_at_ms = _time_ms(claims, "exp")
    issued_at_ms = _time_ms(claims, "iat")
    if now_ms >= expires_at_ms + rules.skew_ms:
        raise _Refused("the token has expired")
    if issued_at_ms > now_ms + rules.skew_ms:
        raise _Refused("the token was issued in the future: compare the clocks")
    if expires_at_ms < issued_at_ms:
        raise _Refused("the token expires before it was issued")
    if "nbf" in claims and _time_ms(claims, "nbf") > now_ms + rules.skew_ms:
        raise _Refused("the token is not valid yet")
    if rules.issuer is not AcceptAny.ISSUER and claims.get("iss") != rules.issuer:
        raise _Refused("the token has another issuer than sasl.oauthbearer.expected.issuer")
    if rules.audiences is not AcceptAny.AUDIENCE and not _audiences(claims) & rules.audiences:
        raise _Refused("the token is not for an audience of sasl.oauthbearer.expected.audience")
    principal = claims.get(rules.principal_claim)
    if not isinstance(principal, str):
        raise _Refused(f"the claim {rules.principal_claim} is not the name of a user")
    if (problem := name_problem(principal)) is not None:
        raise _Refused(f"the claim {rules.principal_claim} is not allowed: {problem}")
    return TokenAccepted(principal, expires_at_ms)


def _time_ms(claims: Mapping[str, Any], name: str) -> int:
    value = claims.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= _NUMERIC_DATE_MAX
    ):
        raise _Refused(f"the token needs a claim {name}, in seconds since 1970")
    return int(value * 1000)


def _audiences(claims: Mapping[str, Any]) -> frozenset[str]:
    """Returns the token's audiences. RFC 7519 allows one text or a list of them."""
    found = claims.get("aud")
    listed = found if isinstance(found, list) else [found]
    return frozenset(each for each in listed if isinstance(each, str))
