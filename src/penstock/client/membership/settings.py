"""The options of a group member. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from penstock.client.membership.assignors import DEFAULT, Assignor, assignor_named
from penstock.client.membership.protocol import PROTOCOL_TYPE
from penstock.client.option_values import CLASSIC, GroupProtocol
from penstock.client.options import ConsumerOptions


@dataclass(frozen=True, slots=True)
class MembershipOptions:
    """Named like Kafka's consumer options. The consumer's options were validated before."""

    group_id: str
    group_instance_id: str | None = None
    """A name that survives restarts makes the member static: it may be absent for up to a session
    timeout without a rebalance."""
    client_rack: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    """A member whose consumer has not polled for this long is considered stuck and leaves the
    group."""
    rebalance_timeout_ms: int | None = None
    """How long the group waits for a member to join again. None: `max_poll_interval_ms`."""
    assignors: tuple[Assignor, ...] = DEFAULT
    """The assignors that this member supports, preferred first. The group uses one that all
    support."""
    group_protocol: GroupProtocol = CLASSIC
    """Who assigns the partitions: `CLASSIC` a member, `CONSUMER` the coordinator (KIP-848)."""
    remote_assignor: str | None = None
    """The coordinator's assignor that this member wants. None: the coordinator's default."""
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    require_stable: bool = False
    """Wait for transactions that are about to commit offsets. For read-committed consumers."""
    metadata_max_age_ms: int = 300_000
    """How often the leader of a group checks for new partitions of its topics."""
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    leave_on_close: bool | None = None
    """None: leave, unless the member is static."""
    protocol_type: str = PROTOCOL_TYPE
    """What the members of the group do. All members must have the same."""

    @classmethod
    def of(cls, group_id: str, options: ConsumerOptions) -> Self:
        """Returns the options of a consumer's membership in this group."""
        return cls(
            group_id=group_id,
            group_instance_id=options.group_instance_id,
            client_rack=options.client_rack or None,
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
            max_poll_interval_ms=options.max_poll_interval_ms,
            rebalance_timeout_ms=options.rebalance_timeout_ms,
            assignors=tuple(
                assignor_named(each) if isinstance(each, str) else each
                for each in options.partition_assignment_strategy
            ),
            group_protocol=options.group_protocol,
            remote_assignor=options.group_remote_assignor,
            enable_auto_commit=options.enable_auto_commit,
            auto_commit_interval_ms=options.auto_commit_interval_ms,
            require_stable=bool(options.isolation_level),
            metadata_max_age_ms=options.metadata_max_age_ms,
            request_timeout_ms=options.request_timeout_ms,
            default_api_timeout_ms=options.default_api_timeout_ms,
            retry_backoff_ms=options.retry_backoff_ms,
            retry_backoff_max_ms=options.retry_backoff_max_ms,
        )

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions are kept during rebalances. Every assignor must support that, because
        it is not known beforehand which of them the group will use."""
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
