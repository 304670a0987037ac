"""What a link to a leader needs of the share consumer that it belongs to."""

from __future__ import annotations

from typing import Protocol

from penstock.client.errors import ClientError
from penstock.client.sharing.acquired import Acquired
from penstock.client.sharing.leases import Room
from penstock.client.sharing.membership import SharePart


class LinkSettings(Protocol):
    """The options that requests to a leader need."""

    @property
    def fetch_min_bytes(self) -> int: ...
    @property
    def fetch_max_bytes(self) -> int: ...
    @property
    def fetch_max_wait_ms(self) -> int: ...
    @property
    def acquire_mode(self) -> int: ...
    @property
    def check_crcs(self) -> bool: ...
    @property
    def request_timeout_ms(self) -> int: ...


class LinkHost(Protocol):
    """The share consumer that a link belongs to."""

    def wanted(self, broker_id: int) -> frozenset[SharePart]:
        """Returns the assigned partitions that this broker leads."""

    def is_led_elsewhere(self, broker_id: int, part: SharePart) -> bool:
        """Whether another broker is known to lead the partition."""

    def holds(self, broker_id: int) -> bool:
        """Whether records of this leader are held."""

    def room(self, broker_id: int) -> Room | None:
        """Returns how much a fetch may bring, and reserves it; None if it must wait."""

    def give_back(self, broker_id: int) -> None:
        """Ends the reservation."""

    def on_acquired(
        self, broker_id: int, part: SharePart, found: Acquired, locked_until: float
    ) -> None:
        """Handles what a fetch has brought from one partition."""

    def on_leader_changed(self) -> None:
        """Refreshes the metadata: a broker no longer leads a partition."""

    def on_slow(self, broker_id: int) -> None:
        """Refreshes the metadata, from another broker: this one does not answer."""

    def on_failure(self, error: ClientError) -> None:
        """Handles an error that another attempt cannot overcome."""
