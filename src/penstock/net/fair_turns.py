"""Divides the event loop between tenants when it is overloaded.

A tenant is a user, or an address if its clients are not authenticated. In each of its turns the
event loop serves every connection that has sent something. So a tenant with fifty busy connections
gets fifty times as much as one with a single connection, which waits for the fifty in each turn.

Once per tick, some turns of the event loop are measured. If one takes `LONG_TURN_S` or more, and
several tenants are connected, sharing begins: a connection that has read something waits until it
may read more. `security.fair_share` decides which ones may. The cost is the time that the event
loop has spent on what the connection has read. In one turn, connections may read on whose costs are
`TURN_S` together.

A tenant that was the only busy one since the last tick does not wait. Sharing ends when no
connection had to wait for a tick and turns are short. As long as there is no overload, it costs one
comparison for each read.

Connections of followers, and those on the listener of the brokers, do not take part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.security.fair_share import Admission, FairShare

LONG_TURN_S: Final = 0.005
TURN_S: Final = 0.002
MEASURED_TURNS: Final = 8
"""How many turns are measured per tick."""
_READ_S_PER_BYTE: Final = 3e-10
"""What the system needs for a read, before the connection gets the bytes."""


class FairTurns:
    """Decides which connections of a server may read on."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.is_enabled = True
        self.is_active = False
        """Whether connections wait for their turns now."""
        self.waits = 0
        """How often a connection had to wait."""
        self._waits_before = 0
        self._share = FairShare[int](TURN_S)
        self._busy: set[str] = set()
        """Up to two tenants that have sent something since the last tick."""
        self._tickets = 0
        self._started: list[int] = []
        self._waiting: dict[int, Turn] = {}
        self._end: asyncio.Handle | None = None
        self._to_measure = 0
        self._began = 0.0

    @property
    def waiting(self) -> int:
        """How many connections wait now."""
        return len(self._waiting)

    def on_tick(self, tenants: int) -> None:
        """Begins or ends sharing. `tenants` is how many are connected."""
        has_waited = self.waits != self._waits_before
        self._waits_before = self.waits
        self._busy.clear()
        if not self.is_enabled or tenants < 2:
            self.is_active = False
        elif not has_waited and not self._to_measure:
            self._to_measure = MEASURED_TURNS
            self._began = self.now()
            asyncio.get_running_loop().call_soon(self._measure)

    def arrive(self, turn: Turn, seconds: float) -> int | None:
        """Returns None if a connection may read on, otherwise the ticket with which it waits.

        `seconds` is what the event loop has spent on its last read."""
        if len(self._busy) < 2:
            self._busy.add(turn.tenant)
            if len(self._busy) < 2:
                return None
        self._tickets += 1
        ticket = self._tickets
        waits = self._share.arrive(turn.tenant, seconds, ticket) is Admission.WAIT
        if waits:
            self.waits += 1
            self._waiting[ticket] = turn
        else:
            self._started.append(ticket)
        if self._end is None:
            self._end = asyncio.get_running_loop().call_soon(self._end_turn)
        return ticket if waits else None

    def cancel(self, ticket: int) -> None:
        """Ends the wait of a connection that is gone."""
        if self._waiting.pop(ticket, None) is not None:
            self._begin(self._share.cancel(ticket))

    def _end_turn(self) -> None:
        """Lets the next connections read."""
        self._end = None
        ended, self._started = self._started, []
        for ticket in ended:
            self._begin(self._share.finish(ticket))
        if self._started and self._end is None:
            self._end = asyncio.get_running_loop().call_soon(self._end_turn)

    def _begin(self, tickets: list[int]) -> None:
        for ticket in tickets:
            self._started.append(ticket)
            turn = self._waiting.pop(ticket, None)
            if turn is not None:
                turn.on_turn()

    def _measure(self) -> None:
        """Measures a turn of the event loop: from one call of this method to the next."""
        now = self.now()
        took_s, self._began = now - self._began, now
        self._to_measure -= 1
        if took_s >= LONG_TURN_S or not self._to_measure:
            self._to_measure = 0
            self.is_active = self.is_enabled and took_s >= LONG_TURN_S
        else:
            asyncio.get_running_loop().call_soon(self._measure)


def _do_nothing() -> None:
    """Replaces the callback of a closed connection."""


class Turn:
    """Whether one connection waits for its turn, and for which tenant."""

    __slots__ = ("_resume", "_ticket", "_turns", "is_exempt", "tenant")

    def __init__(
        self, turns: FairTurns, resume: Callable[[], None], *, is_exempt: bool = False
    ) -> None:
        """`resume` is called when the connection may read again."""
        self._turns = turns
        self._resume = resume
        self._ticket: int | None = None
        self.tenant = ""
        self.is_exempt = is_exempt

    @property
    def waits(self) -> bool:
        return self._ticket is not None

    @property
    def queue(self) -> str:
        """The queue in which the connection waits for memory: each tenant has one."""
        return self.tenant if self._turns.is_enabled else ""

    def on_read(self, size: int, began: float) -> None:
        """Accounts for a read of this size. The event loop has worked on it since `began`."""
        if not self.is_exempt and self._ticket is None:
            turns = self._turns
            seconds = max(0.0, turns.now() - began) + size * _READ_S_PER_BYTE
            self._ticket = turns.arrive(self, seconds)

    def on_turn(self) -> None:
        self._ticket = None
        self._resume()

    def close(self) -> None:
        """Ends the wait after the connection closed. Also drops the callback, because a reference
        cycle would keep both alive."""
        self._resume = _do_nothing
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._turns.cancel(ticket)
