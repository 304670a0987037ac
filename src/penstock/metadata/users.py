"""Changes the users of a cluster: their SCRAM credentials, and the secret of the decoys."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.metadata.decisions import Change, Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import DECOY_SECRET_KEY
from penstock.metadata.user_values import DECOY_SECRET_BYTES, user_key
from penstock.security.scram_credentials import Deletion, Upsertion, UserResult, alter, encode


def alter_users(
    image: ClusterImage, deletions: Iterable[Deletion], upsertions: Iterable[Upsertion]
) -> Decision[tuple[UserResult, ...]]:
    """Decides on AlterUserScramCredentials. Users without an error are changed together."""
    outcome = alter(image.users.credentials, deletions, upsertions)
    changes: list[Change] = []
    for owner in outcome.deleted:
        key = user_key(*owner)
        changes.append(Change(key, None, image.revision_of(key)))
    for owner, credential in outcome.upserted.items():
        key = user_key(*owner)
        changes.append(Change(key, encode(credential), image.revision_of(key)))
    return Decision(tuple(changes), outcome.results)


def create_decoy_secret(
    image: ClusterImage, random_bytes: Callable[[int], bytes]
) -> Decision[bytes]:
    """Gives the cluster a secret for decoys, unless it already has one."""
    if image.users.decoy_secret is not None:
        return Decision((), image.users.decoy_secret)
    secret = random_bytes(DECOY_SECRET_BYTES)
    return Decision((Change(DECOY_SECRET_KEY, secret, 0),), secret)
