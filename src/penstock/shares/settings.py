"""The settings of a share group that its share partitions need."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.shares.offset_reset import LATEST, OffsetReset


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """The defaults are Kafka's; those that Kafka does not have are off."""

    record_lock_ms: int = 30_000
    delivery_limit: int = 5
    in_flight_max: int = 2000
    """The window holds at most this many offsets, plus the rest of one batch that is not larger."""
    renew_enabled: bool = True
    read_committed: bool = False
    """Records of open and aborted transactions are not delivered."""
    offset_reset: OffsetReset = LATEST
    """Where the group begins in a partition that it has never read."""
    backoff_ms: int = 0
    """How long a record waits after its first delivery has failed. 0: it does not wait."""
    backoff_max_ms: int = 0
    dead_letter_topic: str = ""
    """Where dead letters go. Without it, records that are given up are archived at once."""
    copies_records: bool = False
    """Whether a dead letter has the key, the value and the headers of its record."""

    @property
    def dead_letters(self) -> bool:
        return bool(self.dead_letter_topic)

    def backoff_after(self, delivery_count: int) -> int:
        """Returns how long a record waits after this many deliveries."""
        if not self.backoff_ms:
            return 0
        doubled = self.backoff_ms << min(delivery_count - 1, 32)
        return min(doubled, max(self.backoff_max_ms, self.backoff_ms))
