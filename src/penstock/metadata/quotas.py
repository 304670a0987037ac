"""Changes the client quotas of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.metadata.decisions import Change, Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.quota_values import quota_key
from penstock.security.quotas import QuotaAlteration, QuotaResult, alter, encode_limits


def alter_quotas(
    image: ClusterImage, entries: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> Decision[tuple[QuotaResult, ...]]:
    """Decides on AlterClientQuotas. Entities without an error are changed together."""
    outcome = alter(image.quotas.entities, entries, validate_only)
    changes: list[Change] = []
    for entity, limits in outcome.changes.items():
        key = quota_key(entity)
        value = encode_limits(limits) if limits else None
        changes.append(Change(key, value, image.revision_of(key)))
    return Decision(tuple(changes), outcome.results)
