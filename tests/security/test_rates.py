"""The meters of a broker's clients: who shares one, and how many there can be."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security import rates
from penstock.security.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Client,
    Limits,
    QuotaEntity,
    Quotas,
    Sharer,
)
from penstock.security.rates import FetchVerdict, QuotaMeters

ALICE = Client("alice", "app")
ANY_CLIENT = QuotaEntity.of((CLIENT_ID, None))
ANY_USER = QuotaEntity.of((USER, None))
OF_ALICE = QuotaEntity.of((USER, "alice"))
LEVELS = [
    QuotaEntity.of(*user, *client)
    for user in ([(USER, "alice")], [(USER, None)], [])
    for client in ([(CLIENT_ID, "app")], [(CLIENT_ID, None)], [])
    if user or client
]


# Meters


def _meters(
    entities: Mapping[QuotaEntity, Limits],
    meters_max: int = rates.METERS_MAX,
    user_max: int = rates.METERS_PER_USER_MAX,
    addresses_max: int = rates.ADDRESS_METERS_MAX,
) -> QuotaMeters:
    return QuotaMeters(Quotas(entities), meters_max, user_max, addresses_max)


def _produce(
    meters: QuotaMeters, user: str, client_id: str | None, size: int, now_ms: int = 0
) -> int:
    return meters.record_and_throttle(PRODUCER_BYTE_RATE, Client(user, client_id), size, now_ms)


def test_without_quotas_nothing_is_measured() -> None:
    meters = _meters({})
    assert _produce(meters, *ALICE, 10**12) == 0
    assert meters.record_fetch(ALICE, 10**12, 0) == FetchVerdict(0, False)
    assert meters.fetch_bytes_max(ALICE, 0) == rates.FETCH_BYTES_MAX
    assert meters.admit_mutations(ALICE, 10**9, 0) == 0
    assert meters.record_mutations(ALICE, 10**9, 0) == 0
    assert meters.record_connection("10.0.0.1", 0) == 0
    assert len(meters) == 0


def test_clients_share_a_limit_as_its_entity_says() -> None:
    for entity, other, waits in [
        (OF_ALICE, Client("alice", "b"), [0, 1000]),
        (OF_ALICE, Client("bob", "a"), [0, 0]),
        (ANY_USER, Client("alice", None), [0, 1000]),
        (ANY_USER, Client("bob", "a"), [0, 0]),
        (ANY_CLIENT, Client("bob", "a"), [0, 1000]),
        (ANY_CLIENT, Client("alice", "b"), [0, 0]),
    ]:
        meters = _meters({entity: {PRODUCER_BYTE_RATE: 100}})
        assert [_produce(meters, "alice", "a", 100), _produce(meters, *other, 100)] == waits


@given(
    st.sets(st.sampled_from(range(8))),
    st.lists(
        st.tuples(
            st.sampled_from(["alice", "bob"]),
            st.sampled_from(["app", "other", None]),
            st.integers(0, 5000),
            st.integers(0, 3000),
        ),
        max_size=30,
    ),
)
def test_meters_measure_by_the_entity_that_shares_the_limit(
    levels: set[int], steps: list[tuple[str, str | None, int, int]]
) -> None:
    all_quotas = Quotas({LEVELS[level]: {PRODUCER_BYTE_RATE: 100.0 + level} for level in levels})
    meters = QuotaMeters(all_quotas)
    debts: dict[Sharer, tuple[Fraction, int]] = {}
    """How many bytes above the quota were sent, less than zero if fewer, and when that was so."""
    now_ms = 0
    for user, client_id, amount, pause_ms in steps:
        now_ms += pause_ms
        limit = all_quotas.limit(user, client_id, PRODUCER_BYTE_RATE)
        expected = Fraction(0)
        if limit is not None:
            rate = Fraction(limit.rate)
            debt, then_ms = debts.get(limit.sharer, (-rate, now_ms))
            debt = max(-rate, debt - rate * (now_ms - then_ms) / 1000) + amount
            debts[limit.sharer] = debt, now_ms
            expected = max(Fraction(0), debt / rate * 1000)
        assert abs(_produce(meters, user, client_id, amount, now_ms) - expected) <= 1


def test_request_time_is_throttled_for_a_second_at_most() -> None:
    meters = _meters({OF_ALICE: {REQUEST_PERCENTAGE: 50}})
    five_seconds = 5_000_000_000 * rates.PERCENT_PER_NANOSECOND
    assert meters.record_and_throttle(REQUEST_PERCENTAGE, ALICE, five_seconds, 0) == 0
    assert meters.record_and_throttle(REQUEST_PERCENTAGE, ALICE, five_seconds / 100, 0) == 100
    throttle_ms = meters.record_and_throttle(REQUEST_PERCENTAGE, ALICE, five_seconds, 0)
    assert throttle_ms == rates.SHORT_THROTTLE_MAX_MS


def test_a_fetch_over_the_quota_is_answered_without_records() -> None:
    meters = _meters({OF_ALICE: {CONSUMER_BYTE_RATE: 100}})
    assert meters.fetch_bytes_max(ALICE, 0) == 100
    assert meters.record_fetch(ALICE, 90, 0) == FetchVerdict(0, False)
    assert meters.record_fetch(ALICE, 60, 0) == FetchVerdict(500, False)
    assert meters.record_fetch(ALICE, 60, 0) == FetchVerdict(500, True)
    # The bytes that were not sent are not recorded.
    assert meters.record_fetch(ALICE, 60, 0) == FetchVerdict(500, True)
    assert meters.record_fetch(ALICE, 60, 500) == FetchVerdict(600, False)


def test_a_consumer_gets_past_a_batch_larger_than_its_quota() -> None:
    meters = _meters({OF_ALICE: {CONSUMER_BYTE_RATE: 100}})
    assert meters.record_fetch(ALICE, 5000, 0) == FetchVerdict(49_000, False)
    assert meters.record_fetch(ALICE, 5000, 1000) == FetchVerdict(48_000, True)
    assert meters.record_fetch(ALICE, 5000, 49_000) == FetchVerdict(50_000, False)


def test_mutations_are_refused_or_only_throttled() -> None:
    meters = _meters({OF_ALICE: {CONTROLLER_MUTATION_RATE: 2}})
    assert meters.admit_mutations(ALICE, 30, 0) == 0
    assert meters.admit_mutations(ALICE, 1, 0) == 4000
    assert meters.record_mutations(ALICE, 2, 0) == 5000
    assert meters.admit_mutations(ALICE, 1, 5000) == 0


def test_an_address_that_connects_too_often_is_held_back() -> None:
    address = QuotaEntity.of((IP, "10.0.0.1"))
    meters = _meters({address: {CONNECTION_CREATION_RATE: 1}})
    assert [meters.record_connection("10.0.0.1", 0) for _ in range(10)] == [0] * 10
    # A refused connection is not recorded: the next one waits no longer.
    waits = [meters.record_connection("::ffff:10.0.0.1", 0) for _ in range(3)]
    assert waits == [rates.SHORT_THROTTLE_MAX_MS] * 3
    assert meters.record_connection("10.0.0.2", 0) == 0


def test_changed_quotas_apply_to_what_was_measured_before() -> None:
    meters = _meters({OF_ALICE: {PRODUCER_BYTE_RATE: 100, CONTROLLER_MUTATION_RATE: 1}})
    assert _produce(meters, *ALICE, 150) == 500
    assert meters.record_mutations(ALICE, 21, 0) == 10_000
    meters.update(Quotas({OF_ALICE: {PRODUCER_BYTE_RATE: 50, CONTROLLER_MUTATION_RATE: 2}}))
    assert _produce(meters, *ALICE, 0) == 1000
    assert meters.admit_mutations(ALICE, 1, 0) == 5000
    meters.update(Quotas({}))
    assert _produce(meters, *ALICE, 10**9) == 0


def test_the_usage_shows_each_meter() -> None:
    meters = _meters({OF_ALICE: {PRODUCER_BYTE_RATE: 100}})
    _produce(meters, *ALICE, 3000)
    (usage,) = meters.usage(0)
    assert (usage.key, usage.user, usage.client_id) == (PRODUCER_BYTE_RATE, "alice", None)
    assert (usage.limit, usage.rate, usage.throttled_ms) == (100, 300, 29_000)


# Hostile clients


def test_idle_meters_are_dropped() -> None:
    meters = _meters({ANY_CLIENT: {PRODUCER_BYTE_RATE: 100, CONTROLLER_MUTATION_RATE: 1}})
    for number in range(2500):
        _produce(meters, "alice", str(number), 1)
    meters.record_mutations(ALICE, 30, 0)
    _produce(meters, "alice", "7", 699, 5000)
    assert sum(meters.drop_idle(11_000) for _ in range(4)) == 2499
    assert len(meters) == 2
    assert _produce(meters, "alice", "7", 1, 11_000) == 0
    assert _produce(meters, "alice", "7", 10, 11_000) > 0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8000), st.integers(0, 2500))))
def test_dropping_meters_changes_no_answer(steps: list[tuple[int, int, int]]) -> None:
    entities = {ANY_CLIENT: {PRODUCER_BYTE_RATE: 100.0, CONTROLLER_MUTATION_RATE: 20.0}}
    kept, dropped = _meters(entities), _meters(entities)
    now_ms = 0
    for number, pause_ms, amount in steps:
        now_ms += pause_ms
        dropped.drop_idle(now_ms)
        client = Client("alice", str(number))
        answers = [
            (
                meters.record_and_throttle(PRODUCER_BYTE_RATE, client, amount, now_ms),
                meters.admit_mutations(client, amount // 5, now_ms),
            )
            for meters in (kept, dropped)
        ]
        assert answers[0] == answers[1]
    assert len(dropped) <= len(kept)


def test_a_user_with_many_client_ids_has_a_limited_number_of_meters() -> None:
    """Beyond the limit its client ids share one quota, and other users keep their own."""
    meters = _meters({ANY_CLIENT: {PRODUCER_BYTE_RATE: 100}}, user_max=10)
    waits = [_produce(meters, "mallory", str(number), 100) for number in range(100)]
    assert waits[:11] == [0] * 11
    assert waits[11:] == [1000 * shared for shared in range(1, 90)]
    assert _produce(meters, "bob", "mine", 100) == 0
    assert len(meters) == 12
    assert meters.shared == 90


def test_a_quota_of_its_own_always_has_its_own_meter() -> None:
    named = QuotaEntity.of((CLIENT_ID, "important"))
    quota = {PRODUCER_BYTE_RATE: 100.0}
    meters = _meters({ANY_CLIENT: quota, named: quota}, user_max=3)
    for number in range(100):
        _produce(meters, "mallory", str(number), 10**6)
    assert _produce(meters, "mallory", "important", 100) == 0
    assert _produce(meters, "alice", "important", 100) == 1000


def test_a_client_gets_its_own_meter_once_there_is_room_again() -> None:
    meters = _meters({ANY_CLIENT: {PRODUCER_BYTE_RATE: 100}}, meters_max=3)
    for number in range(10):
        _produce(meters, "mallory", str(number), 300)
    assert _produce(meters, "mallory", "late", 10, 500) > 0
    assert meters.drop_idle(12_000) > 0
    assert _produce(meters, "mallory", "late", 100, 12_000) == 0
    assert _produce(meters, "mallory", "later", 100, 12_000) == 0


def test_clients_find_the_same_meter_after_it_was_dropped() -> None:
    meters = _meters({OF_ALICE: {PRODUCER_BYTE_RATE: 100}})
    _produce(meters, "alice", "old", 1)
    assert meters.drop_idle(20_000) == 1
    assert _produce(meters, "alice", "new", 100, 20_000) == 0
    assert _produce(meters, "alice", "old", 100, 20_000) == 1000


def test_a_flood_does_not_search_for_idle_meters_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full of meters that are in use, the search runs once a second, not once a client."""
    searches: list[int] = []
    monkeypatch.setattr(QuotaMeters, "drop_idle", lambda _, now_ms: searches.append(now_ms))
    meters = _meters({ANY_CLIENT: {PRODUCER_BYTE_RATE: 100}}, meters_max=5)
    for number in range(2000):
        _produce(meters, "mallory", str(number), 1, number)
    assert searches == [5, 1005]


def test_addresses_have_a_limited_number_of_meters() -> None:
    anywhere = QuotaEntity.of((IP, None))
    meters = _meters({anywhere: {CONNECTION_CREATION_RATE: 1}}, addresses_max=10)
    for number in range(15_000):
        meters.record_connection(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0)
    assert len(meters) == 10 + rates.SHARED_ROWS * rates.SHARED_COLUMNS
    # More addresses do not allow more connections then.
    assert meters.record_connection("192.0.2.1", 0) == rates.SHORT_THROTTLE_MAX_MS


@pytest.mark.parametrize("entity", [ANY_CLIENT, QuotaEntity.of((USER, None), (CLIENT_ID, None))])
def test_long_client_ids_share_a_meter_and_are_not_kept(entity: QuotaEntity) -> None:
    meters = _meters({entity: {PRODUCER_BYTE_RATE: 100, CONTROLLER_MUTATION_RATE: 1}})
    tracemalloc.start()
    try:
        for number in range(300):
            client = Client("mallory", f"{number:032768d}")
            wait_ms = meters.record_and_throttle(PRODUCER_BYTE_RATE, client, 10, 0)
            assert (wait_ms > 0) == (number >= 10)
            meters.record_mutations(client, 1, 0)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(meters) == 2
    # One such client id has 32 KiB.
    assert kept < 5 * 32 * 1024
    assert _produce(meters, "bob", "b", 100) == 0


def test_client_ids_do_not_grow_the_memory_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user quota has one meter, and still each client id is remembered for a while."""
    monkeypatch.setattr(rates, "_ROUTES_MAX", 100)
    meters = _meters({QuotaEntity.of((USER, "mallory")): {PRODUCER_BYTE_RATE: 10**9}})
    tracemalloc.start()
    try:
        for number in range(3000):
            _produce(meters, "mallory", f"{number:0512d}", 1)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(meters) == 1
    assert kept < 3 * 100 * 512
