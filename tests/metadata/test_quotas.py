"""The client quotas of a cluster in the metadata store."""

from __future__ import annotations

import pytest

from penstock.metadata.image import Changed
from penstock.metadata.keys import QUOTAS_PREFIX
from penstock.metadata.quota_values import quota_key
from penstock.metadata.quotas import alter_quotas
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.security.quotas import QuotaAlteration, QuotaEntity, encode_limits
from penstock.wire.errors import ErrorCode

from .cluster import Cluster

RATE = "producer_byte_rate"
NAMES = ("alice", "a/b", "50%", "ä ö", "..", "<default>", "/")


def entry(*parts: tuple[str, str | None], rate: float | None = 1000.0) -> QuotaAlteration:
    return QuotaAlteration(parts, ((RATE, rate),))


def test_quotas_of_any_entity_are_stored_and_removed() -> None:
    cluster = Cluster()
    entities = [
        *((("user", name),) for name in NAMES),
        (("user", "alice"), ("client-id", None)),
        (("user", None), ("client-id", "x/y")),
        (("client-id", None),),
    ]
    results = cluster.commit(alter_quotas(cluster.image, [entry(*each) for each in entities]))
    assert [each.code for each in results] == [ErrorCode.NONE] * len(entities)
    held = {QuotaEntity.of(*each): {RATE: 1000.0} for each in entities}
    assert dict(cluster.image.quotas.entities) == held
    removals = [entry(*each, rate=None) for each in entities]
    cluster.commit(alter_quotas(cluster.image, removals))
    assert not cluster.image.quotas.entities
    assert not [key for key in cluster.entries if key.startswith(QUOTAS_PREFIX)]


def test_an_error_of_one_entity_does_not_affect_the_others() -> None:
    cluster = Cluster()
    entries = [entry(("user", "alice")), entry(("user", "bob"), rate=-1.0), entry(("planet", "x"))]
    results = cluster.commit(alter_quotas(cluster.image, entries))
    invalid = ErrorCode.INVALID_REQUEST
    assert [each.code for each in results] == [ErrorCode.NONE, invalid, invalid]
    assert [*cluster.image.quotas.entities] == [QuotaEntity.of(("user", "alice"))]


def test_validation_changes_nothing() -> None:
    cluster = Cluster()
    decision = alter_quotas(cluster.image, [entry(("user", "alice"))], validate_only=True)
    assert not decision.changes
    assert decision.result[0].code == ErrorCode.NONE


def test_a_change_of_quotas_is_reported() -> None:
    cluster = Cluster()
    key, value = quota_key(QuotaEntity.of(("user", "alice"))), encode_limits({RATE: 5.0})
    changed = cluster.image.apply(key, value, 1)
    assert changed == Changed(quotas=True) and changed
    assert cluster.image.load([], 2).quotas
    assert not cluster.image.quotas.entities


@pytest.mark.parametrize("end", ["x", "users", "users/", "users/%61lice", "ips/10.0.0.1/users/a"])
def test_a_key_that_no_broker_writes_is_an_error(end: str) -> None:
    with pytest.raises(MetadataInvalid):
        Cluster().image.apply(QUOTAS_PREFIX + end, encode_limits({RATE: 5.0}), 1)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b'{"v":1}',
        b'{"v":2,"limits":{}}',
        b'{"v":1,"limits":{"producer_byte_rate":NaN}}',
    ],
)
def test_a_value_that_cannot_be_read_leaves_the_image_as_it_is(value: bytes) -> None:
    cluster = Cluster()
    cluster.commit(alter_quotas(cluster.image, [entry(("user", "alice"))]))
    before = dict(cluster.image.quotas.entities)
    with pytest.raises(MetadataInvalid):
        cluster.image.apply(quota_key(QuotaEntity.of(("user", "alice"))), value, 9)
    assert dict(cluster.image.quotas.entities) == before
