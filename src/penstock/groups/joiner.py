"""A JoinGroup request in the form that all its versions share."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordination.effects import Token
from penstock.groups.effects import RequestInfo
from penstock.groups.group import Parked
from penstock.wire.messages import JoinGroupRequest

MEMBER_ID_ROUND_TRIP_SINCE = 4


@dataclass(frozen=True, slots=True)
class Joiner:
    """A normalized JoinGroup request."""

    group_id: str
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: dict[str, bytes]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    client_id: str
    client_host: str
    parked: Parked

    @classmethod
    def of(cls, request: JoinGroupRequest, info: RequestInfo, token: Token) -> Joiner:
        protocols: dict[str, bytes] = {}
        for protocol in request.protocols:
            protocols.setdefault(protocol.name, protocol.metadata)
        return cls(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.protocol_type,
            protocols,
            # Version 0 has no rebalance timeout.
            request.rebalance_timeout_ms if info.version else request.session_timeout_ms,
            request.session_timeout_ms,
            info.client_id,
            info.client_host,
            Parked(token, info.version),
        )
