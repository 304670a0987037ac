"""Who sends the requests of a connection, and through which listener they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.metadata.model import PLAINTEXT
from penstock.security.addresses import network_of

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a connection that is not authenticated, as in Kafka."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A connection keeps one, so that no request has to make it."""

    principal: str
    """Such as `User:alice`."""
    host: str
    """The IP address of the client."""
    listener: str = PLAINTEXT
    """The name of the listener that accepted the connection."""
    by_token: bool = False
    """Whether the client has logged in with a delegation token of the user."""

    @property
    def tenant(self) -> str:
        """Who shares the broker with others under overload: the user, or the address of a client
        that is not authenticated, which is a network of 64 bits for IPv6."""
        return network_of(self.host) if self.principal == ANONYMOUS else self.principal
