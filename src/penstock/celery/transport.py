"""The kombu transport `penstock://`. docs/CELERY.md has the design."""

from __future__ import annotations

import threading
from importlib.metadata import version
from queue import Empty
from typing import Any, Final

from kombu.transport import virtual

from penstock.celery.broker_link import BrokerLink
from penstock.celery.channel import Channel
from penstock.celery.settings import PORT, read_settings
from penstock.client.errors import (
    BrokerError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DeliveryTimedOut,
    LockLost,
    RequestTimedOut,
)

_LOOK_S: Final = 1.0
"""How long a wait lasts at most before the queues are looked at again."""


class Transport(virtual.Transport):  # type: ignore[misc]  # kombu has no types
    """One connection of kombu."""

    Channel = Channel
    default_port = PORT
    driver_type = "penstock"
    driver_name = "penstock"
    implements = virtual.Transport.implements.extend(
        asynchronous=False,
        exchange_type=frozenset({"direct", "topic", "fanout"}),
        heartbeats=False,
    )
    # The client repeats what may be repeated. These errors are what is left: kombu and Celery
    # connect again.
    connection_errors = (
        *virtual.Transport.connection_errors,
        *(ConnectFailed, ConnectionLost, RequestTimedOut, DeadlineExceeded, DeliveryTimedOut),
        Closed,
    )
    channel_errors = (*virtual.Transport.channel_errors, BrokerError, LockLost)

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.arrived = threading.Event()
        """Set when a message has arrived, or when there is room for one more."""
        self._link: BrokerLink | None = None

    @property
    def link(self) -> BrokerLink:
        """The clients of this connection."""
        if self._link is None:
            raise Closed("the connection is closed: connect again")
        return self._link

    def establish_connection(self) -> Transport:
        client = self.client
        settings = read_settings(
            hostname=client.hostname,
            port=client.port,
            user=client.userid,
            password=client.password,
            virtual_host=client.virtual_host,
            ssl=client.ssl,
            options=client.transport_options,
        )
        link = BrokerLink(settings)
        try:
            link.start()
        except BaseException:
            link.close()
            raise
        self._link = link
        super().establish_connection()
        return self

    def close_connection(self, connection: Transport) -> None:
        super().close_connection(connection)
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Delivers one message, or raises TimeoutError."""
        clock = self.link.clock
        end = None if timeout is None else clock.monotonic() + timeout
        while True:
            self.arrived.clear()
            try:
                self.cycle.get(self._deliver, timeout=timeout)
            except Empty:
                left_s = _LOOK_S if end is None else end - clock.monotonic()
                if left_s <= 0:
                    raise TimeoutError from None
                self.arrived.wait(min(left_s, _LOOK_S))
            else:
                return

    def driver_version(self) -> str:
        return version("penstock")
