"""Delegation tokens: lifetimes, who may change one, and what is derived from the secret key."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.security.delegation_tokens import (
    CHECK_SALT_BYTES,
    ITERATIONS,
    RENEWERS_MAX,
    DelegationToken,
    TokenKeys,
    TokenLifetimes,
    expired,
    new_token,
    renewed,
    token_id_of,
)
from penstock.security.scram_credentials import ScramMechanism
from penstock.wire.errors import ErrorCode, KafkaError

SECRET = "a secret key for tests"
DAY_MS = 86_400_000
LIFETIMES = TokenLifetimes(7 * DAY_MS, DAY_MS)
TOKEN_ID = "u7HkYzQ0R1mV5p2d8sL3wA"


def token(max_lifetime_ms: int = -1, now_ms: int = 1000) -> DelegationToken:
    return new_token(TOKEN_ID, "alice", "admin", ["bob"], max_lifetime_ms, LIFETIMES, now_ms)


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


def test_a_token_lasts_as_long_as_the_settings_and_the_request_allow() -> None:
    assert (token().expires_ms, token().max_ms) == (1000 + DAY_MS, 1000 + 7 * DAY_MS)
    assert token(0) == token(-1) == token(2**63 - 1)
    short = token(5000)
    assert (short.expires_ms, short.max_ms) == (6000, 6000)
    assert short.is_valid(5999) and not short.is_valid(6000)


def test_a_time_that_does_not_fit_into_64_bits_is_the_last_that_does() -> None:
    far = TokenLifetimes(2**63 - 1, 2**63 - 1)
    made = new_token(TOKEN_ID, "alice", "alice", [], -1, far, 1000)
    assert made.max_ms == made.expires_ms == 2**63 - 1
    assert renewed(made, "alice", 2**63 - 1, far, 2000).expires_ms == 2**63 - 1


def test_a_renewal_ends_at_the_end_of_the_maximum_lifetime() -> None:
    made = token()
    assert renewed(made, "alice", -1, LIFETIMES, 2000).expires_ms == 2000 + DAY_MS
    assert renewed(made, "bob", 500, LIFETIMES, 2000).expires_ms == 2500
    late = replace(made, expires_ms=made.max_ms)
    assert renewed(late, "alice", -1, LIFETIMES, made.max_ms - 1).expires_ms == made.max_ms


def test_a_token_ends_after_the_period_or_at_once() -> None:
    made = token()
    assert expired(made, "alice", -1, 2000) is None
    now = expired(made, "bob", 0, 2000)
    assert now is not None and now.expires_ms == 2000 and not now.is_valid(2000)
    later = expired(made, "alice", 100 * DAY_MS, 2000)
    assert later is not None and later.expires_ms == made.max_ms


@pytest.mark.parametrize("user", ["admin", "carol", "Alice", ""])
def test_only_the_owner_and_the_renewers_may_change_a_token(user: str) -> None:
    """As in Kafka, who has created it for another user may not."""
    changes: tuple[Callable[[], object], ...] = (
        lambda: renewed(token(), user, -1, LIFETIMES, 2000),
        lambda: expired(token(), user, -1, 2000),
    )
    for change in changes:
        with pytest.raises(KafkaError) as error:
            change()
        assert code_of(error) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_a_token_that_has_expired_cannot_be_renewed_or_expired() -> None:
    changes: tuple[Callable[[], object], ...] = (
        lambda: renewed(token(5000), "alice", -1, LIFETIMES, 6000),
        lambda: expired(token(5000), "alice", -1, 6000),
    )
    for change in changes:
        with pytest.raises(KafkaError) as error:
            change()
        assert code_of(error) == ErrorCode.DELEGATION_TOKEN_EXPIRED


@pytest.mark.parametrize(
    ("owner", "renewers"),
    [
        ("", []),
        ("*", []),
        ("ANONYMOUS", []),
        ("alice", ["bob", "ANONYMOUS"]),
        ("alice", ["x" * 256]),
        ("alice", [f"u{each}" for each in range(RENEWERS_MAX + 1)]),
    ],
)
def test_names_that_nobody_can_log_in_with_are_refused(owner: str, renewers: list[str]) -> None:
    with pytest.raises(KafkaError) as error:
        new_token(TOKEN_ID, owner, "admin", renewers, -1, LIFETIMES, 0)
    assert code_of(error) == ErrorCode.INVALID_REQUEST


def test_the_hmac_is_the_one_of_kafka() -> None:
    """HMAC-SHA-512 of the id with the secret key, and its base64 is the password."""
    keys = TokenKeys(SECRET)
    expected = hmac.new(SECRET.encode(), TOKEN_ID.encode(), hashlib.sha512).digest()
    assert keys.hmac(TOKEN_ID) == expected
    work = keys.password_hash(ScramMechanism.SHA_256, TOKEN_ID)
    assert (work.password, work.iterations) == (base64.b64encode(expected), ITERATIONS)


def test_what_is_derived_differs_by_purpose_id_and_mechanism() -> None:
    keys = TokenKeys(SECRET)
    sha_256, sha_512 = ScramMechanism
    derived = {
        keys.hmac(TOKEN_ID),
        keys.hmac("other"),
        keys.fingerprint(keys.hmac(TOKEN_ID)),
        keys.fingerprint(TOKEN_ID.encode()),
        keys.salt(sha_256, TOKEN_ID),
        keys.salt(sha_512, TOKEN_ID),
        keys.salt(sha_256, "other"),
        TokenKeys("another secret key").hmac(TOKEN_ID),
    }
    assert len(derived) == 8


def test_a_short_secret_key_is_refused_without_telling_it() -> None:
    with pytest.raises(ValueError, match="16 or more") as error:
        TokenKeys("hunter2")
    assert "hunter2" not in str(error.value)


def test_no_text_form_shows_a_secret() -> None:
    keys = TokenKeys(SECRET)
    shown = repr(keys) + repr(keys.password_hash(ScramMechanism.SHA_512, TOKEN_ID))
    assert SECRET not in shown
    assert base64.b64encode(keys.hmac(TOKEN_ID)).decode() not in shown


def test_an_id_has_22_characters_and_does_not_look_like_an_option() -> None:
    assert token_id_of(bytes(16)) == "A" * 22
    assert token_id_of(b"\xf8" + bytes(15)) is None


def test_a_check_fits_only_the_secret_key_that_it_was_made_with() -> None:
    """Two checks of one key differ, and a check shows neither the key nor its digest."""
    keys, others = TokenKeys("a secret of the tests"), TokenKeys("another secret of the tests")
    check = keys.make_check(b"s" * CHECK_SALT_BYTES)
    assert keys.fits(check)
    assert not others.fits(check)
    assert check.digest != keys.make_check(b"t" * CHECK_SALT_BYTES).digest
    assert check.digest.hex() not in repr(check)
    assert repr(check.digest) not in repr(check)
