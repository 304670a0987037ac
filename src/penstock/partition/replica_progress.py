"""What a leader knows about one follower: how far its log goes, and when it was last caught up."""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = -1


class ReplicaProgress:
    """What the leader knows about one follower."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "end_offset",
        "fetched_ms",
        "leader_end",
        "log_start_offset",
        "told_offset",
    )

    def __init__(self, caught_up_ms: int) -> None:
        self.broker_epoch = UNKNOWN
        self.end_offset = UNKNOWN
        """The offset of its last fetch: it has everything below."""
        self.log_start_offset = UNKNOWN
        self.caught_up_ms = caught_up_ms
        """When it last had the leader's whole log, as far as the leader knows."""
        self.fetched_ms = caught_up_ms
        self.leader_end = UNKNOWN
        """The leader's log end at the last fetch."""
        self.told_offset = UNKNOWN
        """The high watermark in the last fetch response to this follower."""

    def note_fetch(
        self, broker_epoch: int, offset: int, log_start: int, leader_end: int, now_ms: int
    ) -> None:
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end >= 0 and broker_epoch == self.broker_epoch:
            # It now has all that the log held at its previous fetch, so it was caught up then.
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.broker_epoch = broker_epoch
        self.end_offset = offset
        self.log_start_offset = log_start
        self.fetched_ms = now_ms
        self.leader_end = leader_end

    def forget_fetches(self) -> None:
        """Resets the fetch state, so that only a new fetch can bring it back into the ISR."""
        self.broker_epoch = self.leader_end = UNKNOWN

    def keeps_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        return self.end_offset >= leader_end or now_ms - self.caught_up_ms <= lag_max_ms
