"""The features of a cluster, as ApiVersions shows and UpdateFeatures checks them.

There is one: transaction.version 2, by which each transaction has an epoch of its own (KIP-890).
Features never change while a cluster runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.txns.config import EPOCH_PER_TRANSACTION


class Feature(NamedTuple):
    """The levels that brokers support, and the one that is in force."""

    level_min: int
    level_max: int
    level: int


FEATURES: Final[Mapping[str, Feature]] = MappingProxyType(
    {"transaction.version": Feature(0, EPOCH_PER_TRANSACTION, EPOCH_PER_TRANSACTION)}
)
