"""Meters when there are too many clients or addresses to measure each of them apart."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter

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
    USER,
    Client,
    QuotaEntity,
    Quotas,
)
from penstock.security.rates import FetchVerdict, QuotaMeters

ANYWHERE = QuotaEntity.of((IP, None))
ANY_CLIENT = QuotaEntity.of((CLIENT_ID, None))
ANY_USER = QuotaEntity.of((USER, None))
MALLORY = Client("mallory", "c")
VICTIM = Client("victim", "c")


def _full(key: str = PRODUCER_BYTE_RATE, rate: float = 1e6, room: int = 3) -> QuotaMeters:
    """Returns meters for users with a default quota, all in use."""
    meters = QuotaMeters(Quotas({ANY_USER: {key: rate}}), meters_max=room)
    for number in range(room):
        client = Client(f"early{number}", "c")
        if key == CONTROLLER_MUTATION_RATE:
            meters.record_mutations(client, 1, 0)
        else:
            meters.record_and_throttle(key, client, 1, 0)
    return meters


# Addresses


def test_connections_do_not_use_up_the_meters_of_users() -> None:
    entities = {ANYWHERE: {CONNECTION_CREATION_RATE: 10.0}, ANY_USER: {PRODUCER_BYTE_RATE: 1e6}}
    meters = QuotaMeters(Quotas(entities), meters_max=50, addresses_max=50)
    for number in range(500):
        meters.record_connection(f"10.0.{number // 256}.{number % 256}", 0)
    assert meters.record_and_throttle(PRODUCER_BYTE_RATE, MALLORY, 500e6, 0) == 499_000
    assert meters.record_and_throttle(PRODUCER_BYTE_RATE, VICTIM, 1_000_000, 0) == 0


def test_users_do_not_use_up_the_meters_of_addresses() -> None:
    entities = {ANYWHERE: {CONNECTION_CREATION_RATE: 1.0}, ANY_USER: {PRODUCER_BYTE_RATE: 1e6}}
    meters = QuotaMeters(Quotas(entities), meters_max=5, addresses_max=5)
    for number in range(50):
        meters.record_and_throttle(PRODUCER_BYTE_RATE, Client(f"user{number}", "c"), 1, 0)
    shared = meters.shared
    assert meters.record_connection("10.0.0.1", 0) == 0
    assert meters.shared == shared


def test_the_addresses_of_an_ipv6_network_share_the_default_quota() -> None:
    meters = QuotaMeters(Quotas({ANYWHERE: {CONNECTION_CREATION_RATE: 1.0}}))
    waits = [meters.record_connection(f"2001:db8::{number:x}", 0) for number in range(500)]
    assert waits == [0] * 10 + [rates.SHORT_THROTTLE_MAX_MS] * 490
    assert meters.record_connection("2001:db8:0:1::1", 0) == 0
    assert len(meters) == 2


def test_a_site_with_many_networks_has_a_limited_number_of_meters() -> None:
    """A holder of 65,536 networks leaves room for the addresses of others."""
    meters = QuotaMeters(Quotas({ANYWHERE: {CONNECTION_CREATION_RATE: 1.0}}), addresses_max=1000)
    most = rates.METERS_PER_SITE_MAX
    waits = [
        meters.record_connection(f"2001:db8:0:{network:x}::1", 0)
        for network in range(most + 50)
        for _ in range(10)
    ]
    assert waits[: most * 10] == [0] * most * 10
    assert waits[most * 10 + 10 :] == [rates.SHORT_THROTTLE_MAX_MS] * 490
    assert len(meters) == most + 1
    assert any(each.client_id == "2001:db8::/48" for each in meters.usage(0))
    assert meters.record_connection("2001:db8:1::1", 0) == 0
    assert len(meters) == most + 2


# Meters that all users share


def test_a_client_that_sends_little_is_not_throttled_for_what_others_send() -> None:
    meters = _full()
    assert meters.record_and_throttle(PRODUCER_BYTE_RATE, MALLORY, 500e6, 0) == 499_000
    waits = [
        meters.record_and_throttle(PRODUCER_BYTE_RATE, Client(f"user{number}", "c"), 1, 0)
        for number in range(1000)
    ]
    assert waits == [0] * 1000


def test_more_connections_and_client_ids_do_not_give_a_user_more() -> None:
    meters = _full()
    waits = [
        meters.record_and_throttle(PRODUCER_BYTE_RATE, Client("mallory", str(number)), 1e6, 0)
        for number in range(20)
    ]
    assert waits == [1000 * number for number in range(20)]


def test_many_users_share_a_limited_number_of_meters() -> None:
    meters = _full()
    for number in range(5000):
        meters.record_and_throttle(PRODUCER_BYTE_RATE, Client(f"user{number}", "c"), 1, 0)
    assert len(meters) <= 3 + rates.SHARED_ROWS * rates.SHARED_COLUMNS
    assert sum(meters.drop_idle(20_000) for _ in range(3)) > 1000
    assert len(meters) == 0


def test_the_salt_decides_which_users_share_a_meter() -> None:
    """So a user cannot choose a name that shares its meters with a certain other user."""
    found = []
    for salt in (b"one", b"other"):
        meters = QuotaMeters(Quotas({ANY_USER: {PRODUCER_BYTE_RATE: 1e6}}), 0, salt=salt)
        for number in range(100):
            meters.record_and_throttle(PRODUCER_BYTE_RATE, Client(f"user{number}", "c"), 1, 0)
        found.append(len(meters))
    assert found[0] != found[1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 9000), st.integers(0, 2000)
        ),
        max_size=40,
    )
)
def test_a_shared_meter_never_gives_a_user_more_than_its_own_meter(
    steps: list[tuple[str, int, int]],
) -> None:
    """A topic is refused at least as often, also if the users collide."""
    entities = {ANY_USER: {CONTROLLER_MUTATION_RATE: 10.0}}
    own, shared = QuotaMeters(Quotas(entities)), QuotaMeters(Quotas(entities), meters_max=0)
    admitted: Counter[str] = Counter()
    now_ms = 0
    for user, pause_ms, amount in steps:
        now_ms += pause_ms
        client = Client(user, "c")
        wait_ms = own.record_mutations(client, 0, now_ms)
        if shared.admit_mutations(client, amount, now_ms) == 0:
            admitted[user] += amount
            assert wait_ms <= 1
            own.record_mutations(client, amount, now_ms)


def test_mutations_of_others_do_not_refuse_a_user_that_shares_a_meter() -> None:
    meters = _full(CONTROLLER_MUTATION_RATE, 2.0)
    assert meters.admit_mutations(MALLORY, 10_000, 0) == 0
    assert meters.admit_mutations(MALLORY, 1, 0) > 4_000_000
    assert meters.record_mutations(MALLORY, 1, 0) > 4_000_000
    assert meters.admit_mutations(VICTIM, 1, 0) == 0
    assert meters.record_mutations(VICTIM, 1, 0) == 0


def test_fetches_with_a_shared_meter_are_answered_as_with_an_own_one() -> None:
    meters = _full(CONSUMER_BYTE_RATE, 100.0)
    assert meters.fetch_bytes_max(VICTIM, 0) == 100
    assert meters.record_fetch(MALLORY, 50_000, 0) == FetchVerdict(499_000, False)
    assert meters.record_fetch(MALLORY, 1, 0) == FetchVerdict(499_000, True)
    assert meters.record_fetch(VICTIM, 90, 0) == FetchVerdict(0, False)
    assert meters.record_fetch(VICTIM, 60, 0) == FetchVerdict(500, False)
    assert meters.record_fetch(VICTIM, 10, 0) == FetchVerdict(500, True)


def test_the_usage_has_one_entry_for_all_users_that_share() -> None:
    meters = _full()
    meters.record_and_throttle(PRODUCER_BYTE_RATE, MALLORY, 20e6, 0)
    meters.record_and_throttle(PRODUCER_BYTE_RATE, VICTIM, 5e6, 0)
    shared = [each for each in meters.usage(0) if each.user is None]
    assert len(list(meters.usage(0))) == 4
    assert [(each.limit, each.rate, each.throttled_ms) for each in shared] == [(1e6, 2.5e6, 23_000)]


# Memory


def test_long_client_ids_of_a_user_use_little_memory() -> None:
    meters = QuotaMeters(Quotas({ANY_USER: {PRODUCER_BYTE_RATE: 1e6}, ANY_CLIENT: {}}))
    tracemalloc.start()
    try:
        for number in range(5000):
            client = Client("mallory", "\U0001f600" * 1019 + f"{number:05d}")
            meters.record_and_throttle(PRODUCER_BYTE_RATE, client, 1, 0)
        for number in range(5000):
            client = Client("mallory", "\U0001f600" * 250 + f"{number:05d}")
            meters.record_and_throttle(PRODUCER_BYTE_RATE, client, 1, 0)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The client ids have 25 MiB.
    assert kept < 6 * 1024 * 1024


def test_the_largest_limit_of_changes_has_a_usage() -> None:
    meters = QuotaMeters(
        Quotas({QuotaEntity.of((USER, "victim")): {CONTROLLER_MUTATION_RATE: 1e15}})
    )
    assert meters.admit_mutations(VICTIM, 1, 0) == 0
    assert all(math.isfinite(each.rate) for each in meters.usage(5))
