"""An administrator who sets, changes and removes the quotas of tenants, at any broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.security.quotas import REQUEST_PERCENTAGE, QuotaEntity
from penstock.sim.actors.sends import with_cluster
from penstock.sim.actors.shared_state import Actor
from penstock.sim.quota_plan import KEY_OF, TENANTS, drawn_limit, entities_for
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import AlterClientQuotasRequest, AlterClientQuotasResponse

QUOTA_ADMIN_TIMEOUT_MS: Final = 15_000
_PAUSE_MEAN_S: Final = 2.5
_SET_SHARE: Final = 0.7
_REQUEST_TIME_SHARE: Final = 0.15

Changes = Mapping[tuple[QuotaEntity, str], float | None]
"""By entity and key: the limit, or None to remove it."""


class NotAltered(Exception):
    """A change may not be made."""


async def alter(actor: Actor, cluster: Cluster, changes: Changes) -> None:
    """Changes quotas at any broker. Raises `ClientError` or `NotAltered`."""
    ops: dict[QuotaEntity, list[AlterClientQuotasRequest.Op]] = {}
    for (entity, key), limit in changes.items():
        op = AlterClientQuotasRequest.Op(key, limit or 0.0, limit is None)
        ops.setdefault(entity, []).append(op)
    entries = [
        AlterClientQuotasRequest.Entry(
            [AlterClientQuotasRequest.Entity(kind, name) for kind, name in entity.parts], wanted
        )
        for entity, wanted in ops.items()
    ]
    connection = await cluster.connection(actor.draws.choice(sorted(cluster.brokers)))
    answer = await connection.call(AlterClientQuotasRequest(entries), AlterClientQuotasResponse)
    for entry in answer.entries:
        if entry.error_code:
            raise NotAltered(ErrorCode(entry.error_code).name)


def all_quotas(user: str | None) -> list[tuple[QuotaEntity, str]]:
    """Returns every quota that a tenant can have."""
    return list(
        dict.fromkeys(
            (entity, key)
            for client_id in TENANTS
            for entity in entities_for(client_id, user)
            for key in (KEY_OF[client_id], REQUEST_PERCENTAGE)
        )
    )


@dataclass(slots=True)
class QuotaAdmin:
    """Changes quotas. Knows which of them may be set."""

    actor: Actor
    present: dict[tuple[QuotaEntity, str], None] = field(default_factory=dict)

    async def run(self, cluster: Cluster) -> None:
        """Changes quotas until the load is over."""
        shared, draws = self.actor.shared, self.actor.draws
        while not shared.over.is_set():
            await self.change(cluster)
            await shared.rest(min(draws.expovariate(1 / _PAUSE_MEAN_S), 10.0))

    async def change(self, cluster: Cluster) -> None:
        """Sets or changes one quota, removes one, or removes all."""
        shared, draws = self.actor.shared, self.actor.draws
        removes = bool(self.present) and draws.random() >= _SET_SHARE
        changes: dict[tuple[QuotaEntity, str], float | None] = {}
        if not removes:
            client_id = draws.choice(TENANTS)
            entity = draws.choice(entities_for(client_id, shared.tenant_user))
            is_time = draws.random() < _REQUEST_TIME_SHARE
            quota = entity, REQUEST_PERCENTAGE if is_time else KEY_OF[client_id]
            self.present[quota] = None
            changes[quota] = drawn_limit(quota[1], draws.random())
        elif draws.random() < 0.4:
            changes = dict.fromkeys(self.present)
        else:
            changes[draws.choice([*self.present])] = None
        try:
            await alter(self.actor, cluster, changes)
        except (ClientError, NotAltered):
            shared.count("quotas_not_altered")
            return
        if removes:
            for quota in changes:
                self.present.pop(quota)
        shared.count("quotas_removed" if removes else "quotas_set", len(changes))


async def run_quota_admin(actor: Actor) -> None:
    cluster = await with_cluster(actor, QUOTA_ADMIN_TIMEOUT_MS)
    if cluster is None:
        return
    try:
        await QuotaAdmin(actor).run(cluster)
    finally:
        cluster.close()
