"""Which keys of a token issuer are used, when they are fetched, and how long they are used."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.token_keys import (
    KIDS_REMEMBERED_MAX,
    AwaitFetch,
    FetchNow,
    KeyRefresh,
    RefreshPolicy,
    RefuseKid,
    WaitUntil,
)
from penstock.security.tokens import (
    KEY_SET_BYTES_MAX,
    KEYS_MAX,
    KeySetRefused,
    TokenChecker,
    load_key_set,
)

from .signed_tokens import ACCEPTED, NOW_MS, RULES, base64url, good_token, jwk, key_set, rsa_key

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
FETCH = FetchNow(5 * SECOND)


def fetched(now_ms: int = 0, kids: tuple[str, ...] = ("k1",)) -> KeyRefresh:
    """Returns a schedule whose first fetch succeeded."""
    refresh = KeyRefresh()
    assert refresh.on_timer(now_ms) == FETCH
    assert refresh.on_fetched(kids, now_ms) == WaitUntil(now_ms + HOUR)
    return refresh


def reason(decision: object) -> str:
    assert isinstance(decision, RefuseKid), decision
    return decision.reason


def test_keys_are_fetched_at_the_start_and_every_hour() -> None:
    refresh = fetched(5)
    assert refresh.on_timer(5 + HOUR - 1) == WaitUntil(5 + HOUR)
    assert refresh.on_timer(5 + HOUR) == FETCH
    assert refresh.on_fetched(["k1"], HOUR + SECOND) == WaitUntil(2 * HOUR + SECOND)


def test_there_is_one_fetch_at_a_time() -> None:
    refresh = KeyRefresh()
    assert refresh.on_timer(0) == FETCH
    assert refresh.on_timer(0) == AwaitFetch()
    assert refresh.on_unknown_kid("k1", 1) == AwaitFetch()
    refresh.on_fetched(["k1"], 2)
    assert refresh.on_timer(3) == WaitUntil(2 + HOUR)


def test_an_unknown_kid_is_fetched_at_once() -> None:
    """The issuer has a new key, and clients have tokens of it."""
    refresh = fetched()
    assert refresh.on_unknown_kid("k2", 7) == FETCH
    assert refresh.on_unknown_kid("k2", 8) == AwaitFetch()
    assert refresh.on_fetched(["k1", "k2"], 9) == WaitUntil(9 + HOUR)
    assert refresh.remembered == 0


def test_unknown_kids_cause_one_fetch_a_minute() -> None:
    refresh = fetched()
    assert refresh.on_unknown_kid("a", 0) == FETCH
    refresh.on_fetched(["k1"], 1)
    assert "less than a minute" in reason(refresh.on_unknown_kid("b", MINUTE - 1))
    assert refresh.on_unknown_kid("b", MINUTE) == FETCH


def test_a_kid_that_was_asked_for_too_early_is_fetched_again_after_a_minute() -> None:
    """The issuer signs with a new key shortly before its key set has that key."""
    refresh = fetched()
    assert refresh.on_unknown_kid("new", 0) == FETCH
    refresh.on_fetched(["k1"], 1)
    assert "no key with this kid" in reason(refresh.on_unknown_kid("new", MINUTE))
    assert refresh.on_unknown_kid("new", MINUTE + 1) == FETCH
    refresh.on_fetched(["k1", "new"], MINUTE + 2)
    assert refresh.remembered == 0


def test_a_kid_that_was_not_found_leaves_the_fetch_of_the_minute_to_others() -> None:
    refresh = fetched()
    assert refresh.on_unknown_kid("a", 0) == FETCH
    refresh.on_fetched(["k1"], SECOND)
    assert "no key with this kid" in reason(refresh.on_unknown_kid("a", MINUTE))
    assert refresh.on_unknown_kid("b", MINUTE) == FETCH


def test_a_fetch_whose_end_is_not_reported_counts_as_failed_after_its_timeout() -> None:
    by_timer, by_kid = KeyRefresh(), KeyRefresh()
    for refresh in (by_timer, by_kid):
        assert refresh.on_timer(0) == FETCH
        assert refresh.on_timer(5 * SECOND - 1) == AwaitFetch()
        assert refresh.on_unknown_kid("k1", 5 * SECOND - 1) == AwaitFetch()
    assert by_timer.on_timer(5 * SECOND) == WaitUntil(6 * SECOND)
    assert by_timer.on_timer(6 * SECOND) == FETCH
    assert by_timer.on_timer(HOUR) == FETCH, "this fetch has no end either"
    assert "could not be fetched" in reason(by_kid.on_unknown_kid("k1", 5 * SECOND))
    assert by_kid.remembered == 0
    assert by_kid.on_unknown_kid("k1", 6 * SECOND) == FETCH


def test_the_end_of_a_fetch_may_be_reported_after_its_timeout() -> None:
    failed, good = KeyRefresh(), KeyRefresh()
    for refresh in (failed, good):
        refresh.on_timer(0)
        assert refresh.on_timer(5 * SECOND) == WaitUntil(6 * SECOND)
    assert failed.on_fetch_failed(5 * SECOND, 0) == WaitUntil(6 * SECOND), "it failed once"
    assert good.on_fetched(["k1"], 5 * SECOND) == WaitUntil(5 * SECOND + HOUR)
    assert good.keys_usable(5 * SECOND)


def test_a_remembered_kid_is_forgotten_when_the_issuer_has_it() -> None:
    refresh = fetched()
    refresh.on_unknown_kid("late", 0)
    refresh.on_fetched(["k1"], 1)
    assert refresh.remembered == 1
    refresh.on_timer(HOUR + 1)
    refresh.on_fetched(["late"], HOUR + 2)
    assert refresh.remembered == 0


def test_few_unknown_kids_are_remembered() -> None:
    """A flood of key ids takes no memory, and does not keep a new key away."""
    refresh = fetched()
    fetches = 0
    for at in range(100):
        now = at * MINUTE
        fetches += refresh.on_unknown_kid(f"{at}-first", now) == FETCH
        for other in range(100):
            assert refresh.on_unknown_kid(f"{at}-{other}", now) == AwaitFetch()
            assert refresh.remembered <= KIDS_REMEMBERED_MAX
        refresh.on_fetched(["k1"], now)
        assert refresh.remembered <= KIDS_REMEMBERED_MAX
    assert fetches == 100
    assert refresh.on_unknown_kid("new", 100 * MINUTE) == FETCH


def test_old_keys_are_used_while_fetches_fail_but_not_for_ever() -> None:
    refresh = fetched()
    assert refresh.on_timer(HOUR) == FETCH
    refresh.on_fetch_failed(HOUR, 0)
    assert refresh.keys_usable(24 * HOUR - 1)
    assert not refresh.keys_usable(24 * HOUR)
    assert refresh.on_timer(24 * HOUR) == FETCH
    refresh.on_fetched(["k1"], 24 * HOUR)
    assert refresh.keys_usable(24 * HOUR)


def test_without_a_first_fetch_there_are_no_keys() -> None:
    refresh = KeyRefresh()
    assert not refresh.keys_usable(0)
    refresh.on_timer(0)
    refresh.on_fetch_failed(0, 0)
    assert not refresh.keys_usable(0)
    assert "could not be fetched" in reason(refresh.on_unknown_kid("k1", SECOND - 1))
    assert refresh.on_unknown_kid("k1", SECOND) == FETCH


def test_the_pause_after_a_failure_doubles_up_to_a_minute() -> None:
    refresh = KeyRefresh()
    pauses = []
    now = 0
    for _ in range(100):
        assert refresh.on_timer(now) == FETCH
        after = refresh.on_fetch_failed(now, 0).at_ms
        pauses.append((after - now) // SECOND)
        now = after
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert set(pauses[8:]) == {60}
    refresh.on_timer(now)
    refresh.on_fetched(["k1"], now)
    refresh.on_timer(now + HOUR)
    assert refresh.on_fetch_failed(now + HOUR, 0) == WaitUntil(now + HOUR + SECOND)


def test_a_random_part_shortens_the_pause() -> None:
    refresh = KeyRefresh()
    refresh.on_timer(0)
    assert refresh.on_fetch_failed(0, 0.5) == WaitUntil(750)


@pytest.mark.parametrize(
    "changed",
    [
        {"refresh_ms": 0},
        {"unknown_kid_ms": 0},
        {"retry_ms": 0},
        {"fetch_timeout_ms": -1},
        {"kid_absent_ms": -1},
        {"retry_max_ms": 1},
        {"age_max_ms": MINUTE},
    ],
)
def test_times_that_make_no_sense_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|only"):
        RefreshPolicy(**changed)


events = st.lists(
    st.tuples(
        st.sampled_from(["timer", "kid", "fetched", "failed"]),
        st.integers(0, 90 * SECOND),
        st.sampled_from("abcdefghijklmnopqrstuvwxyz"),
    ),
    max_size=80,
)


@given(events)
def test_the_limits_hold_for_any_events(steps: list[tuple[str, int, str]]) -> None:
    """A fetch for a kid is at least a minute after the last. No fetch begins before the one before
    it has ended, or was to end."""
    refresh = KeyRefresh()
    now, fetching, gives_up = 0, False, 0
    fetches_for_kids: list[int] = []
    last_success: int | None = None
    for kind, later, kid in steps:
        now += later
        fetching = fetching and now < gives_up
        decision: object = None
        if kind == "timer":
            decision = refresh.on_timer(now)
        elif kind == "kid":
            decision = refresh.on_unknown_kid(kid, now)
            if decision == FETCH:
                fetches_for_kids.append(now)
        elif fetching and kind == "fetched":
            refresh.on_fetched([kid], now)
            fetching, last_success = False, now
        elif fetching:
            fetching = False
            assert now < refresh.on_fetch_failed(now, 0.9).at_ms <= now + MINUTE
        assert (decision == AwaitFetch()) == (fetching and kind == "timer") or kind == "kid"
        assert not (fetching and decision == FETCH)
        if decision == FETCH:
            fetching, gives_up = True, now + FETCH.timeout_ms
        assert refresh.remembered <= KIDS_REMEMBERED_MAX
        assert refresh.keys_usable(now) == (
            last_success is not None and now - last_success < 24 * HOUR
        )
    assert all(later - earlier >= MINUTE for earlier, later in pairwise(fetches_for_kids))


@pytest.mark.parametrize(
    "changed",
    [
        {"use": "enc"},
        {"key_ops": ["sign"]},
        {"key_ops": "verify"},
        {"alg": "RSA-OAEP"},
        {"alg": 7},
        {"kty": "new"},
        {"kty": ["RSA"]},
        {"kid": None},
        {"kid": ""},
        {"n": 7},
        {"n": "!"},
        {"n": "\ud800"},
        {"n": ""},
        {"e": ""},
        {"e": "AQ"},
        {"e": "A" * 12},
        {"n": base64url(b"\xff" * 128)},
        {"n": base64url(b"\xff" * 1025)},
    ],
)
def test_keys_of_no_use_are_skipped(changed: dict[str, Any]) -> None:
    """The others of the set stay usable."""
    keys = key_set({**jwk("RS256", "bad"), **changed}, jwk("RS256"))
    assert keys.kids == {"k1"}
    assert keys.skipped == 1
    assert TokenChecker(RULES).check(good_token(), keys, NOW_MS) == ACCEPTED


@pytest.mark.parametrize(
    "entry",
    [
        *(7, None, [], {}, {"kid": "k", "kty": "EC"}),
        {**jwk("ES256"), "crv": "secp256k1"},
        {**jwk("ES256"), "crv": "P-384"},
        {**jwk("ES256"), "y": base64url(b"\x01" * 32)},
        {**jwk("EdDSA"), "crv": "X25519"},
        {**jwk("EdDSA"), "x": base64url(b"short")},
    ],
)
def test_entries_that_are_no_key_are_skipped(entry: Any) -> None:
    assert key_set(entry, jwk("RS256", "other")).kids == {"other"}


def test_keys_with_the_same_kid_and_type_are_skipped_and_the_others_stay() -> None:
    """Nobody can know which of them a token means."""
    for copies in (2, 3):
        keys = key_set(*[jwk("ES256", "twice")] * copies, jwk("RS256"), jwk("RS256", "twice"))
        assert keys.kids == {"k1", "twice"}
        assert keys.find("twice", "EC") is None
        assert keys.find("twice", "RSA") is not None
        assert keys.skipped == copies
        assert TokenChecker(RULES).check(good_token(), keys, NOW_MS) == ACCEPTED
    assert key_set(jwk("ES256", "twice"), jwk("ES256", "twice"), jwk("RS256")).kids == {"k1"}
    with pytest.raises(KeySetRefused, match="same kid"):
        key_set(jwk("RS256"), jwk("RS256"))


def test_a_key_for_encryption_may_have_the_kid_of_a_key_for_signatures() -> None:
    keys = key_set(jwk("RS256", use="enc"), jwk("RS256"))
    assert TokenChecker(RULES).check(good_token(), keys, NOW_MS) == ACCEPTED


def test_the_private_half_of_a_key_is_not_needed_or_kept() -> None:
    numbers = rsa_key().private_numbers()
    private = jwk("RS256", d=base64url(numbers.d.to_bytes(256)))
    keys = key_set(private)
    key = keys.find("k1", "RSA")
    assert key is not None
    assert not key.is_private
    assert TokenChecker(RULES).check(good_token(), keys, NOW_MS) == ACCEPTED


def test_key_sets_are_limited() -> None:
    key = jwk("ES256")
    assert len(key_set(*({**key, "kid": str(at)} for at in range(KEYS_MAX))).kids) == KEYS_MAX
    with pytest.raises(KeySetRefused, match=str(KEYS_MAX)):
        key_set(*({**key, "kid": str(at)} for at in range(KEYS_MAX + 1)))
    with pytest.raises(KeySetRefused, match=str(KEY_SET_BYTES_MAX)):
        load_key_set(b" " * (KEY_SET_BYTES_MAX + 1))
    for text in (b'{"keys":{}}', b"{}", b'{"keys":[]}', b"<html>", b"\xff"):
        with pytest.raises(KeySetRefused):
            load_key_set(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("AQB_\n", max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["kty", "n", "e", "alg", "use", "key_ops"]), json_values))
def test_any_key_is_read_or_skipped(changed: dict[str, Any]) -> None:
    keys = key_set({**jwk("RS256", "changed"), **changed}, jwk("ES256", "k2"))
    assert "k2" in keys.kids
