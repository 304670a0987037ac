"""The users of a cluster in the metadata store."""

from __future__ import annotations

import pytest

from penstock.metadata.image import Changed
from penstock.metadata.keys import DECOY_SECRET_KEY, USERS_PREFIX
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.metadata.user_values import user_key
from penstock.metadata.users import alter_users, create_decoy_secret
from penstock.security.scram_credentials import Deletion, ScramMechanism, Upsertion, encode
from penstock.wire.errors import ErrorCode

from .cluster import Cluster

SHA_256 = ScramMechanism.SHA_256
NAMES = ("alice", "a/b", "50%", "ä ö", "..", "User:x", "/")


def upsertion(user: str, mechanism: ScramMechanism = SHA_256, iterations: int = 4096) -> Upsertion:
    return Upsertion(user, mechanism, iterations, b"sixteen bytes !!", bytes(mechanism.digest_size))


def set_users(cluster: Cluster, *users: str) -> None:
    results = cluster.commit(alter_users(cluster.image, [], [upsertion(each) for each in users]))
    assert [each.code for each in results] == [ErrorCode.NONE] * len(users)


def test_users_of_any_name_are_stored_and_deleted() -> None:
    cluster = Cluster()
    set_users(cluster, *NAMES)
    assert {user for user, _ in cluster.image.users.credentials} == {*NAMES}
    for user in NAMES:
        results = cluster.commit(alter_users(cluster.image, [Deletion(user, SHA_256)], []))
        assert [each.code for each in results] == [ErrorCode.NONE]
    assert not cluster.image.users.credentials


def test_an_error_of_one_user_does_not_affect_the_others() -> None:
    cluster = Cluster()
    changes = [upsertion("alice"), upsertion("bob", iterations=1)]
    results = cluster.commit(alter_users(cluster.image, [Deletion("carol", SHA_256)], changes))
    codes = {each.user: each.code for each in results}
    assert codes["alice"] == ErrorCode.NONE
    assert codes["bob"] == ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert codes["carol"] == ErrorCode.RESOURCE_NOT_FOUND
    assert [*cluster.image.users.credentials] == [("alice", SHA_256)]


def test_a_change_of_users_is_reported() -> None:
    cluster = Cluster()
    set_users(cluster, "alice")
    value = encode(cluster.image.users.credentials["alice", SHA_256])
    changed = cluster.image.apply(user_key("bob", SHA_256), value, cluster.revision + 1)
    assert changed == Changed(users=True) and changed


@pytest.mark.parametrize("end", ["alice", "alice/3", "alice/01", "%61lice/1", "alice/1/1", "%zz/1"])
def test_a_key_that_no_broker_writes_is_reported_and_not_used(end: str) -> None:
    """So that a user cannot have two credentials for one mechanism."""
    cluster = Cluster()
    set_users(cluster, "alice")
    value = encode(cluster.image.users.credentials["alice", SHA_256])
    users, before = cluster.image.users, dict(cluster.image.users.credentials)
    cluster.image.apply(USERS_PREFIX + end, value, cluster.revision + 1)
    assert users.credentials == before
    assert list(users.problems) == [USERS_PREFIX + end]
    cluster.image.apply(USERS_PREFIX + end, None, cluster.revision + 2)
    assert users.problems == {}


@pytest.mark.parametrize("bad", [None, b"", b"{}", b"\xff"], ids=repr)
def test_a_credential_that_cannot_be_read_locks_out_only_its_user(bad: bytes | None) -> None:
    """Before, it stopped every broker. None stands for a credential of another mechanism."""
    cluster = Cluster()
    set_users(cluster, "alice", "bob")
    users, key = cluster.image.users, user_key("alice", SHA_256)
    good = encode(users.credentials["alice", SHA_256])
    other = good.replace(b"SCRAM-SHA-256", b"SCRAM-SHA-512")
    cluster.image.apply(key, other if bad is None else bad, cluster.revision + 1)
    assert ("alice", SHA_256) not in users.credentials
    assert ("bob", SHA_256) in users.credentials
    assert list(users.problems) == [key]
    cluster.image.apply(key, good, cluster.revision + 2)
    assert ("alice", SHA_256) in users.credentials
    assert users.problems == {}


def test_the_secret_of_the_decoys_is_written_once() -> None:
    """All brokers share it. Otherwise a client could tell decoys from users by asking two."""
    cluster = Cluster()
    first = cluster.commit(create_decoy_secret(cluster.image, lambda size: b"a" * size))
    again = cluster.commit(create_decoy_secret(cluster.image, lambda size: b"b" * size))
    assert first == again == cluster.image.users.decoy_secret == b"a" * 32
    with pytest.raises(MetadataInvalid):
        cluster.image.apply(DECOY_SECRET_KEY, b"short", cluster.revision + 1)
