"""The tenants of a scenario with client quotas, and the quotas that they can get.

Each tenant has a client id of its own. With access control all tenants log in as one user, whom
nobody else uses. Without it everybody is `ANONYMOUS`, so no quota of a whole user is set. No
default quota is set for all users or all client ids: only tenants are ever limited.

Limits are small, because clients send little. They differ by at most a factor of three, so that a
client whose limit is lowered is muted for no longer than half a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.security.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Limits,
    QuotaEntity,
)

WRITER: Final = "tenant-writer"
HASTY_WRITER: Final = "tenant-hasty"
READER: Final = "tenant-reader"
MUTATOR: Final = "tenant-mutator"
TENANTS: Final = (WRITER, HASTY_WRITER, READER, MUTATOR)
"""The client ids. The hasty writer ignores the throttle time of its answers."""
NEIGHBOR: Final = "neighbor"
"""A client without a quota, and with the user of all other clients."""

KEY_OF: Final = {
    WRITER: PRODUCER_BYTE_RATE,
    HASTY_WRITER: PRODUCER_BYTE_RATE,
    READER: CONSUMER_BYTE_RATE,
    MUTATOR: CONTROLLER_MUTATION_RATE,
    NEIGHBOR: PRODUCER_BYTE_RATE,
}
"""The quota that can throttle each of them."""

LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    PRODUCER_BYTE_RATE: (100, 300),
    CONSUMER_BYTE_RATE: (200, 600),
    CONTROLLER_MUTATION_RATE: (0.2, 0.6),
    REQUEST_PERCENTAGE: (0.1, 0.3),
}
"""The smallest and the largest limit of each quota."""
_WHOLE: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)

MUTED_S_MAX: Final = 35.0
"""No connection is muted for longer. A client waits longer than this for an answer."""


class QuotaState(NamedTuple):
    """What the metadata of a broker says about the quota of one client."""

    version: tuple[int, int]
    """Changes whenever any quota changes, or the broker restarts."""
    limit: float | None


NO_STATE: Final = QuotaState((-1, -1), None)
"""The broker does not run."""


def entities_for(client_id: str, user: str | None) -> list[QuotaEntity]:
    """Returns the entities whose quota applies to a tenant, the most specific one first. `user` is
    the user of the tenants, or None if others have the same user."""
    if user is None:
        return [
            QuotaEntity.of((USER, "ANONYMOUS"), (CLIENT_ID, client_id)),
            QuotaEntity.of((USER, None), (CLIENT_ID, client_id)),
            QuotaEntity.of((CLIENT_ID, client_id)),
        ]
    return [
        QuotaEntity.of((USER, user), (CLIENT_ID, client_id)),
        QuotaEntity.of((USER, user), (CLIENT_ID, None)),
        QuotaEntity.of((USER, user)),
        QuotaEntity.of((USER, None), (CLIENT_ID, client_id)),
        QuotaEntity.of((CLIENT_ID, client_id)),
    ]


def limit_of(
    entities: Mapping[QuotaEntity, Limits], client_id: str, user: str | None, key: str
) -> float | None:
    """Returns the limit of a tenant, or of the neighbor. None is no limit."""
    if client_id == NEIGHBOR:
        return None
    for entity in entities_for(client_id, user):
        if (limit := entities.get(entity, {}).get(key)) is not None:
            return limit
    return None


def drawn_limit(key: str, share: float) -> float:
    """Returns a limit. `share` is between 0 and 1."""
    least, most = LIMITS[key]
    limit = least + (most - least) * share
    return round(limit) if key in _WHOLE else round(limit, 3)
