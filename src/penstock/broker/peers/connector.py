"""Opens connections to other brokers, as the settings for connections between brokers say.

A broker connects to the listener of the others that has the name of its own inter-broker listener.
So a running cluster can change that listener broker by broker, once all of them have the new one.
"""

from __future__ import annotations

from penstock.broker.peers.connection import Peer, PeerLost, PeerSecurity, connect_peer
from penstock.metadata.model import PLAINTEXT, BrokerInfo
from penstock.ports import Network


class PeerConnector:
    """Connects to other brokers through one listener."""

    def __init__(
        self, network: Network, listener: str = PLAINTEXT, security: PeerSecurity | None = None
    ) -> None:
        self._network = network
        self._listener = listener
        self._security = security

    async def connect(
        self, broker: BrokerInfo, *, client_id: str, timeout_s: float, response_bytes_max: int
    ) -> Peer:
        """Connects and logs in. Raises `PeerLost`."""
        address = broker.endpoint(self._listener)
        if address is None:
            raise PeerLost(
                f"broker {broker.broker_id} does not have the listener {self._listener}, through "
                "which this broker connects to others: add it there to listeners and "
                "advertised.listeners, or change inter.broker.listener.name here"
            )
        return await connect_peer(
            self._network,
            address,
            client_id=client_id,
            timeout_s=timeout_s,
            response_bytes_max=response_bytes_max,
            security=self._security,
        )
