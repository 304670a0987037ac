"""Divides a broker between its tenants when they ask for more than it can do.

A tenant is a user. An overloaded broker delays requests, and this module decides whose. It is
start-time fair queueing: each tenant has a queue, and each request gets a start tag and a finish
tag. The start tag is the finish tag of the tenant's previous request, or the virtual time if that
is later. The finish tag is the start tag plus the cost of the request divided by the weight of the
tenant. The request with the smallest start tag goes first, and the virtual time is the start tag of
the request that started last.

A request starts at once as long as none waits and the requests in progress cost no more than the
capacity. Beyond that, with C(t) the largest cost of a request of tenant t:

- While requests of tenant f wait, f starts requests that cost at least
  weight(f) / (sum of weights) * (cost of all requests that start - sum of C(t)) - C(f).
  A greedy tenant cannot change this, however much it sends.
- If f has one request at a time, each other tenant g starts requests that cost at most
  weight(g) / weight(f) * C(f) + C(g) while it waits. So no tenant starves, and a large request
  does not wait for small ones forever.
- A tenant that was idle starts at the current virtual time: it gets no more for having waited.

Costs are in any one unit. A cost above `COST_MAX` counts as `COST_MAX`.

`net.fair_turns` uses it: a request is the right of a connection to read on.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar

TENANTS_MAX: Final = 1_000
"""How many tenants have a queue of their own. The others share one, with weight 1."""
COST_MIN: Final = 1e-4
"""The smallest cost of a request, as a part of the capacity. Requests without cost could go first
forever."""
COST_MAX: Final = 1000.0
"""The largest cost of a request, as a multiple of the capacity. A larger one counts as this: a sum
of costs must stay a number, and one request must not keep its tenant waiting for hours."""
CAPACITY_MIN: Final = 1e-9
CAPACITY_MAX: Final = 1e15
_VIRTUAL_TIME_MAX: Final = 1e9
"""In capacities. Beyond it, all tags are reduced: rounding must not swallow the smallest cost."""
WEIGHT_MIN: Final = 0.001
WEIGHT_MAX: Final = 1000.0

Ticket = TypeVar("Ticket", bound=Hashable)
"""What names a request, such as the number of its connection. No two requests have the same."""


class Admission(Enum):
    START = "start"
    """Process the request now, and call `finish` afterwards."""
    WAIT = "wait"
    """Read no more from the connection until its ticket is returned."""


@dataclass(slots=True)
class _Tenant(Generic[Ticket]):
    name: str | None
    """None for those beyond `TENANTS_MAX`."""
    weight: float
    finish_tag: float
    queue: OrderedDict[Ticket, float] = field(default_factory=OrderedDict)
    """The requests that wait, and their cost."""
    start_tag: float | None = None
    """Of the first request in the queue. It stays when that one is canceled."""
    running: int = 0
    """How many requests are in progress."""
    is_ending: bool = False
    """Whether it is to be forgotten at its finish tag."""
    debt: float = 0.0
    """What earlier requests cost more than expected, to be added to the next finish tag."""


class FairShare(Generic[Ticket]):
    """Decides which requests start. `capacity` limits the cost of the requests in progress.

    A request that costs more than the capacity starts when it is the only one.
    """

    def __init__(
        self,
        capacity: float,
        weights: Mapping[str, float] | None = None,
        tenants_max: int = TENANTS_MAX,
    ) -> None:
        self._weights = {name: _checked_weight(w) for name, w in (weights or {}).items()}
        self._tenants_max = tenants_max
        self._tenants: dict[str | None, _Tenant[Ticket]] = {}
        self._waiting: list[tuple[float, int, _Tenant[Ticket]]] = []
        """A heap of the tenants that have a start tag."""
        self._ending: list[tuple[float, int, _Tenant[Ticket]]] = []
        """A heap of tenants without requests: they are forgotten at their finish tag."""
        self._running: dict[Ticket, tuple[_Tenant[Ticket], float]] = {}
        self._queued: dict[Ticket, _Tenant[Ticket]] = {}
        self._virtual_time = 0.0
        self._in_progress = 0.0
        self._order = 0
        self._capacity = 0.0
        self.set_capacity(capacity)

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return len(self._queued)

    @property
    def tenants(self) -> int:
        """How many tenants are remembered."""
        return len(self._tenants)

    def set_capacity(self, capacity: float) -> list[Ticket]:
        """Changes the capacity. Returns the tickets of the requests that start now."""
        if not CAPACITY_MIN <= capacity <= CAPACITY_MAX:
            raise ValueError(f"the capacity is {capacity}: use {CAPACITY_MIN} to {CAPACITY_MAX}")
        self._capacity = capacity
        return self._start()

    def arrive(self, tenant: str, cost: float, ticket: Ticket) -> Admission:
        """Decides about a new request. `cost` is what it is expected to use.

        A cost counts as `COST_MIN` at least and `COST_MAX` at most.
        """
        if ticket in self._running or ticket in self._queued:
            raise ValueError(f"the ticket {ticket!r} is in use: finish or cancel it first")
        cost = self._checked_cost(cost)
        state = self._tenant(tenant)
        if not self._queued and self._fits(cost):
            start = max(self._virtual_time, state.finish_tag)
            self._begin(state, start, cost, ticket)
            return Admission.START
        state.queue[ticket] = cost
        self._queued[ticket] = state
        if state.start_tag is None:
            self._wait(state)
        return Admission.WAIT

    def finish(self, ticket: Ticket, actual: float | None = None) -> list[Ticket]:
        """Ends a request. Returns the tickets of the requests that start now.

        `actual` is what the request really cost, if that is known only now. The tenant's next
        request is charged with the difference.
        """
        state, cost = self._running.pop(ticket)
        state.running -= 1
        if actual is not None:
            state.debt += (self._checked_cost(actual) - cost) / state.weight
        if not self._running and not self._queued:
            self._reset()
            return []
        self._in_progress -= cost
        self._settle(state)
        return self._start()

    def cancel(self, ticket: Ticket, actual: float | None = None) -> list[Ticket]:
        """Ends a request whose connection is gone, waiting or in progress.

        `actual` is what a request in progress has cost, as for `finish`. Pass it if it is known: a
        tenant must not avoid a charge by closing its connection. A request that has not started
        costs nothing.

        Returns the tickets of the requests that start now. An unknown ticket is ignored: a request
        may end just before its connection.
        """
        if ticket in self._running:
            return self.finish(ticket, actual)
        state = self._queued.pop(ticket, None)
        if state is not None:
            del state.queue[ticket]
        # The canceled request may have been the one that did not fit.
        return self._start()

    def _tenant(self, name: str) -> _Tenant[Ticket]:
        found = self._tenants.get(name)
        if found is not None:
            return found
        key: str | None = name
        if len(self._tenants) >= self._tenants_max:
            key = None
            if (shared := self._tenants.get(None)) is not None:
                return shared
        weight = 1.0 if key is None else self._weights.get(key, 1.0)
        state = self._tenants[key] = _Tenant[Ticket](key, weight, self._virtual_time)
        return state

    def _fits(self, cost: float) -> bool:
        return not self._running or self._in_progress + cost <= self._capacity

    def _wait(self, state: _Tenant[Ticket]) -> None:
        state.start_tag = max(self._virtual_time, state.finish_tag)
        self._order += 1
        heapq.heappush(self._waiting, (state.start_tag, self._order, state))

    def _start(self) -> list[Ticket]:
        started: list[Ticket] = []
        while self._waiting:
            start_tag, _, state = self._waiting[0]
            if not state.queue:  # All its requests were canceled.
                heapq.heappop(self._waiting)
                state.start_tag = None
                self._settle(state)
                continue
            ticket, cost = next(iter(state.queue.items()))
            if not self._fits(cost):
                break
            heapq.heappop(self._waiting)
            state.start_tag = None
            state.queue.popitem(last=False)
            del self._queued[ticket]
            self._begin(state, start_tag, cost, ticket)
            started.append(ticket)
            if state.queue:
                self._wait(state)
        return started

    def _begin(self, state: _Tenant[Ticket], start: float, cost: float, ticket: Ticket) -> None:
        self._virtual_time = max(self._virtual_time, start)
        state.finish_tag = start + max(0.0, cost / state.weight + state.debt)
        state.debt = 0.0
        state.running += 1
        self._running[ticket] = (state, cost)
        self._in_progress += cost
        while self._ending and self._ending[0][0] <= self._virtual_time:
            _, _, ended = heapq.heappop(self._ending)
            ended.is_ending = False
            if not _is_active(ended):
                del self._tenants[ended.name]
        if self._virtual_time > _VIRTUAL_TIME_MAX * self._capacity:
            self._reduce_tags()

    def _settle(self, state: _Tenant[Ticket]) -> None:
        """Charges a tenant without waiting requests with its debt."""
        if state.start_tag is None:
            state.finish_tag = max(state.finish_tag + state.debt, self._virtual_time)
            state.debt = 0.0
            self._end_if_idle(state)

    def _end_if_idle(self, state: _Tenant[Ticket]) -> None:
        """Lets the tenant be forgotten once the virtual time has reached its finish tag."""
        if not (state.is_ending or _is_active(state)):
            state.is_ending = True
            self._order += 1
            heapq.heappush(self._ending, (state.finish_tag, self._order, state))

    def _reset(self) -> None:
        """Forgets all tenants: the broker has nothing to do."""
        self._tenants.clear()
        self._waiting.clear()
        self._ending.clear()
        self._virtual_time = self._in_progress = 0.0

    def _reduce_tags(self) -> None:
        """Makes the virtual time 0 again. The order of the tags stays."""
        past, self._virtual_time = self._virtual_time, 0.0
        for state in self._tenants.values():
            state.finish_tag -= past
            if state.start_tag is not None:
                state.start_tag -= past
        for heap in (self._waiting, self._ending):
            heap[:] = [(tag - past, order, state) for tag, order, state in heap]

    def _checked_cost(self, cost: float) -> float:
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"the cost is {cost}: it must be a number of 0 or more")
        return min(max(cost, COST_MIN * self._capacity), COST_MAX * self._capacity)


def _is_active(state: _Tenant[Ticket]) -> bool:
    return bool(state.queue) or state.running > 0 or state.start_tag is not None


def _checked_weight(weight: float) -> float:
    if not WEIGHT_MIN <= weight <= WEIGHT_MAX:
        raise ValueError(f"the weight is {weight}: use {WEIGHT_MIN} to {WEIGHT_MAX}")
    return weight
