"""The values of the metadata store that hold dynamic configs: of brokers, and within a topic."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from penstock.metadata.stored_fields import (
    MetadataInvalid,
    decode_fields,
    encode_fields,
    revision_field,
)

NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})
_SYNCED_FROM: Final = "synced_from"
OPTIONAL_CONFIG_FIELDS: Final = frozenset({_SYNCED_FROM})


def encode_configs(configs: Mapping[str, str], synced_from: int = 0) -> bytes:
    return encode_fields(config_fields(configs, synced_from))


def decode_configs(key: str, value: bytes, revision: int = 0) -> tuple[Mapping[str, str], int]:
    """Returns the configs, and the revision at which `log.durability` last changed among them."""
    fields = decode_fields(key, value, frozenset({"configs"}), OPTIONAL_CONFIG_FIELDS)
    return read_config_fields(key, fields, revision)


def config_fields(configs: Mapping[str, str], synced_from: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"configs": dict(configs)}
    if synced_from:
        fields[_SYNCED_FROM] = synced_from
    return fields


def read_config_fields(
    key: str, fields: Mapping[str, Any], revision: int
) -> tuple[Mapping[str, str], int]:
    """Returns the configs, and the revision at which `log.durability` last changed among them. A
    stored -1 means the revision of the commit itself, which its writer could not know."""
    configs = fields["configs"]
    if not isinstance(configs, dict) or not all(isinstance(v, str) for v in configs.values()):
        raise MetadataInvalid(key, f"the configs must map names to strings, but are {configs!r}")
    synced_from = revision_field(key, fields, _SYNCED_FROM, 0)
    return (
        MappingProxyType(configs) if configs else NO_CONFIGS,
        revision if synced_from < 0 else synced_from,
    )
