"""Client quotas: entities, limits, Kafka's eight levels, Alter- and DescribeClientQuotas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security import quotas
from penstock.security.quotas import (
    CLIENT_ID,
    IP,
    MATCH_ANY,
    MATCH_DEFAULT,
    MATCH_EXACT,
    USER,
    Limits,
    QuotaAlteration,
    QuotaEntity,
    QuotaFilter,
    Quotas,
    Sharer,
    alter,
    check_limit,
    decode_limits,
    describe,
    encode_limits,
    entity_of,
    parse_entity,
    store_name,
)
from penstock.wire.errors import ErrorCode, KafkaError

KEY = quotas.PRODUCER_BYTE_RATE
ALICE = QuotaEntity.of((USER, "alice"))
APP = QuotaEntity.of((CLIENT_ID, "app"))
ALICE_APP = QuotaEntity.of((USER, "alice"), (CLIENT_ID, "app"))
LOCAL = QuotaEntity.of((IP, "127.0.0.1"))

Parts = tuple[tuple[str, str | None], ...]


def _change(parts: Parts, *operations: tuple[str, float | None]) -> QuotaAlteration:
    return QuotaAlteration(parts, operations)


# Entities


def test_the_order_in_which_an_entity_names_its_parts_does_not_matter() -> None:
    assert QuotaEntity.of((CLIENT_ID, "app"), (USER, "alice")) == ALICE_APP
    assert ALICE_APP.parts == ((USER, "alice"), (CLIENT_ID, "app"))


def test_an_entity_reads_as_text() -> None:
    assert str(ALICE_APP) == "user alice, client-id app"
    assert str(QuotaEntity.of((USER, None))) == "default user"


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ((), "the entity is empty"),
        ((("group", "g"),), "the entity type 'group' is unknown"),
        ((("", "g"),), "the entity type '' is unknown"),
        (((USER, "a"), (USER, "b")), "names its user twice"),
        (((USER, None), (USER, None)), "names its user twice"),
        (((USER, ""),), "the name of the user is empty"),
        (((CLIENT_ID, ""),), "the name of the client-id is empty"),
        (((IP, ""),), "the name of the ip is empty"),
        (((IP, "127.0.0.1"), (USER, "a")), "cannot be combined"),
        (((IP, None), (CLIENT_ID, None)), "cannot be combined"),
        (((IP, "localhost"),), "'localhost' is not an IP address"),
        (((IP, "127.0.0.1%eth0"),), "is not an IP address"),
        (((IP, "256.0.0.1"),), "is not an IP address"),
        (((USER, "a" * (quotas.ENTITY_NAME_CHARS_MAX + 1)),), "more than"),
        (((USER, "a\udcff"),), "not valid Unicode"),
    ],
)
def test_an_entity_that_makes_no_sense_is_refused(parts: Parts, problem: str) -> None:
    with pytest.raises(KafkaError) as caught:
        parse_entity(parts)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert problem in caught.value.message


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_an_address_has_one_form(text: str, canonical: str) -> None:
    assert QuotaEntity.of((IP, text)) == QuotaEntity(((IP, canonical),))


def test_an_error_repeats_only_the_beginning_of_a_long_text() -> None:
    with pytest.raises(KafkaError) as caught:
        parse_entity([("x" * 30_000 + "\n", "a")])
    assert len(caught.value.message) < 300


# Limits


@pytest.mark.parametrize("key", quotas.CLIENT_KEYS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0])
def test_a_quota_is_a_finite_number_above_zero(key: str, value: float) -> None:
    with pytest.raises(KafkaError) as caught:
        check_limit(ALICE, key, value)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert key in caught.value.message


@pytest.mark.parametrize(
    ("entity", "key", "value", "problem"),
    [
        (ALICE, KEY, 1.5, "must be a whole number"),
        (ALICE, KEY, 1e-7, "must be a whole number"),
        (ALICE, quotas.CONSUMER_BYTE_RATE, 0.5, "must be a whole number"),
        (ALICE, KEY, 1e19, "the largest value is"),
        (ALICE, quotas.CONTROLLER_MUTATION_RATE, 1.7e308, "the largest value is 1000000000000000"),
        (ALICE, quotas.REQUEST_PERCENTAGE, 1.1e15, "the largest value is 1000000000000000"),
        (LOCAL, quotas.CONNECTION_CREATION_RATE, 2.5, "must be a whole number"),
        (LOCAL, quotas.CONNECTION_CREATION_RATE, 2.0**31, "the largest value is 2147483647"),
        (LOCAL, quotas.CONNECTION_CREATION_RATE, math.nan, "finite"),
        (LOCAL, KEY, 10.0, "is not a quota of ip"),
        (ALICE, quotas.CONNECTION_CREATION_RATE, 10.0, "is not a quota of user"),
        (APP, "bytes", 10.0, "'bytes' is not a quota of client-id"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(
    entity: QuotaEntity, key: str, value: float, problem: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        check_limit(entity, key, value)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert problem in caught.value.message


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        (KEY, 1.0, 1.0),
        (KEY, 100.0000001, 100.0),
        (KEY, 2.0**63, 2.0**63),
        (quotas.REQUEST_PERCENTAGE, 0.25, 0.25),
        (quotas.CONTROLLER_MUTATION_RATE, 1.5, 1.5),
        (quotas.CONTROLLER_MUTATION_RATE, 5e-324, 5e-324),
        (quotas.CONTROLLER_MUTATION_RATE, 1e15, 1e15),
    ],
)
def test_a_limit_is_stored(key: str, value: float, stored: float) -> None:
    assert check_limit(ALICE, key, value) == stored


# The eight levels

LEVELS: Sequence[tuple[Parts, Sharer]] = [
    (((USER, "alice"), (CLIENT_ID, "app")), Sharer("alice", "app")),
    (((USER, "alice"), (CLIENT_ID, None)), Sharer("alice", "app")),
    (((USER, "alice"),), Sharer("alice", None)),
    (((USER, None), (CLIENT_ID, "app")), Sharer("alice", "app")),
    (((USER, None), (CLIENT_ID, None)), Sharer("alice", "app")),
    (((USER, None),), Sharer("alice", None)),
    (((CLIENT_ID, "app"),), Sharer(None, "app")),
    (((CLIENT_ID, None),), Sharer(None, "app")),
]
"""The levels, the most specific one first, and who shares the limit of alice's client app."""


@given(st.sets(st.sampled_from(range(8))))
def test_the_most_specific_level_wins(present: set[int]) -> None:
    found = Quotas(
        {QuotaEntity.of(*LEVELS[level][0]): {KEY: level + 1.0} for level in present}
    ).limit("alice", "app", KEY)
    if not present:
        assert found is None
        return
    assert found is not None
    level = min(present)
    assert (found.rate, found.sharer) == (level + 1.0, LEVELS[level][1])
    assert found.entity == QuotaEntity.of(*LEVELS[level][0])


@given(st.sets(st.sampled_from(range(8))))
def test_the_quotas_of_others_do_not_apply(present: set[int]) -> None:
    """For bob's client other, only the levels of defaults count."""
    found = Quotas(
        {QuotaEntity.of(*LEVELS[level][0]): {KEY: level + 1.0} for level in present}
    ).limit("bob", "other", KEY)
    defaults = [level for level in (4, 5, 7) if level in present]
    if defaults:
        assert found is not None
        assert found.rate == defaults[0] + 1.0
    else:
        assert found is None


def test_each_quota_finds_its_own_level() -> None:
    """A user quota on bytes does not hide a client quota on requests."""
    found = Quotas({ALICE: {KEY: 1.0}, APP: {quotas.REQUEST_PERCENTAGE: 50.0}})
    bytes_limit = found.limit("alice", "app", KEY)
    requests_limit = found.limit("alice", "app", quotas.REQUEST_PERCENTAGE)
    assert bytes_limit is not None
    assert bytes_limit.sharer == Sharer("alice", None)
    assert requests_limit is not None
    assert requests_limit.sharer == Sharer(None, "app")
    assert found.limit("alice", "app", quotas.CONSUMER_BYTE_RATE) is None
    assert found.has(KEY)
    assert not found.has(quotas.CONSUMER_BYTE_RATE)


@pytest.mark.parametrize("client_id", ["", None])
def test_a_client_without_a_client_id_has_the_default_quota(client_id: str | None) -> None:
    found = Quotas({QuotaEntity.of((CLIENT_ID, None)): {KEY: 7.0}}).limit("alice", client_id, KEY)
    assert found is not None
    assert found.sharer == Sharer(None, "")


def test_an_address_has_its_own_limit_or_the_default() -> None:
    key = quotas.CONNECTION_CREATION_RATE
    found = Quotas({LOCAL: {key: 5.0}, QuotaEntity.of((IP, None)): {key: 9.0}})
    assert found.has(key)
    for address, rate, shared in [
        ("127.0.0.1", 5.0, "127.0.0.1"),
        ("::ffff:127.0.0.1", 5.0, "127.0.0.1"),
        ("10.0.0.1", 9.0, "10.0.0.1"),
        ("2001:db8::5:6:7:8", 9.0, "2001:db8::/64"),
        ("not an address", 9.0, "not an address"),
    ]:
        limit = found.ip_limit(address)
        assert limit is not None
        assert (limit.rate, limit.sharer) == (rate, Sharer(None, shared))
    assert Quotas({LOCAL: {key: 5.0}}).ip_limit("10.0.0.1") is None
    assert Quotas({}).ip_limit("10.0.0.1") is None


# AlterClientQuotas


def test_a_quota_is_set_changed_and_removed() -> None:
    state: dict[QuotaEntity, Limits] = {}
    for value, expected in [(10.0, {KEY: 10.0}), (20.0, {KEY: 20.0}), (None, {})]:
        outcome = alter(state, [_change(ALICE.parts, (KEY, value))])
        assert [result.code for result in outcome.results] == [ErrorCode.NONE]
        assert outcome.changes == {ALICE: expected}
        state.update(outcome.changes)


def test_other_quotas_of_the_entity_stay() -> None:
    existing = {ALICE: {KEY: 10.0, quotas.REQUEST_PERCENTAGE: 50.0}}
    outcome = alter(existing, [_change(ALICE.parts, (KEY, None))])
    assert outcome.changes == {ALICE: {quotas.REQUEST_PERCENTAGE: 50.0}}


def test_what_changes_nothing_is_not_written() -> None:
    existing = {ALICE: {KEY: 10.0}}
    entries = [
        _change(ALICE.parts, (KEY, 10.0)),
        _change(APP.parts, (KEY, None)),
        _change(LOCAL.parts),
    ]
    outcome = alter(existing, entries)
    assert [result.code for result in outcome.results] == [ErrorCode.NONE] * 3
    assert outcome.changes == {}


def test_validate_only_answers_the_same_and_changes_nothing() -> None:
    entries = [_change(ALICE.parts, (KEY, 10.0)), _change(APP.parts, (KEY, math.nan))]
    tried, done = alter({}, entries, validate_only=True), alter({}, entries)
    assert tried.results == done.results
    assert tried.changes == {}
    assert set(done.changes) == {ALICE}


def test_an_entity_changes_completely_or_not_at_all() -> None:
    entries = [
        _change(ALICE.parts, (KEY, 10.0), (quotas.REQUEST_PERCENTAGE, math.inf)),
        _change(APP.parts, (KEY, 10.0)),
    ]
    outcome = alter({}, entries)
    assert [result.code for result in outcome.results] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert outcome.changes == {APP: {KEY: 10.0}}


def test_a_key_that_is_changed_twice_is_refused() -> None:
    outcome = alter({}, [_change(ALICE.parts, (KEY, 10.0), (KEY, 10.0))])
    assert outcome.results[0].code is ErrorCode.INVALID_REQUEST
    assert "twice" in (outcome.results[0].message or "")
    assert outcome.changes == {}


def test_an_entity_that_is_named_twice_does_not_change() -> None:
    same = ((CLIENT_ID, "app"), (USER, "alice"))
    entries = [
        _change(ALICE_APP.parts, (KEY, 1.0)),
        _change(APP.parts, (KEY, 2.0)),
        _change(same, (KEY, 3.0)),
    ]
    outcome = alter({}, entries)
    assert [result.code for result in outcome.results] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert [result.entity for result in outcome.results] == [ALICE_APP.parts, APP.parts, same]
    assert outcome.changes == {APP: {KEY: 2.0}}


def test_each_entity_that_cannot_be_read_gets_its_own_error() -> None:
    outcome = alter({}, [_change(()), _change((("group", "g"),))])
    assert [result.code for result in outcome.results] == [ErrorCode.INVALID_REQUEST] * 2
    assert outcome.results[0].message != outcome.results[1].message


def test_the_number_of_entities_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "ENTITIES_MAX", 2)
    entries = [_change(((USER, name),), (KEY, 1.0)) for name in ("bob", "carol")]
    outcome = alter({ALICE: {KEY: 1.0}}, [*entries, _change(ALICE.parts, (KEY, 2.0))])
    codes = [result.code for result in outcome.results]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.NONE]


# DescribeClientQuotas

STORED: Mapping[QuotaEntity, Limits] = {
    QuotaEntity.of(*parts): {KEY: float(number + 1)} for number, (parts, _) in enumerate(LEVELS)
} | {LOCAL: {quotas.CONNECTION_CREATION_RATE: 5.0}}


def _found(*filters: QuotaFilter, strict: bool = False) -> set[str]:
    return {str(entity) for entity, _ in describe(STORED, filters, strict)}


def test_filters_match_entities_that_have_their_types() -> None:
    alice = QuotaFilter(USER, MATCH_EXACT, "alice")
    assert _found(alice) == {
        "user alice",
        "user alice, client-id app",
        "user alice, default client-id",
    }
    assert _found(alice, strict=True) == {"user alice"}
    assert _found(QuotaFilter(USER, MATCH_DEFAULT), strict=True) == {"default user"}
    assert _found(QuotaFilter(USER, MATCH_ANY), strict=True) == {"user alice", "default user"}
    assert _found(alice, QuotaFilter(CLIENT_ID, MATCH_DEFAULT)) == {"user alice, default client-id"}
    assert _found(QuotaFilter(IP, MATCH_EXACT, "::ffff:127.0.0.1")) == {"ip 127.0.0.1"}
    assert _found(QuotaFilter(IP, MATCH_EXACT, "localhost")) == set()
    assert _found(QuotaFilter(IP, MATCH_DEFAULT)) == set()


def test_without_filters_all_entities_match_unless_strict() -> None:
    assert len(_found()) == len(STORED)
    assert _found(strict=True) == set()


def test_the_limits_are_described_in_a_fixed_order() -> None:
    backwards = dict(reversed(list(STORED.items())))
    assert describe(STORED, []) == describe(backwards, [])
    assert dict(describe(STORED, [])) == STORED


_KINDS = st.sampled_from([USER, CLIENT_ID, IP])
_MATCHES = st.one_of(
    st.tuples(st.just(MATCH_EXACT), st.sampled_from(["alice", "app", "127.0.0.1"])),
    st.tuples(st.sampled_from([MATCH_DEFAULT, MATCH_ANY]), st.none()),
)


@given(st.dictionaries(_KINDS, _MATCHES, max_size=2), st.booleans())
def test_describe_agrees_with_a_check_of_each_part(
    wanted: dict[str, tuple[int, str | None]], strict: bool
) -> None:
    if IP in wanted and len(wanted) > 1:
        return
    expected = set()
    for entity in STORED:
        names = dict(entity.parts)
        matches = not strict or set(names) == set(wanted)
        for kind, (match_type, name) in wanted.items():
            matches = matches and kind in names
            if match_type == MATCH_EXACT:
                matches = matches and names[kind] == name
            if match_type == MATCH_DEFAULT:
                matches = matches and names[kind] is None
        if matches:
            expected.add(str(entity))
    filters = [QuotaFilter(kind, *match) for kind, match in wanted.items()]
    assert _found(*filters, strict=strict) == expected


@pytest.mark.parametrize(
    ("filters", "code"),
    [
        ([QuotaFilter("group", MATCH_ANY)], ErrorCode.UNSUPPORTED_VERSION),
        ([QuotaFilter("", MATCH_ANY)], ErrorCode.INVALID_REQUEST),
        ([QuotaFilter(USER, 3)], ErrorCode.INVALID_REQUEST),
        ([QuotaFilter(USER, -1)], ErrorCode.INVALID_REQUEST),
        ([QuotaFilter(USER, MATCH_EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([QuotaFilter(USER, MATCH_DEFAULT, "a")], ErrorCode.INVALID_REQUEST),
        ([QuotaFilter(USER, MATCH_ANY, "")], ErrorCode.INVALID_REQUEST),
        ([QuotaFilter(USER, MATCH_ANY), QuotaFilter(USER, MATCH_ANY)], ErrorCode.INVALID_REQUEST),
        ([QuotaFilter(IP, MATCH_ANY), QuotaFilter(USER, MATCH_ANY)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(
    filters: list[QuotaFilter], code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as caught:
        describe(STORED, filters)
    assert caught.value.code is code


# The metadata store

_NAMES = st.one_of(st.none(), st.text(min_size=1, max_size=20))
_ENTITIES = st.one_of(
    st.builds(lambda user: QuotaEntity.of((USER, user)), _NAMES),
    st.builds(lambda client: QuotaEntity.of((CLIENT_ID, client)), _NAMES),
    st.builds(lambda u, c: QuotaEntity.of((USER, u), (CLIENT_ID, c)), _NAMES, _NAMES),
    st.builds(lambda ip: QuotaEntity.of((IP, str(ip))), st.ip_addresses()),
    st.just(QuotaEntity.of((IP, None))),
)


@given(_ENTITIES, _ENTITIES)
def test_the_name_in_the_store_names_one_entity(one: QuotaEntity, other: QuotaEntity) -> None:
    assert entity_of(store_name(one)) == one
    assert (store_name(one) == store_name(other)) == (one == other)
    assert store_name(one).isascii()


def test_a_name_cannot_look_like_the_default_or_another_level() -> None:
    assert store_name(QuotaEntity.of((USER, "<default>"))) == "users/%3Cdefault%3E"
    assert store_name(QuotaEntity.of((USER, None))) == "users/<default>"
    assert store_name(QuotaEntity.of((USER, "a/clients/b"))) == "users/a%2Fclients%2Fb"


@pytest.mark.parametrize(
    "name",
    ["", "users", "users/", "groups/a", "users/a/clients", "clients/b/users/a", "users/a%41", "/"],
)
def test_a_name_that_this_version_does_not_write_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="does not name a quota entity"):
        entity_of(name)


_LIMITS = st.dictionaries(
    st.sampled_from([quotas.REQUEST_PERCENTAGE, quotas.CONTROLLER_MUTATION_RATE]),
    st.floats(min_value=0, exclude_min=True, max_value=1e15),
) | st.dictionaries(st.sampled_from([KEY]), st.integers(1, 2**53).map(float))


@given(_LIMITS)
def test_limits_survive_the_store(limits: Limits) -> None:
    assert decode_limits(ALICE, encode_limits(limits)) == limits


def test_the_encoding_of_limits_does_not_change() -> None:
    assert encode_limits({KEY: 1024.0}) == b'{"v":1,"limits":{"producer_byte_rate":1024.0}}'


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"v":2,"limits":{}}',
        b'{"v":1}',
        b'{"v":1,"limits":[]}',
        b'{"v":1,"limits":{},"x":1}',
        b'{"v":1,"limits":{"producer_byte_rate":NaN}}',
        b'{"v":1,"limits":{"producer_byte_rate":Infinity}}',
        b'{"v":1,"limits":{"producer_byte_rate":0}}',
        b'{"v":1,"limits":{"producer_byte_rate":true}}',
        b'{"v":1,"limits":{"producer_byte_rate":"1"}}',
        b'{"v":1,"limits":{"producer_byte_rate":1' + b"0" * 400 + b"}}",
        b'{"v":1,"limits":{"connection_creation_rate":1}}',
    ],
)
def test_limits_that_this_version_does_not_write_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="the quotas of user alice"):
        decode_limits(ALICE, value)
