"""The client quotas of a cluster, as the metadata store holds them.

One key holds all limits of one entity, so an entity changes completely or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from penstock.metadata.keys import QUOTAS_PREFIX
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.security.quotas import Limits, QuotaEntity, decode_limits, entity_of, store_name


class QuotaTable:
    """The quotas of a cluster image. Only the image changes it."""

    def __init__(self) -> None:
        self._entities: dict[QuotaEntity, Limits] = {}
        self.entities: Mapping[QuotaEntity, Limits] = MappingProxyType(self._entities)

    def set(self, key: str, value: bytes | None) -> None:
        """Applies a change of the store to a key of `QUOTAS_PREFIX`."""
        try:
            entity = entity_of(key.removeprefix(QUOTAS_PREFIX))
            limits = None if value is None else decode_limits(entity, value)
        except ValueError as error:
            raise MetadataInvalid(key, str(error)) from error
        if limits is None:
            self._entities.pop(entity, None)
        else:
            self._entities[entity] = limits


def quota_key(entity: QuotaEntity) -> str:
    return QUOTAS_PREFIX + store_name(entity)
