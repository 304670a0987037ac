"""Decisions about delegation tokens: what requests change, and which tokens have expired.

A change that a client asked for also writes the version of the ACLs. So brokers note that they know
it, and a request can wait until all of them do (`acls.unconfirmed`). A token that has expired needs
no such note: each broker refuses it by its own clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.metadata.acl_values import encode_acl_version
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import ACL_VERSION_KEY, TOKEN_SECRET_KEY
from penstock.metadata.token_values import encode_check, encode_token, token_key
from penstock.security.delegation_tokens import (
    TOKENS_MAX,
    TOKENS_PER_OWNER_MAX,
    DelegationToken,
    SecretCheck,
)
from penstock.wire.errors import ErrorCode, KafkaError

REMOVED_PER_COMMIT: Final = 100
"""etcd accepts 128 operations in a transaction."""


def create_token(image: ClusterImage, token: DelegationToken) -> Decision[DelegationToken]:
    """Adds a token. Raises `KafkaError` if its owner or the cluster has too many."""
    tokens = image.tokens
    if token.token_id not in tokens.by_id:
        if len(tokens.by_id) >= TOKENS_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"The cluster has {TOKENS_MAX} delegation tokens: expire some that are not used.",
            )
        if tokens.count_of(token.owner) >= TOKENS_PER_OWNER_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{token.owner!r} has {TOKENS_PER_OWNER_MAX} delegation tokens: expire some that "
                "are not used.",
            )
    return Decision(_changes(image, token.token_id, token), token)


def change_token(
    image: ClusterImage,
    token_id: str | None,
    change: Callable[[DelegationToken], DelegationToken | None],
) -> Decision[DelegationToken | None]:
    """Changes a token, or removes it if `change` returns None.

    Raises DELEGATION_TOKEN_NOT_FOUND, or what `change` raises.
    """
    held = None if token_id is None else image.tokens.by_id.get(token_id)
    if held is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    after = change(held)
    return Decision(_changes(image, held.token_id, after), after)


def keep_secret_check(
    image: ClusterImage, broker_id: int, made: SecretCheck, instead_of: SecretCheck | None
) -> Decision[SecretCheck]:
    """Stores the check of a secret key. Returns the check that counts.

    It replaces the check of another key only while no other broker is registered."""
    held = image.tokens.secret_check
    others = any(each != broker_id for each in image.brokers)
    if held is not None and (held != instead_of or others):
        return Decision((), held)
    key = TOKEN_SECRET_KEY
    return Decision((Change(key, encode_check(made), image.revision_of(key)),), made)


def remove_expired(image: ClusterImage, now_ms: int) -> Decision[int]:
    """Removes tokens that have expired, as many as fit into one commit. Returns how many."""
    found = [each for each in image.tokens.by_id.values() if not each.is_valid(now_ms)]
    keys = [token_key(each.token_id) for each in found[:REMOVED_PER_COMMIT]]
    changes = tuple(Change(key, None, image.revision_of(key)) for key in keys)
    return Decision(changes, len(keys))


def _changes(
    image: ClusterImage, token_id: str, token: DelegationToken | None
) -> tuple[Change, ...]:
    key = token_key(token_id)
    value = None if token is None else encode_token(token)
    version = encode_acl_version(image.acl_revision)
    return (
        Change(key, value, image.revision_of(key)),
        Change(ACL_VERSION_KEY, version, image.revision_of(ACL_VERSION_KEY)),
    )
