"""SCRAM credentials: their stored form, and the rules of KIP-554."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.exchange import NAME_BYTES_MAX
from penstock.security.scram_credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    SCRAM_MECHANISMS,
    CredentialInvalid,
    CredentialKey,
    Deletion,
    ScramCredential,
    ScramMechanism,
    Upsertion,
    UserDescription,
    alter,
    decode,
    describe,
    encode,
    from_salted_password,
)
from penstock.wire.errors import ErrorCode

SHA_256, SHA_512 = ScramMechanism
ALICE = from_salted_password(SHA_256, bytes(32), b"salt", 4096)
BOB = from_salted_password(SHA_512, bytes(64), b"salt", 8192)
EXISTING = {("alice", SHA_256): ALICE, ("alice", SHA_512): BOB, ("bob", SHA_512): BOB}


def _upsertion(user: str, **changes: Any) -> Upsertion:
    fields: dict[str, Any] = {
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": bytes(32),
    }
    return Upsertion(user, **(fields | changes))


def _codes(deletions: list[Deletion], upsertions: list[Upsertion]) -> dict[str, int]:
    outcome = alter(EXISTING, deletions, upsertions)
    codes = {result.user: int(result.code) for result in outcome.results}
    assert len(codes) == len(outcome.results), "there is one result of each user"
    changed = {user for user, _ in (*outcome.deleted, *outcome.upserted)}
    assert changed == {user for user, code in codes.items() if code == 0}
    assert all((result.text is None) == (result.code == 0) for result in outcome.results)
    return codes


def test_the_mechanisms_have_the_numbers_and_names_of_kafka() -> None:
    assert SCRAM_MECHANISMS == {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
    assert [each.hash_name for each in ScramMechanism] == ["sha256", "sha512"]


def test_an_upsertion_stores_two_keys_and_not_the_salted_password() -> None:
    outcome = alter({}, [], [_upsertion("carol")])
    assert outcome.upserted == {("carol", SHA_256): ALICE}
    assert bytes(32).hex() not in encode(ALICE).hex()
    assert ALICE.accepts(bytes(32))
    assert not ALICE.accepts(bytes(31) + b"x")


def test_a_deletion_removes_one_mechanism_of_a_user() -> None:
    outcome = alter(EXISTING, [Deletion("alice", 1)], [])
    assert outcome.deleted == (("alice", SHA_256),)
    assert not outcome.upserted


def test_each_user_gets_the_error_of_kafka() -> None:
    assert _codes(
        [Deletion("", 1), Deletion("alice", 0), Deletion("bob", 1), Deletion("nobody", 2)],
        [
            _upsertion("few", iterations=ITERATIONS_MIN - 1),
            _upsertion("many", iterations=ITERATIONS_MAX + 1),
            _upsertion("negative", iterations=-1),
            _upsertion("mechanism", mechanism=3),
            _upsertion("good", iterations=ITERATIONS_MAX),
        ],
    ) == {
        "": 93,
        "alice": 33,
        "bob": 91,
        "nobody": 91,
        "few": 93,
        "many": 93,
        "negative": 93,
        "mechanism": 33,
        "good": 0,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"salt": b""},
        {"salt": bytes(SALT_BYTES_MAX + 1)},
        {"salted_password": b""},
        {"salted_password": bytes(64)},
        {"mechanism": 2},
    ],
)
def test_a_credential_with_which_nobody_could_log_in_is_refused(changes: dict[str, Any]) -> None:
    assert _codes([], [_upsertion("carol", **changes)]) == {"carol": 93}


@pytest.mark.parametrize(
    "user",
    ["a\0b", "\ud800", "x" * (NAME_BYTES_MAX + 1), "*", "ANONYMOUS", " x", "x ", "a\nb", "\x1b[2J"],
)
def test_a_name_with_which_nobody_could_log_in_is_refused(user: str) -> None:
    assert _codes([], [_upsertion(user)]) == {user: 93}
    assert _codes([Deletion(user, 1)], []) == {user: 93}


def test_a_stored_credential_with_such_a_name_can_be_deleted() -> None:
    outcome = alter({("*", SHA_256): ALICE}, [Deletion("*", 1)], [])
    assert outcome.deleted == (("*", SHA_256),)


def test_a_user_that_occurs_twice_is_not_changed_and_others_are() -> None:
    deletions = [Deletion("alice", 1), Deletion("alice", 2), Deletion("bob", 2)]
    assert _codes(deletions, [_upsertion("carol")]) == {"alice": 92, "bob": 0, "carol": 0}
    both = [_upsertion("carol"), _upsertion("carol", mechanism=2, salted_password=bytes(64))]
    assert _codes([], [*both, _upsertion("dave")]) == {"carol": 92, "dave": 0}
    mixed = _codes([Deletion("alice", 1)], [_upsertion("alice"), _upsertion("alice")])
    assert mixed == {"alice": 92}


def test_the_first_error_of_a_user_stays() -> None:
    assert _codes([Deletion("nobody", 1), Deletion("nobody", 1)], []) == {"nobody": 91}
    assert _codes([Deletion("nobody", 1)], [_upsertion("nobody")]) == {"nobody": 91}
    assert _codes([], [_upsertion("x", iterations=1), _upsertion("x")]) == {"x": 93}


def test_no_users_means_all_users_in_a_description() -> None:
    everyone = (
        UserDescription("alice", credentials=((SHA_256, 4096), (SHA_512, 8192))),
        UserDescription("bob", credentials=((SHA_512, 8192),)),
    )
    assert tuple(describe(EXISTING, None)) == tuple(describe(EXISTING, [])) == everyone
    assert not [*describe({}, None)]


def test_a_description_names_missing_and_repeated_users() -> None:
    found = [*describe(EXISTING, ["nobody", "bob", "alice", "alice", "ghost", "ghost"])]
    assert [(each.user, int(each.code)) for each in found] == [
        ("nobody", 91),
        ("bob", 0),
        ("alice", 92),
        ("ghost", 92),
    ]
    assert [each.user for each in found if each.credentials] == ["bob"]


def test_no_repr_shows_a_key_or_a_salt() -> None:
    upsertion = _upsertion("carol", salt=b"SECRET", salted_password=b"SECRET" * 5 + b"xx")
    outcome = alter({}, [], [upsertion])
    assert "SECRET" not in repr(upsertion)
    shown = repr(outcome)
    assert "salt" not in shown
    assert "key" not in shown


@given(
    st.sampled_from([*ScramMechanism]),
    st.integers(ITERATIONS_MIN, ITERATIONS_MAX),
    st.binary(min_size=1, max_size=SALT_BYTES_MAX),
    st.binary(min_size=64, max_size=64),
)
def test_a_stored_credential_is_read_as_it_was_written(
    mechanism: ScramMechanism, iterations: int, salt: bytes, salted: bytes
) -> None:
    credential = from_salted_password(mechanism, salted[: mechanism.digest_size], salt, iterations)
    assert decode(encode(credential)) == credential


@pytest.mark.parametrize(
    "changes",
    [
        {"v": 2},
        {"v": None},
        {"mechanism": "SCRAM-SHA-1"},
        {"mechanism": 1},
        {"mechanism": []},
        {"iterations": 1},
        {"iterations": True},
        {"iterations": "4096"},
        {"iterations": 10**9},
        {"salt": ""},
        {"salt": None},
        {"salt": "ü"},
        {"stored_key": "AAAA"},
        {"server_key": "A"},
        {"server_key": 7},
        {"more": 1},
    ],
)
def test_a_changed_credential_is_refused(changes: dict[str, Any]) -> None:
    value = json.dumps(json.loads(encode(ALICE)) | changes).encode()
    with pytest.raises(CredentialInvalid, match="set the password again"):
        decode(value)


@given(st.binary() | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_anything_else_in_the_store_is_refused(value: bytes | str) -> None:
    with pytest.raises(CredentialInvalid):
        decode(value if isinstance(value, bytes) else value.encode())


@pytest.mark.parametrize("value", [b"[" * 100_000, b"{}", b"[]", b"null", b"\xff"])
def test_values_that_are_not_objects_with_the_fields_are_refused(value: bytes) -> None:
    with pytest.raises(CredentialInvalid):
        decode(value)


_USERS = st.sampled_from(["alice", "bob", "carol", ""])


def _obvious_codes(deletions: list[Deletion], upsertions: list[Upsertion]) -> dict[str, ErrorCode]:
    """Looks at each user alone: the first change decides, a second one makes it a duplicate."""
    codes: dict[str, ErrorCode] = {}
    for user in {each.user for each in deletions} | {each.user for each in upsertions}:
        mine = [each for each in deletions if each.user == user]
        more = [each for each in upsertions if each.user == user]
        first = (mine[:1] or more[:1])[0]
        if user == "":
            codes[user] = ErrorCode.UNACCEPTABLE_CREDENTIAL
        elif first.mechanism not in {1, 2}:
            codes[user] = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        elif isinstance(first, Deletion) and (user, first.mechanism) not in EXISTING:
            codes[user] = ErrorCode.RESOURCE_NOT_FOUND
        elif isinstance(first, Upsertion) and not 4096 <= first.iterations <= 16384:
            codes[user] = ErrorCode.UNACCEPTABLE_CREDENTIAL
        elif len(mine) + len(more) > 1:
            codes[user] = ErrorCode.DUPLICATE_RESOURCE
        else:
            codes[user] = ErrorCode.NONE
    return codes


@st.composite
def _upsertions(draw: st.DrawFn) -> Upsertion:
    mechanism = draw(st.integers(0, 3))
    return Upsertion(
        draw(_USERS),
        mechanism,
        draw(st.sampled_from([4095, 4096, 16384, 16385])),
        b"salt",
        bytes(64 if mechanism == 2 else 32),
    )


@given(
    st.lists(st.builds(Deletion, _USERS, st.integers(0, 3)), max_size=5),
    st.lists(_upsertions(), max_size=5),
)
def test_every_request_gets_the_codes_of_the_obvious_rules(
    deletions: list[Deletion], upsertions: list[Upsertion]
) -> None:
    outcome = alter(EXISTING, deletions, upsertions)
    expected = _obvious_codes(deletions, upsertions)
    assert {result.user: result.code for result in outcome.results} == expected
    assert _applied(outcome.deleted, dict(outcome.upserted)) == {
        user for user, code in expected.items() if code is ErrorCode.NONE
    }


def _applied(
    deleted: tuple[CredentialKey, ...], upserted: dict[CredentialKey, ScramCredential]
) -> set[str]:
    return {user for user, _ in (*deleted, *upserted)}
