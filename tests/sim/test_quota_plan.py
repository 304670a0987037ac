"""The quotas of a scenario: the simulator finds the limit of a tenant on its own."""

from __future__ import annotations

from itertools import combinations

import pytest

from penstock.security.quotas import PRODUCER_BYTE_RATE, QuotaEntity, Quotas
from penstock.sim.access_plan import APP, TENANT
from penstock.sim.quota_plan import (
    KEY_OF,
    LIMITS,
    NEIGHBOR,
    TENANTS,
    WRITER,
    drawn_limit,
    entities_for,
    limit_of,
)


@pytest.mark.parametrize("user", [None, TENANT])
def test_the_most_specific_quota_is_the_one_that_brokers_apply(user: str | None) -> None:
    """For every set of quotas that the tenants can have."""
    entities = entities_for(WRITER, user)
    for count in range(len(entities) + 1):
        for chosen in combinations(entities, count):
            held = {each: {PRODUCER_BYTE_RATE: 10.0 + entities.index(each)} for each in chosen}
            found = Quotas(held).limit(user or "ANONYMOUS", WRITER, PRODUCER_BYTE_RATE)
            expected = None if found is None else found.rate
            assert limit_of(held, WRITER, user, PRODUCER_BYTE_RATE) == expected


@pytest.mark.parametrize("user", [None, TENANT])
def test_no_quota_of_a_tenant_applies_to_others(user: str | None) -> None:
    held: dict[QuotaEntity, dict[str, float]] = {
        entity: dict.fromkeys(LIMITS, 1.0)
        for client_id in TENANTS
        for entity in entities_for(client_id, user)
    }
    quotas = Quotas(held)
    for client_id in (NEIGHBOR, "penstock"):
        assert limit_of(held, NEIGHBOR, user, KEY_OF[NEIGHBOR]) is None
        for key in LIMITS:
            assert quotas.limit(APP if user else "ANONYMOUS", client_id, key) is None


def test_limits_are_within_their_bounds() -> None:
    for key, (least, most) in LIMITS.items():
        assert [drawn_limit(key, share) for share in (0.0, 1.0)] == [least, most]
