"""Delegation tokens in the metadata store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.metadata.acls import note_acls_seen, unconfirmed
from penstock.metadata.cluster_values import encode_broker
from penstock.metadata.decisions import Decision
from penstock.metadata.delegation_tokens import (
    REMOVED_PER_COMMIT,
    change_token,
    create_token,
    keep_secret_check,
    remove_expired,
)
from penstock.metadata.image import Changed, ClusterImage
from penstock.metadata.keys import TOKEN_SECRET_KEY, TOKENS_PREFIX, broker_key
from penstock.metadata.model import BrokerInfo
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.metadata.token_values import encode_token, token_key
from penstock.security.delegation_tokens import (
    CHECK_BYTES,
    CHECK_SALT_BYTES,
    TOKENS_MAX,
    TOKENS_PER_OWNER_MAX,
    DelegationToken,
    SecretCheck,
)
from penstock.wire.errors import ErrorCode, KafkaError

from .cluster import Cluster


def token(number: int = 0, owner: str = "alice", expires_ms: int = 2000) -> DelegationToken:
    token_id = f"token-{number:016d}"
    return DelegationToken(token_id, owner, "admin", ("bob", "ä ö"), 1000, expires_ms, 9000)


def test_a_token_is_created_changed_and_removed() -> None:
    cluster = Cluster()
    made = cluster.commit(create_token(cluster.image, token()))
    assert cluster.image.tokens.by_id == {made.token_id: made}
    longer = replace(made, expires_ms=3000)
    result = cluster.commit(change_token(cluster.image, made.token_id, lambda _: longer))
    assert result == longer == cluster.image.tokens.by_id[made.token_id]
    assert cluster.image.tokens.count_of("alice") == 1
    assert cluster.commit(change_token(cluster.image, made.token_id, lambda _: None)) is None
    assert not cluster.image.tokens.by_id and not cluster.image.tokens.count_of("alice")


@pytest.mark.parametrize("token_id", [None, "token-" + "9" * 16])
def test_a_token_that_does_not_exist_cannot_be_changed(token_id: str | None) -> None:
    cluster = Cluster()
    cluster.commit(create_token(cluster.image, token()))
    with pytest.raises(KafkaError) as error:
        change_token(cluster.image, token_id, lambda held: held)
    assert error.value.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_a_stored_token_has_nothing_that_helps_to_log_in() -> None:
    fields = json.loads(encode_token(token()))
    assert fields.keys() == {
        "v",
        "owner",
        "requester",
        "renewers",
        "issued_ms",
        "expires_ms",
        "max_ms",
    }


def test_every_change_waits_for_the_notes_of_all_brokers() -> None:
    cluster = Cluster(brokers=2)
    token_id = token().token_id
    decisions: tuple[Callable[[], Decision[object]], ...] = (
        lambda: create_token(cluster.image, token()),
        lambda: change_token(cluster.image, token_id, lambda held: held),
        lambda: change_token(cluster.image, token_id, lambda _: None),
    )
    for decide in decisions:
        cluster.commit(decide())
        revision = cluster.image.acl_revision
        assert revision == cluster.revision
        assert unconfirmed(cluster.image, revision) == [0, 1]
        for broker_id, broker in sorted(cluster.image.brokers.items()):
            cluster.commit(note_acls_seen(cluster.image, broker_id, broker.broker_epoch, revision))
        assert not unconfirmed(cluster.image, revision)


def test_expired_tokens_are_removed_in_portions() -> None:
    cluster = Cluster()
    for number in range(REMOVED_PER_COMMIT + 1):
        cluster.commit(create_token(cluster.image, token(number)))
    kept = cluster.commit(create_token(cluster.image, token(999, expires_ms=2001)))
    assert cluster.commit(remove_expired(cluster.image, 1999)) == 0
    assert cluster.commit(remove_expired(cluster.image, 2000)) == REMOVED_PER_COMMIT
    assert cluster.commit(remove_expired(cluster.image, 2000)) == 1
    assert cluster.commit(remove_expired(cluster.image, 2000)) == 0
    assert [*cluster.image.tokens.by_id] == [kept.token_id]


@pytest.mark.parametrize(("most", "owners"), [(TOKENS_PER_OWNER_MAX, 1), (TOKENS_MAX, TOKENS_MAX)])
def test_an_owner_and_a_cluster_can_have_a_limited_number(most: int, owners: int) -> None:
    cluster = Cluster()
    for number in range(most):
        made = token(number, f"u{number % owners}")
        cluster.image.tokens.set(token_key(made.token_id), encode_token(made))
    with pytest.raises(KafkaError) as error:
        create_token(cluster.image, token(most, "u0"))
    assert error.value.code == ErrorCode.POLICY_VIOLATION
    again = token(0, "u0")
    assert create_token(cluster.image, again).result == again


def test_a_change_of_tokens_is_reported() -> None:
    cluster = Cluster()
    made = token()
    changed = cluster.image.apply(token_key(made.token_id), encode_token(made), 1)
    assert changed == Changed(tokens=(made.token_id,)) and changed
    changed = cluster.image.load([], 2)
    assert changed.tokens == (made.token_id,) and not cluster.image.tokens.by_id


@pytest.mark.parametrize("end", ["", "short", "token-/000000000000000", "%74oken-000000000000000"])
def test_a_key_that_no_broker_writes_is_an_error(end: str) -> None:
    with pytest.raises(MetadataInvalid):
        Cluster().image.apply(TOKENS_PREFIX + end, encode_token(token()), 1)


@pytest.mark.parametrize(
    "change",
    [{"owner": ""}, {"owner": 7}, {"renewers": "bob"}, {"renewers": [1]}, {"max_ms": -1}, {"x": 1}],
)
def test_a_value_that_cannot_be_read_is_an_error(change: dict[str, object]) -> None:
    fields = {**json.loads(encode_token(token())), **change}
    with pytest.raises(MetadataInvalid):
        Cluster().image.apply(token_key(token().token_id), json.dumps(fields).encode(), 1)


def check_of(number: int) -> SecretCheck:
    return SecretCheck(bytes([number]) * CHECK_SALT_BYTES, bytes([number]) * CHECK_BYTES)


def apply_check(image: ClusterImage, decision: Decision[SecretCheck], revision: int) -> None:
    (change,) = decision.changes
    image.apply(change.key, change.value, revision)


def test_the_first_check_of_a_secret_key_is_stored() -> None:
    """What is stored has neither the secret key nor anything else than a salt and a digest."""
    image = ClusterImage()
    decision = keep_secret_check(image, 0, check_of(1), None)
    assert decision.result == check_of(1)
    apply_check(image, decision, 1)
    assert image.tokens.secret_check == check_of(1)
    again = keep_secret_check(image, 1, check_of(2), None)
    assert (again.changes, again.result) == ((), check_of(1))


def test_a_check_is_replaced_only_while_no_other_broker_is_registered() -> None:
    """And only if it is still the one that the broker has seen."""
    image = ClusterImage()
    apply_check(image, keep_secret_check(image, 0, check_of(1), None), 1)
    unseen = keep_secret_check(image, 0, check_of(2), check_of(3))
    assert (unseen.changes, unseen.result) == ((), check_of(1))
    for broker_id, allowed in ((0, True), (1, False)):
        info = BrokerInfo(broker_id, "h", 9, None, bytes(16))
        image.apply(broker_key(broker_id), encode_broker(info), broker_id + 2)
        decision = keep_secret_check(image, 0, check_of(2), check_of(1))
        assert bool(decision.changes) == allowed
        assert decision.result == check_of(2 if allowed else 1)


@pytest.mark.parametrize("value", [b"{}", b'{"salt":"00","digest":"00"}', b'{"salt":1,"digest":2}'])
def test_a_bad_check_is_reported(value: bytes) -> None:
    with pytest.raises(MetadataInvalid):
        ClusterImage().apply(TOKEN_SECRET_KEY, value, 1)
