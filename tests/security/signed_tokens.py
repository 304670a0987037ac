"""Signed tokens and key sets for tests.

They are made with `cryptography` alone, so that the code under test must agree with another writer.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa, utils

from penstock.security.token_verdict import TokenAccepted
from penstock.security.tokens import KeySet, TokenRules, load_key_set

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
RULES = TokenRules("https://issuer.example", frozenset({"penstock"}))
CLAIMS: Mapping[str, Any] = {
    "iss": "https://issuer.example",
    "aud": "penstock",
    "sub": "alice",
    "iat": NOW_S - 60,
    "exp": NOW_S + 240,
}
ACCEPTED = TokenAccepted("alice", (NOW_S + 240) * 1000)
HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
CURVES: Mapping[str, tuple[str, ec.EllipticCurve, int]] = {
    "ES256": ("P-256", ec.SECP256R1(), 32),
    "ES384": ("P-384", ec.SECP384R1(), 48),
    "ES512": ("P-521", ec.SECP521R1(), 66),
}
Sign = Callable[[bytes], bytes]


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@cache
def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


@cache
def curve_key(algorithm: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(CURVES[algorithm][1])


@cache
def edwards_key(algorithm: str) -> ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey:
    if algorithm == "Ed448":
        return ed448.Ed448PrivateKey.generate()
    return ed25519.Ed25519PrivateKey.generate()


def signer(algorithm: str) -> Sign:
    digest = HASHES.get(algorithm[2:])
    if algorithm.startswith("RS") and digest:
        return lambda data: rsa_key().sign(data, padding.PKCS1v15(), digest)
    if algorithm.startswith("PS") and digest:
        pss = padding.PSS(padding.MGF1(digest), digest.digest_size)
        return lambda data: rsa_key().sign(data, pss, digest)
    if algorithm.startswith("ES") and digest:
        size = CURVES[algorithm][2]

        def sign(data: bytes) -> bytes:
            made = curve_key(algorithm).sign(data, ec.ECDSA(digest))
            r, s = utils.decode_dss_signature(made)
            return r.to_bytes(size) + s.to_bytes(size)

        return sign
    return edwards_key(algorithm).sign


def jwk(algorithm: str, kid: str = "k1", **more: Any) -> dict[str, Any]:
    """Returns the public key for the algorithm, as a JSON Web Key."""
    if algorithm[:2] in ("RS", "PS"):
        numbers = rsa_key().public_key().public_numbers()
        fields = {"kty": "RSA", "n": base64url(numbers.n.to_bytes(256)), "e": "AQAB"}
    elif algorithm in CURVES:
        curve, _, size = CURVES[algorithm]
        point = curve_key(algorithm).public_key().public_numbers()
        x, y = base64url(point.x.to_bytes(size)), base64url(point.y.to_bytes(size))
        fields = {"kty": "EC", "crv": curve, "x": x, "y": y}
    else:
        raw = edwards_key(algorithm).public_key().public_bytes_raw()
        crv = "Ed448" if algorithm == "Ed448" else "Ed25519"
        fields = {"kty": "OKP", "crv": crv, "x": base64url(raw)}
    return {"kid": kid, **fields, **more}


def key_set(*keys: Mapping[str, Any]) -> KeySet:
    return load_key_set(json.dumps({"keys": keys}).encode())


@cache
def good_keys() -> KeySet:
    return key_set(jwk("RS256"))


def encode(header: str, claims: str, sign: Sign) -> bytes:
    signed = f"{base64url(header.encode())}.{base64url(claims.encode())}"
    return f"{signed}.{base64url(sign(signed.encode()))}".encode()


def make(
    claims: Mapping[str, Any] = CLAIMS, algorithm: str = "RS256", kid: Any = "k1", **header: Any
) -> bytes:
    head = {"alg": algorithm, "kid": kid, **header}
    return encode(json.dumps(head), json.dumps(claims), signer(algorithm))


@cache
def good_token() -> bytes:
    return make()
