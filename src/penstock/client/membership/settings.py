"""How a member of a group behaves. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.membership.assignors import DEFAULT, Assignor


@dataclass(frozen=True, slots=True)
class MembershipOptions:
    """Named as Kafka's consumer options; the consumer's options have been checked before."""

    group_id: str
    group_instance_id: str | None = None
    """A name that survives restarts makes the member static: it may be away for a session timeout
    without anyone noticing."""
    client_rack: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    """A member whose owner does not poll for so long has stalled, and leaves."""
    rebalance_timeout_ms: int | None = None
    """How long the group waits for a member to join again; None: as long as for its polls."""
    assignors: tuple[Assignor, ...] = DEFAULT
    """Those this member can do, the preferred one first; the group uses one that all can do."""
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    require_stable: bool = False
    """Wait for transactions that are about to commit offsets: for who reads only what is
    committed."""
    metadata_max_age_ms: int = 300_000
    """How often the leader of a group looks for new partitions of its topics."""
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    leave_on_close: bool | None = None
    """None: leave, unless the member is static."""

    @property
    def is_cooperative(self) -> bool:
        """Partitions are kept through rebalances only if every assignor here allows for it: which
        of them the group will use is not known beforehand."""
        return all(assignor.cooperative for assignor in self.assignors)

    @property
    def rebalance_ms(self) -> int:
        given = self.rebalance_timeout_ms
        return self.max_poll_interval_ms if given is None else given

    @property
    def leaves(self) -> bool:
        if self.leave_on_close is None:
            return self.group_instance_id is None
        return self.leave_on_close
