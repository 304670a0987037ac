"""One listener of a server, and what the connections of all listeners share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.net.admission import Admission
from penstock.net.budget import RequestBudget
from penstock.net.config import ServerConfig
from penstock.net.counters import Counters
from penstock.net.fair_turns import FairTurns, Turn
from penstock.net.response_budget import ResponseBudget
from penstock.net.session import Peer, Session
from penstock.net.timeouts import Activity
from penstock.ports import Listener, Pace


class OpenConnection(Protocol):
    """What a server needs of each connection."""

    @property
    def host(self) -> str: ...

    def on_tick(self, now: float) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def drop(self, why: str) -> None:
        """Closes the connection at once, and logs why."""


class Shared(Protocol):
    """What all connections of one server share. `Server` implements it."""

    config: ServerConfig
    counters: Counters
    budget: RequestBudget
    large_requests: RequestBudget
    responses: ResponseBudget
    admission: Admission
    turns: FairTurns
    scratch: memoryview
    """The buffer for every read that does not continue a large frame. Its content is used up before
    the next read."""
    now: float
    """The time of the last tick."""
    stopping: bool

    def on_opened(
        self,
        connection: OpenConnection,
        listener: OpenListener,
        activity: Activity,
        turn: Turn,
    ) -> None: ...

    def on_lost(self, connection: OpenConnection) -> None: ...


@dataclass(slots=True)
class OpenListener:
    """An address that accepts connections, with the sessions and the limit of its connections."""

    name: str
    new_session: Callable[[Peer], Session]
    connections_max: int | None = None
    """None if only the limits of all listeners together apply."""
    pace: Pace | None = None
    """Delays further connections if too many are opened."""
    is_protected: bool = False
    """Whether brokers have this listener and clients another one. Then `connections_max` of all
    listeners does not refuse a connection to it."""
    connections: int = 0
    listener: Listener | None = None

    def admits(self, host: str, shared: Shared) -> bool:
        """Whether another connection from this address may be accepted. If so, it counts in
        `shared.admission` until it leaves."""
        if self.connections_max is not None and self.connections >= self.connections_max:
            reason = (
                f"the listener {self.name} has {self.connections} connections, and its own "
                "max.connections allows no more"
            )
            limit = f"max.connections of the listener {self.name}"
            shared.admission.refuse(host, reason, shared.now, limit, self.name)
            return False
        admission = shared.admission
        return admission.admit(host, shared.now, self.name, may_exceed=self.is_protected)
