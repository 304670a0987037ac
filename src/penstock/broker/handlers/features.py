"""The features of a cluster, which ApiVersions reports and UpdateFeatures checks.

There is one: transaction.version 2, where the producer epoch is raised for every transaction
(KIP-890). Features never change while a cluster runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.txns.config import EPOCH_PER_TRANSACTION


class Feature(NamedTuple):
    """The levels that brokers support, and the level in use."""

    level_min: int
    level_max: int
    level: int


FEATURES: Final[Mapping[str, Feature]] = MappingProxyType(
    {"transaction.version": Feature(0, EPOCH_PER_TRANSACTION, EPOCH_PER_TRANSACTION)}
)
