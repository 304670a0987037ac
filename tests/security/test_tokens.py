"""Which tokens are accepted, and which are not."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.exchange import NAME_BYTES_MAX
from penstock.security.token_verdict import (
    TOKEN_BYTES_MAX,
    KeyUnknown,
    TokenAccepted,
    TokenRejected,
    TokenVerdict,
)
from penstock.security.tokens import (
    ALGORITHMS,
    HEADER_BYTES_MAX,
    KID_CHARS_MAX,
    NO_KEYS,
    AcceptAny,
    KeySet,
    KeySetRefused,
    TokenChecker,
    TokenRules,
    UnsecuredTokenCheckerForTests,
    load_key_set,
)

from .signed_tokens import (
    ACCEPTED,
    CLAIMS,
    NOW_MS,
    NOW_S,
    RULES,
    base64url,
    encode,
    good_keys,
    good_token,
    jwk,
    key_set,
    make,
    rsa_key,
    signer,
)


def check(token: bytes, keys: KeySet | None = None, now_ms: int = NOW_MS) -> TokenVerdict:
    return TokenChecker(RULES).check(token, good_keys() if keys is None else keys, now_ms)


def reason(verdict: TokenVerdict) -> str:
    assert isinstance(verdict, TokenRejected), verdict
    return verdict.reason


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in CLAIMS.items() if key != name}


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_token_of_each_algorithm_is_accepted(algorithm: str) -> None:
    keys = key_set(jwk(algorithm, use="sig", alg=algorithm))
    assert check(make(algorithm=algorithm), keys) == ACCEPTED


def test_the_algorithms_are_those_with_public_keys() -> None:
    signed = {f"{kind}{size}" for kind in ("RS", "PS", "ES") for size in (256, 384, 512)}
    assert signed | {"EdDSA"} <= ALGORITHMS
    assert not [name for name in ALGORITHMS if name == "none" or name.startswith("HS")]


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", ""])
def test_an_unsecured_token_is_refused(name: str) -> None:
    for sign in (lambda _: b"", signer("RS256")):
        token = encode(json.dumps({"alg": name, "kid": "k1"}), json.dumps(CLAIMS), sign)
        assert "algorithm" in reason(check(token))


def test_a_token_whose_signature_was_removed_is_refused() -> None:
    head, claims, _ = good_token().split(b".")
    assert "signature" in reason(check(head + b"." + claims + b"."))


def test_the_public_key_is_no_hmac_secret() -> None:
    """The known attack: HS256 with the bytes of the issuer's public key as the secret."""
    public = rsa_key().public_key()
    for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER):
        secret = public.public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)

        def sign(data: bytes, secret: bytes = secret) -> bytes:
            return hmac.new(secret, data, hashlib.sha256).digest()

        for name in ("HS256", "RS256"):
            header = json.dumps({"alg": name, "kid": "k1"})
            assert isinstance(check(encode(header, json.dumps(CLAIMS), sign)), TokenRejected)


def test_a_secret_in_the_key_set_is_not_used() -> None:
    secret = {"kty": "oct", "kid": "k1", "k": base64url(b"s" * 32)}
    with pytest.raises(KeySetRefused, match="none of the 1 keys"):
        key_set(secret)
    keys = key_set(secret, jwk("ES256", "k2"))
    assert keys.kids == {"k2"}
    assert keys.skipped == 1
    header = json.dumps({"alg": "HS256", "kid": "k1"})
    token = encode(header, json.dumps(CLAIMS), lambda data: hmac.digest(b"s" * 32, data, "sha256"))
    assert isinstance(check(token, keys), TokenRejected)


def test_a_key_is_used_with_its_own_algorithm_only() -> None:
    token = make(algorithm="RS256")
    assert "not of the token's" in reason(check(token, key_set(jwk("RS256", alg="PS256"))))
    assert "not of the token's" in reason(check(token, key_set(jwk("ES256"))))
    other_curve = make(algorithm="ES256")
    assert "not of the token's" in reason(check(other_curve, key_set(jwk("ES384"))))


def test_rules_can_allow_fewer_algorithms() -> None:
    rules = dataclasses.replace(RULES, algorithms=frozenset({"ES256"}))
    assert "algorithm" in reason(TokenChecker(rules).check(good_token(), good_keys(), NOW_MS))


def test_keys_of_different_types_may_share_a_kid() -> None:
    keys = key_set(jwk("RS256"), jwk("ES256"))
    assert check(make(algorithm="RS256"), keys) == ACCEPTED
    assert check(make(algorithm="ES256"), keys) == ACCEPTED


def test_a_token_of_another_key_is_refused() -> None:
    other = ec.generate_private_key(ec.SECP256R1()).public_key().public_numbers()
    x, y = base64url(other.x.to_bytes(32)), base64url(other.y.to_bytes(32))
    keys = key_set({"kty": "EC", "kid": "k1", "crv": "P-256", "x": x, "y": y})
    assert "signature" in reason(check(make(algorithm="ES256"), keys))


def test_a_token_cannot_bring_its_key() -> None:
    """Headers with a key, or the address of one, change nothing."""
    own = ed25519.Ed25519PrivateKey.generate()
    raw = base64url(own.public_key().public_bytes_raw())
    brought = {"kty": "OKP", "crv": "Ed25519", "x": raw, "kid": "k1"}
    header = {"alg": "EdDSA", "jwk": brought, "jku": "https://attacker.example/keys"}
    known = json.dumps({**header, "kid": "k1"})
    unknown = json.dumps({**header, "kid": "mine"})
    claims = json.dumps(CLAIMS)
    keys = key_set(jwk("EdDSA"))
    assert "signature" in reason(check(encode(known, claims, own.sign), keys))
    assert check(encode(unknown, claims, own.sign), keys) == KeyUnknown("mine")


def test_a_token_with_critical_headers_is_refused() -> None:
    assert "critical" in reason(check(make(crit=["b64"], b64=False)))
    assert "critical" in reason(check(make(crit=[])))


def test_an_unknown_kid_is_reported() -> None:
    assert check(make(kid="k2")) == KeyUnknown("k2")
    assert check(good_token(), NO_KEYS) == KeyUnknown("k1")


def test_an_expired_token_does_not_ask_for_its_key() -> None:
    """The issuer removes a key when the last of its tokens has expired."""
    assert "expired" in reason(check(make({**CLAIMS, "exp": NOW_S - 60}, kid="old")))


@pytest.mark.parametrize("kid", ["", 7, None, ["k1"], {"a": 1}, "k\n1", "k\x001", "\ud800"])
def test_a_kid_that_is_no_printable_text_is_refused(kid: Any) -> None:
    assert "kid" in reason(check(make(kid=kid)))


def test_the_length_of_a_kid_is_limited() -> None:
    longest = "k" * KID_CHARS_MAX
    assert check(make(kid=longest)) == KeyUnknown(longest)
    assert "kid" in reason(check(make(kid=longest + "k")))
    assert check(make(kid=longest), key_set(jwk("RS256", longest))) == ACCEPTED
    with pytest.raises(KeySetRefused):
        key_set(jwk("RS256", longest + "k"))


def test_long_tokens_and_headers_are_refused_unread() -> None:
    assert str(TOKEN_BYTES_MAX) in reason(check(b"a" * (TOKEN_BYTES_MAX + 1)))
    assert "1048576 bytes" in reason(check(b"." * (1 << 20)))
    assert "header" in reason(check(make(x5c=["A" * HEADER_BYTES_MAX])))


def test_exp_and_iat_are_required() -> None:
    for name in ("exp", "iat"):
        assert f"claim {name}" in reason(check(make(without(name))))


@pytest.mark.parametrize("name", ["exp", "iat", "nbf"])
@pytest.mark.parametrize(
    "value",
    [str(NOW_S), None, True, [NOW_S], {"s": NOW_S}, -1, 10**15, 10**400, "", float(10**300)],
)
def test_a_time_that_is_no_number_of_seconds_is_refused(name: str, value: Any) -> None:
    assert f"claim {name}" in reason(check(make({**CLAIMS, name: value})))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_that_json_does_not_have_are_refused(text: str) -> None:
    claims = json.dumps(CLAIMS).replace(str(CLAIMS["exp"]), text)
    assert text in claims
    header = json.dumps({"alg": "RS256", "kid": "k1"})
    assert isinstance(check(encode(header, claims, signer("RS256"))), TokenRejected)


def test_times_may_have_fractions() -> None:
    claims = {**CLAIMS, "iat": NOW_S - 0.5, "exp": NOW_S + 0.25}
    assert check(make(claims)) == TokenAccepted("alice", NOW_MS + 250)


@pytest.mark.parametrize(
    ("name", "early_s", "late_s", "word"),
    [
        ("exp", -31, -29, "expired"),
        ("nbf", 31, 29, "not valid yet"),
        ("iat", 31, 29, "in the future"),
    ],
)
def test_clocks_may_differ_by_30_seconds(name: str, early_s: int, late_s: int, word: str) -> None:
    assert word in reason(check(make({**CLAIMS, name: NOW_S + early_s})))
    verdict = check(make({**CLAIMS, name: NOW_S + late_s}))
    assert isinstance(verdict, TokenAccepted)


def test_a_token_expires_at_the_end_of_the_skew() -> None:
    token = good_token()
    end_ms = ACCEPTED.expires_at_ms + RULES.skew_ms
    assert check(token, now_ms=end_ms - 1) == ACCEPTED
    assert "expired" in reason(check(token, now_ms=end_ms))


def test_a_token_that_expires_before_it_was_issued_is_refused() -> None:
    claims = {**CLAIMS, "iat": NOW_S + 10, "exp": NOW_S + 9}
    assert "before it was issued" in reason(check(make(claims)))


@pytest.mark.parametrize(
    "issuer", ["https://issuer.example/", "", None, 7, ["https://issuer.example"]]
)
def test_another_issuer_is_refused(issuer: Any) -> None:
    assert "issuer" in reason(check(make({**CLAIMS, "iss": issuer})))
    assert "issuer" in reason(check(make(without("iss"))))


@pytest.mark.parametrize(
    "audience", ["other", [], ["other"], [["penstock"]], {"penstock": 1}, None, 7]
)
def test_another_audience_is_refused(audience: Any) -> None:
    assert "audience" in reason(check(make({**CLAIMS, "aud": audience})))
    assert "audience" in reason(check(make(without("aud"))))


def test_one_of_several_audiences_is_enough() -> None:
    assert check(make({**CLAIMS, "aud": ["other", "penstock"]})) == ACCEPTED


@pytest.mark.parametrize(
    "subject",
    [
        *("", 7, None, ["alice"], "a\nb", "\ud800", "a" * 256, "é" * 128),
        *("*", "ANONYMOUS", " alice", "alice "),
    ],
)
def test_a_principal_is_the_name_of_a_user(subject: Any) -> None:
    assert "claim sub" in reason(check(make({**CLAIMS, "sub": subject})))
    assert "claim sub" in reason(check(make(without("sub"))))


def test_another_claim_may_be_the_principal() -> None:
    rules = dataclasses.replace(RULES, principal_claim="client_id")
    token = make({**CLAIMS, "client_id": "b" * NAME_BYTES_MAX})
    verdict = TokenChecker(rules).check(token, good_keys(), NOW_MS)
    assert isinstance(verdict, TokenAccepted)
    assert verdict.principal == "b" * NAME_BYTES_MAX
    assert "client_id" in reason(TokenChecker(rules).check(good_token(), good_keys(), NOW_MS))


@pytest.mark.parametrize(
    ("header", "claims"),
    [
        ('{"alg":"none","alg":"RS256","kid":"k1"}', None),
        ('{"alg":"RS256","kid":"k2","kid":"k1"}', None),
        (None, json.dumps(CLAIMS)[:-1] + ',"sub":"admin"}'),
        (None, json.dumps(CLAIMS)[:-1] + ',"x":{"a":1,"a":2}}'),
    ],
)
def test_a_name_that_occurs_twice_is_refused(header: str | None, claims: str | None) -> None:
    token = encode(
        header or '{"alg":"RS256","kid":"k1"}', claims or json.dumps(CLAIMS), signer("RS256")
    )
    assert "twice" in reason(check(token))


@pytest.mark.parametrize(
    "text",
    ["[" * 20_000, '{"a":' * 4_000, "[]", "7", '"x"', "", "{", "{} {}", "\ufeff{}", "{\x00}"],
)
def test_other_json_than_an_object_is_refused(text: str) -> None:
    good = json.dumps({"alg": "RS256", "kid": "k1"})
    assert "JSON" in reason(check(encode(good, text, signer("RS256"))))
    if len(text) < HEADER_BYTES_MAX // 2:
        assert "JSON" in reason(check(encode(text, json.dumps(CLAIMS), signer("RS256"))))
    with pytest.raises(KeySetRefused):
        load_key_set(text.encode())


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token + b"=",
        lambda token: b" " + token,
        lambda token: token + b"\n",
        lambda token: token.replace(b".", b".."),
        lambda token: token + b".",
        lambda token: token.replace(b".", b"=."),
        lambda token: token[:-1] + bytes([token[-1] ^ 1]),
    ],
)
def test_a_token_has_one_spelling(change: Callable[[bytes], bytes]) -> None:
    """Padding, spaces and unused bits of base64 are refused, so no other text is this token."""
    assert isinstance(check(change(good_token())), TokenRejected)


def test_refusals_show_nothing_of_the_token() -> None:
    claims = {**CLAIMS, "sub": "s3cret-name", "iss": "https://s3cret.example"}
    verdict = check(make(claims))
    assert "s3cret" not in repr(verdict)
    assert "s3cret" not in repr(check(make({**claims, "iss": CLAIMS["iss"]}, kid="k\n")))
    assert "n=" not in repr(good_keys())


@pytest.mark.parametrize("issuer", ["", None, AcceptAny.AUDIENCE])
def test_rules_without_an_issuer_are_refused(issuer: Any) -> None:
    with pytest.raises(ValueError, match=r"sasl\.oauthbearer\.expected\.issuer"):
        TokenRules(issuer, frozenset({"penstock"}))


@pytest.mark.parametrize(
    "audiences", [frozenset(), None, "penstock", frozenset({""}), AcceptAny.ISSUER]
)
def test_rules_without_an_audience_are_refused(audiences: Any) -> None:
    with pytest.raises(ValueError, match=r"sasl\.oauthbearer\.expected\.audience"):
        TokenRules("https://issuer.example", audiences)


@pytest.mark.parametrize("algorithms", [{"none"}, {"RS256", "HS256"}, set()])
def test_rules_with_unsafe_algorithms_are_refused(algorithms: set[str]) -> None:
    with pytest.raises(ValueError, match="algorithms"):
        dataclasses.replace(RULES, algorithms=frozenset(algorithms))


def test_other_rules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sub\.claim\.name"):
        dataclasses.replace(RULES, principal_claim="")
    with pytest.raises(ValueError, match="skew"):
        dataclasses.replace(RULES, skew_ms=-1)


def test_any_issuer_and_audience_can_be_asked_for() -> None:
    rules = TokenRules(AcceptAny.ISSUER, AcceptAny.AUDIENCE)
    claims = {name: CLAIMS[name] for name in ("sub", "iat", "exp")}
    assert TokenChecker(rules).check(make(claims), good_keys(), NOW_MS) == ACCEPTED


def unsecured(claims: Mapping[str, Any] = CLAIMS, algorithm: str = "none") -> bytes:
    return encode(json.dumps({"alg": algorithm}), json.dumps(claims), lambda _: b"")


def test_the_checker_for_tests_accepts_unsecured_tokens_only() -> None:
    checker = UnsecuredTokenCheckerForTests(TokenRules(AcceptAny.ISSUER, AcceptAny.AUDIENCE))
    assert checker.check(unsecured(), NO_KEYS, NOW_MS) == ACCEPTED
    assert "signed" in reason(checker.check(good_token(), good_keys(), NOW_MS))
    assert "signed" in reason(checker.check(unsecured() + b"YQ", NO_KEYS, NOW_MS))
    assert "signed" in reason(checker.check(unsecured(algorithm="RS256"), NO_KEYS, NOW_MS))
    assert "exp" in reason(checker.check(unsecured(without("exp")), NO_KEYS, NOW_MS))
    assert "expired" in reason(checker.check(unsecured(), NO_KEYS, NOW_MS + 10**6))


@given(st.binary(max_size=200))
def test_random_bytes_are_never_accepted(token: bytes) -> None:
    assert isinstance(check(token), TokenRejected)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(0, 1e300)
    | st.text("k1aé\n", max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from(["alg", "kid", "crit", "jwk", "typ"]), json_values),
    st.dictionaries(st.sampled_from(["exp", "iat", "nbf", "iss", "aud", "sub"]), json_values),
    st.binary(max_size=300),
)
def test_random_json_is_never_accepted(
    header: dict[str, Any], claims: dict[str, Any], signature: bytes
) -> None:
    valid = {"alg": "RS256", "kid": "k1"}
    for head in (header, {**valid, **header}, valid):
        for body in (claims, {**CLAIMS, **claims}):
            token = encode(json.dumps(head), json.dumps(body), lambda _: signature)
            assert not isinstance(check(token), TokenAccepted)


@given(st.data())
def test_a_changed_token_is_never_accepted(data: st.DataObject) -> None:
    token = bytearray(good_token())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(token) - 1))
        cut = data.draw(st.integers(0, 3))
        token[at : at + cut] = data.draw(st.binary(max_size=3))
    if bytes(token) != good_token():
        assert not isinstance(check(bytes(token)), TokenAccepted)
