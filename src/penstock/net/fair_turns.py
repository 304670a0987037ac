"""Divides the event loop between tenants when it is overloaded.

A tenant is a user, or an address if its clients are not authenticated. In each of its turns the
event loop serves every connection that has sent something. So a tenant with fifty busy connections
gets fifty times as much as one with a single connection, which waits for the fifty in each turn.

While several tenants are connected, timers measure the event loop. If one is late by `LONG_TURN_S`
or more, sharing begins: a connection that has read something waits until it may read more.
`security.fair_share` decides which ones may. The cost is the time that the event loop has spent on
what the connection has read. In one turn, connections may read on whose costs are `TURN_S`
together. Work that a request does later, as a task, is added to the next cost of its tenant.
Connections whose reads are too long for a turn, because they have sent many small requests at
once, read less at a time.

A tenant that was the only busy one since the tick before the last one does not wait. Sharing ends
when no connection had to wait for a tick and no timer was late. As long as there is no overload, it
costs a few comparisons for each read.

While there is sharing, a new connection waits too before its first read, and a connection that
closes leaves its cost in the queue of its tenant. So a tenant gets no more by opening a connection
for each request.

Connections of followers, and those on the listener of the brokers, do not take part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from penstock.security.addresses import network_of
from penstock.security.fair_share import Admission, FairShare

LONG_TURN_S: Final = 0.005
TURN_S: Final = 0.002
PROBE_S: Final = 0.15
PROBES: Final = 6
"""How many timers measure the event loop between two ticks, and their distance. None is due during
a tick, which may take long if there are thousands of connections."""
_READ_BYTES_MIN: Final = 4 << 10
_READ_BYTES_MAX: Final = 256 << 10
_READ_S_PER_BYTE: Final = 3e-10
"""What the system needs for a read, before the connection gets the bytes."""
_OPEN_S: Final = 2e-4
"""What a new connection costs."""
CLOSED_MAX: Final = 10_000
"""How many closed connections may leave their costs behind."""

_log: Final = logging.getLogger(__name__)


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
        self._tenants: set[str] = set()
        """Up to two tenants that are connected, or have connected since the last tick."""
        self._share = FairShare[int](TURN_S)
        self._busy: set[str] = set()
        """Up to two tenants that have sent something since the last tick."""
        self._were_several = False
        """Whether there were two before the last tick."""
        self._tickets = 0
        self._started: list[int] = []
        self._waiting: dict[int, Turn] = {}
        self._closed: set[int] = set()
        """The tickets of connections that closed while they waited."""
        self._debts: dict[str, float] = {}
        """By tenant: the seconds of work that was done later, and is not charged yet."""
        self._end: asyncio.Handle | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._is_late = False
        """Whether a timer was late since the last tick."""

    @property
    def waiting(self) -> int:
        """How many connections wait now."""
        return len(self._waiting)

    @property
    def _is_possible(self) -> bool:
        return self.is_enabled and len(self._tenants) > 1

    def on_open(self, tenant: str) -> None:
        """Begins to measure if another tenant connects."""
        if len(self._tenants) < 2:
            self._tenants.add(tenant)
            if self._is_possible and self._probe is None:
                self._set_probe(PROBES)

    def on_tick(self, tenants: Iterable[str]) -> None:
        """Ends sharing if there is no overload. `tenants` are those that are connected."""
        has_waited = self.waits != self._waits_before
        self._waits_before = self.waits
        self._were_several = len(self._busy) > 1
        self._busy.clear()
        self._debts.clear()
        self._tenants = set(islice(dict.fromkeys(tenants), 2))
        self.is_active &= self._is_possible and (has_waited or self._is_late)
        self._is_late = False
        self.close()
        if self._is_possible:
            self._set_probe(PROBES)

    def on_probe(self, late_s: float) -> None:
        """Begins sharing if a timer was late."""
        if late_s >= LONG_TURN_S and self._is_possible:
            self.is_active = self._is_late = True

    def close(self) -> None:
        """Measures no more."""
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    def arrive(self, turn: Turn, seconds: float) -> int | None:
        """Returns None if a connection may read on, otherwise the ticket with which it waits.

        `seconds` is what the event loop has spent on its last read."""
        if len(self._busy) < 2:
            self._busy.add(turn.tenant)
            if len(self._busy) < 2 and not self._were_several:
                return None
        seconds += self._debts.pop(turn.tenant, 0.0)
        self._tickets += 1
        ticket = self._tickets
        if self._share.arrive(turn.tenant, seconds, ticket) is Admission.START:
            self._begin([ticket])
            return None
        self.waits += 1
        self._waiting[ticket] = turn
        return ticket

    def charge(self, tenant: str, seconds: float) -> None:
        """Adds work that was done later to the next cost of the tenant."""
        self._debts[tenant] = self._debts.get(tenant, 0.0) + max(0.0, seconds)

    def leave(self, ticket: int) -> None:
        """Ends the wait of a connection that is closed. Its tenant still pays for its last read."""
        if self._waiting.pop(ticket, None) is None:
            return
        if len(self._closed) < CLOSED_MAX:
            self._closed.add(ticket)
        else:
            self._begin(self._share.cancel(ticket))

    def _begin(self, tickets: list[int]) -> None:
        """Lets connections read until this turn of the event loop ends."""
        self._started += tickets
        if self._started and self._end is None:
            self._end = asyncio.get_running_loop().call_soon(self._end_turn)
        self._closed.difference_update(tickets)
        for turn in [self._waiting.pop(ticket, None) for ticket in tickets]:
            if turn is not None:
                turn.on_turn()

    def _end_turn(self) -> None:
        """Lets the next connections read."""
        self._end = None
        ended, self._started = self._started, []
        self._begin([each for ticket in ended for each in self._share.finish(ticket)])

    def _set_probe(self, left: int) -> None:
        due = self.now() + PROBE_S

        def probe() -> None:
            self._probe = None
            self.on_probe(self.now() - due)
            if left > 1:
                self._set_probe(left - 1)

        self._probe = asyncio.get_running_loop().call_later(PROBE_S, probe)


def _do_nothing() -> None:
    """Replaces the callback of a closed connection."""


class Turn:
    """Whether one connection waits for its turn, and for which tenant."""

    __slots__ = (
        "_steer",
        "_ticket",
        "_turns",
        "is_closed",
        "is_exempt",
        "read_bytes",
        "tenant",
    )

    def __init__(
        self, turns: FairTurns, steer: Callable[[], None], *, is_exempt: bool = False
    ) -> None:
        """`steer` is called when the connection may read again, or must wait before it reads."""
        self._turns = turns
        self._steer = steer
        self._ticket: int | None = None
        self.tenant = ""
        self.is_closed = False
        self.is_exempt = is_exempt
        self.read_bytes: int | None = None
        """How much the connection may read at once; None for no limit."""

    @property
    def waits(self) -> bool:
        return self._ticket is not None

    @property
    def queue(self) -> str:
        """The queue in which the connection waits for memory: each tenant has one."""
        return self.tenant if self._turns.is_enabled else ""

    def on_open(self, host: str) -> None:
        """Accounts for a new connection. It belongs to its address, unless its user is known."""
        self.tenant = self.tenant or network_of(host)
        if self.is_exempt:
            return
        self._turns.on_open(self.tenant)
        if self._turns.is_active:
            self._ticket = self._turns.arrive(self, _OPEN_S)
            if self._ticket is not None:
                self._steer()

    def on_read(self, size: int, began: float) -> None:
        """Accounts for a read of this size. The event loop has worked on it since `began`."""
        if not self.is_exempt and self._ticket is None:
            turns = self._turns
            seconds = max(0.0, turns.now() - began) + size * _READ_S_PER_BYTE
            self._limit_reads(size, seconds)
            self._ticket = turns.arrive(self, seconds)

    @property
    def is_timed(self) -> bool:
        """Whether work that is done later is to be charged."""
        return self._turns.is_active and not self.is_exempt

    def spend(self, seconds: float) -> None:
        """Charges the tenant for work that is done later."""
        self._turns.charge(self.tenant, seconds)

    def begin(self) -> float | None:
        """Returns when work begins that is done later; None if it is not charged."""
        return self._turns.now() if self.is_timed else None

    def end(self, began: float) -> None:
        self.spend(self._turns.now() - began)

    def _limit_reads(self, size: int, seconds: float) -> None:
        """Reads that take longer than a turn get shorter, and others get longer again."""
        if seconds > TURN_S:
            self.read_bytes = max(_READ_BYTES_MIN, min(size, _READ_BYTES_MAX) // 2)
        elif self.read_bytes is not None and seconds < TURN_S / 4:
            self.read_bytes *= 2
            if self.read_bytes >= _READ_BYTES_MAX:
                self.read_bytes = None

    def on_turn(self) -> None:
        self._ticket = None
        try:
            self._steer()
        except Exception:  # noqa: BLE001 - others must get their turns
            _log.exception("could not continue to read from a connection of %s", self.tenant)

    def close(self) -> None:
        """Ends the wait after the connection closed. Also drops the callback, because a reference
        cycle would keep both alive."""
        self.is_closed = True
        self._steer = _do_nothing
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._turns.leave(ticket)
