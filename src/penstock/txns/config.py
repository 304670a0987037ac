"""The settings of the transaction coordinator; the defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

EPOCH_PER_TRANSACTION: Final = 2
"""The transaction.version in which every transaction ends with a new producer epoch (KIP-890)."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    timeout_max_ms: int = 900_000
    """transaction.max.timeout.ms"""
    id_expiration_ms: int = 604_800_000
    """transactional.id.expiration.ms"""
    id_expiration_check_interval_ms: int = 3_600_000
    """transaction.remove.expired.transaction.cleanup.interval.ms"""
    transaction_version: int = EPOCH_PER_TRANSACTION
    """The finalized feature transaction.version."""
    retry_ms: int = 100
    """How long to wait before a marker or record that was not accepted is sent again."""
    ending_patience_ms: int = 1_000
    """How long an addition waits for the previous transaction to be complete."""

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name == "transaction_version" else 1
            value = getattr(self, field.name)
            if value < least:
                raise ValueError(f"{field.name} is {value}; it must be {least} or more")
