"""Measures how much of its quota each client uses, and for how long to throttle it.

`WindowedRate` is Kafka's rate: 11 windows of one second, measured over at least 10 seconds. So an
idle client may use its quota of 10 seconds at once. `TokenBucket` is Kafka's limit on changes of
topics. `QuotaMeters` has one of them for each group of clients that share a limit.

Callers pass the milliseconds of a clock that never goes back. A throttled client is answered at
once; then the broker stops reading from its connection for the throttle time.

Clients choose their client ids, so `QuotaMeters` limits how many meters there are:

- A user, client id or pair with a quota of its own always has its own meter.
- Clients with a default quota have their own meters up to `METERS_PER_USER_MAX` for one user and
  `METERS_MAX` in total. Client ids longer than `ENTITY_NAME_CHARS_MAX` have none.
- Beyond that, the clients of one user share one meter per default quota; once there are
  `METERS_MAX`, the clients of all users do. More client ids do not allow more traffic then.
- A meter is dropped when it would measure the same as a new one: no answer changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from penstock.security.quotas import (
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    ENTITY_NAME_CHARS_MAX,
    REQUEST_PERCENTAGE,
    Client,
    Limit,
    QuotaEntity,
    Quotas,
    Sharer,
)

WINDOW_MS: Final = 1000
WINDOWS: Final = 11
"""Ten complete windows and the current one."""
_MEASURED_MIN_MS: Final = (WINDOWS - 1) * WINDOW_MS
_MEASURED_MIN_S: Final = _MEASURED_MIN_MS // 1000
_EXPIRES_MS: Final = WINDOWS * WINDOW_MS
_SLOTS: Final = WINDOWS + 1
"""One more window is kept: the oldest one still overlaps the measured time."""

THROTTLE_MAX_MS: Final = 2**31 - 1
"""The longest throttle time that a response can express."""
SHORT_THROTTLE_MAX_MS: Final = WINDOW_MS
"""The longest throttle time for request time and connections."""
FETCH_BYTES_MAX: Final = 2**31 - 1

PERCENT_PER_NANOSECOND: Final = 100 / 1_000_000_000
"""Turns the time that a request took into the unit of `REQUEST_PERCENTAGE`."""

METERS_MAX: Final = 20_000
"""How many clients with a default quota are measured apart from each other."""
METERS_PER_USER_MAX: Final = 5_000
"""How many of them can belong to one user."""
_ROUTES_MAX: Final = 20_000
"""How many clients are remembered with their meter. Beyond that, all are looked up again."""
_SWEEP_METERS: Final = 1_000
"""How many meters one call of `drop_idle` looks at."""
_SWEEP_INTERVAL_MS: Final = 1000


class WindowedRate:
    """The rate of one quota. It looks at all windows only when one begins or expires."""

    __slots__ = (
        "_before",
        "_index",
        "_last_ms",
        "_lasts",
        "_oldest_ms",
        "_starts",
        "_throttle_max_ms",
        "_turn_ms",
        "_value",
        "_values",
        "limit",
        "throttled_ms",
    )

    def __init__(self, limit: float, now_ms: int, throttle_max_ms: int = THROTTLE_MAX_MS) -> None:
        self.limit = limit
        self.throttled_ms = 0
        """The sum of all throttle times."""
        self._throttle_max_ms = throttle_max_ms
        self._index = 0
        self._starts = [now_ms]
        self._lasts = [now_ms]
        """When the last value of each window was recorded; of the current one: `_last_ms`."""
        self._values: list[float] = [0]
        """The sum of each window; of the current one: `_value`."""
        self._value: float = 0
        self._before: float = 0
        """The sum of all windows but the current one."""
        self._last_ms = self._oldest_ms = now_ms
        self._turn_ms = now_ms + WINDOW_MS
        """Until then no window is complete, and none expires."""

    def record(self, amount: float, now_ms: int) -> int:
        """Records what was used. Returns the throttle time in milliseconds."""
        if now_ms >= self._turn_ms:
            self._turn(now_ms)
        self._last_ms = now_ms
        self._value += amount
        total = self._before + self._value
        # The window has at least 10 seconds, so this is below the limit however long it is.
        if total <= self.limit * _MEASURED_MIN_S:
            return 0
        return self._throttle(total, now_ms)

    def unrecord(self, amount: float, now_ms: int) -> None:
        """Takes back what `record` has recorded at the same time, for a response not sent."""
        throttled_ms = self.throttled_ms
        self.record(-amount, now_ms)
        self.throttled_ms = throttled_ms

    @property
    def recorded(self) -> float:
        """How much was used in the window, at the time of the last record."""
        return self._before + self._value

    def rate(self, now_ms: int) -> float:
        """Returns what was used per second. Reading it changes nothing."""
        self._save()
        windows = zip(self._starts, self._values, self._lasts, strict=True)
        kept = [(start, value) for start, value, last in windows if now_ms - last < _EXPIRES_MS]
        oldest_ms = min((start for start, _ in kept), default=now_ms)
        return sum(value for _, value in kept) * 1000 / _window_ms(now_ms - oldest_ms)

    def is_idle(self, now_ms: int) -> bool:
        """Returns whether a new meter would measure the same."""
        return now_ms - self._last_ms >= _EXPIRES_MS

    def _throttle(self, total: float, now_ms: int) -> int:
        window_ms = _window_ms(now_ms - self._oldest_ms)
        rate = total * 1000 / window_ms
        if rate <= self.limit:
            return 0
        throttle_ms = (rate - self.limit) / self.limit * window_ms
        # Compared as floats first: a tiny limit makes the quotient infinite.
        rounded_ms = int(min(throttle_ms, self._throttle_max_ms) + 0.5)
        self.throttled_ms += rounded_ms
        return rounded_ms

    def _save(self) -> None:
        self._values[self._index] = self._value
        self._lasts[self._index] = self._last_ms

    def _turn(self, now_ms: int) -> None:
        """Begins a window if the current one is complete, and drops the expired ones."""
        self._save()
        index = self._index
        if now_ms - self._starts[index] >= WINDOW_MS:
            index = self._index = (index + 1) % _SLOTS
            if index == len(self._starts):
                self._starts.append(now_ms)
                self._lasts.append(now_ms)
                self._values.append(0)
            else:
                self._clear(index, now_ms)
        self._expire(now_ms)

    def _expire(self, now_ms: int) -> None:
        lasts, starts = self._lasts, self._starts
        for index, last_ms in enumerate(lasts):
            if now_ms - last_ms >= _EXPIRES_MS:
                self._clear(index, now_ms)
        current = self._index
        self._value = self._values[current]
        self._last_ms = lasts[current]
        # Summed up from scratch, so that rounding errors do not accumulate.
        self._values[current] = 0
        self._before = sum(self._values)
        self._oldest_ms = min(starts)
        self._turn_ms = min(starts[current] + WINDOW_MS, min(lasts) + _EXPIRES_MS)

    def _clear(self, index: int, now_ms: int) -> None:
        self._values[index] = 0
        self._starts[index] = self._lasts[index] = now_ms


def _window_ms(elapsed_ms: int) -> int:
    """Returns how long was measured. Windows that are missing count as empty."""
    if elapsed_ms < _MEASURED_MIN_MS:
        return _MEASURED_MIN_MS + elapsed_ms % WINDOW_MS
    return elapsed_ms


class TokenBucket:
    """A limit on changes of topics: each created or deleted partition takes one token.

    The bucket starts full with the tokens of 11 seconds. It may go below zero, so a request larger
    than the bucket succeeds once, and the next one waits longer.
    """

    __slots__ = ("_last_ms", "_tokens", "limit", "throttled_ms")

    def __init__(self, limit: float, now_ms: int) -> None:
        self.limit = limit
        self.throttled_ms = 0
        self._tokens = self._burst
        self._last_ms = now_ms

    def admit(self, amount: float, now_ms: int) -> int:
        """Takes tokens and returns 0, unless the bucket is below zero.

        Then it takes none and returns the milliseconds until it is at zero again, at least 1.
        """
        if wait_ms := self._wait_ms(now_ms):
            self.throttled_ms += wait_ms
            return wait_ms
        self._tokens -= amount
        return 0

    def record(self, amount: float, now_ms: int) -> int:
        """Takes tokens in any case. Returns the milliseconds until the bucket is at zero again."""
        self._refill(now_ms)
        self._tokens -= amount
        wait_ms = self._wait_ms(now_ms)
        self.throttled_ms += wait_ms
        return wait_ms

    def rate(self, now_ms: int) -> float:
        """Returns what was used per second in the last 11 seconds, as far as tokens show it."""
        self._refill(now_ms)
        return (self._burst - self._tokens) / WINDOWS

    def is_idle(self, now_ms: int) -> bool:
        """Returns whether the bucket is full, as a new one is."""
        self._refill(now_ms)
        return self._tokens >= self._burst

    @property
    def _burst(self) -> float:
        return self.limit * WINDOWS

    def _refill(self, now_ms: int) -> None:
        refilled = self._tokens + self.limit * (now_ms - self._last_ms) / 1000
        self._tokens = min(self._burst, refilled)
        self._last_ms = now_ms

    def _wait_ms(self, now_ms: int) -> int:
        self._refill(now_ms)
        if self._tokens >= 0:
            return 0
        wait_ms = min(-self._tokens / self.limit * 1000, THROTTLE_MAX_MS)
        # Kafka rounds to 0 as well, and the client retries at once, in vain.
        return max(1, int(wait_ms + 0.5))


class FetchVerdict(NamedTuple):
    throttle_ms: int
    is_empty: bool
    """Whether to answer without records. Their size is not recorded then."""


_SERVED: Final = FetchVerdict(0, False)


@dataclass(frozen=True, slots=True)
class MeterUsage:
    """One meter, for people and metrics. None stands for all users or client ids."""

    key: str
    user: str | None
    client_id: str | None
    """For connections: the IP address."""
    limit: float
    rate: float
    throttled_ms: int


class _MeterId(NamedTuple):
    key: str
    sharer: Sharer
    entity: QuotaEntity | None = None
    """The default quota, if clients beyond the maximum number of meters share this one."""


_Gauge = WindowedRate | TokenBucket


class _Meter(NamedTuple):
    gauge: _Gauge
    counted_for: str | None
    """The user whose share of the meters this is; None if it does not count."""


_UNKNOWN: Final = WindowedRate(1, 0)
"""The default of a dictionary's `get`, to tell "no limit" from "not looked up yet"."""
_EVERYONE: Final = Sharer(None, None)


class QuotaMeters:
    """Measures all clients of a broker. The module says how many meters there can be."""

    def __init__(
        self, quotas: Quotas, meters_max: int = METERS_MAX, user_max: int = METERS_PER_USER_MAX
    ) -> None:
        self._meters_max = meters_max
        self._user_max = user_max
        self._meters: dict[_MeterId, _Meter] = {}
        self._counts: dict[str, int] = {}
        """User -> how many meters count for it."""
        self._counted = 0
        self._sweep_ms: int | None = None
        self.shared = 0
        """How often a client was assigned to a shared meter, because there were too many."""
        self.update(quotas)

    def __len__(self) -> int:
        return len(self._meters)

    def update(self, quotas: Quotas) -> None:
        """Applies changed quotas. What was measured before still counts."""
        self._quotas = quotas
        self._routes: dict[str, dict[Client, WindowedRate | None]] = {
            key: {} for key in CLIENT_KEYS if key != CONTROLLER_MUTATION_RATE and quotas.has(key)
        }

    def record_and_throttle(self, key: str, client: Client, amount: float, now_ms: int) -> int:
        """Records what a request used. Returns for how many milliseconds to throttle the client.

        For `PRODUCER_BYTE_RATE`, `CONSUMER_BYTE_RATE` (see `record_fetch`) and
        `REQUEST_PERCENTAGE` (see `PERCENT_PER_NANOSECOND`).
        """
        routes = self._routes.get(key)
        if routes is None:
            return 0
        meter = routes.get(client, _UNKNOWN)
        if meter is _UNKNOWN:
            meter = self._route(key, client, now_ms)
        return 0 if meter is None else meter.record(amount, now_ms)

    def unrecord(self, key: str, client: Client, amount: float, now_ms: int) -> None:
        """Takes back what was recorded at the same time, for a response that is not sent."""
        if meter := self._find(key, client, now_ms):
            meter.unrecord(amount, now_ms)

    def fetch_bytes_max(self, client: Client, now_ms: int) -> int:
        """Returns how much one fetch may return: no more than the quota of 10 seconds."""
        meter = self._find(CONSUMER_BYTE_RATE, client, now_ms)
        if meter is None:
            return FETCH_BYTES_MAX
        return int(min(meter.limit * _MEASURED_MIN_S, FETCH_BYTES_MAX))

    def record_fetch(self, client: Client, size: int, now_ms: int) -> FetchVerdict:
        """Decides whether a fetch is answered with its `size` bytes of records.

        Over the quota it is answered without records, and they are not recorded. A first batch can
        be larger than `fetch_bytes_max`: it is sent if nothing else was sent in the window, or the
        consumer would never get past it. (Kafka answers such a fetch without records forever.)
        """
        meter = self._find(CONSUMER_BYTE_RATE, client, now_ms)
        if meter is None or not (throttle_ms := meter.record(size, now_ms)):
            return _SERVED
        if meter.recorded <= size:
            return FetchVerdict(throttle_ms, False)
        meter.unrecord(size, now_ms)
        return FetchVerdict(throttle_ms, True)

    def admit_mutations(self, client: Client, partitions: int, now_ms: int) -> int:
        """Returns 0 if the client may create or delete the partitions, and records them.

        Otherwise the topic is refused with THROTTLING_QUOTA_EXCEEDED and this throttle time. For
        CreateTopics from version 6, DeleteTopics from 5 and CreatePartitions from 3.
        """
        bucket = self._bucket(client, now_ms)
        return 0 if bucket is None else bucket.admit(partitions, now_ms)

    def record_mutations(self, client: Client, partitions: int, now_ms: int) -> int:
        """Records created or deleted partitions, and returns the throttle time.

        For older versions than those of `admit_mutations`: they do not know the error.
        """
        bucket = self._bucket(client, now_ms)
        return 0 if bucket is None else bucket.record(partitions, now_ms)

    def record_connection(self, address: str, now_ms: int) -> int:
        """Returns 0 if the address may open a connection now, and records it.

        Otherwise the connection is not recorded, and is closed after this many milliseconds.
        """
        limit = self._quotas.ip_limit(address)
        if limit is None:
            return 0
        meter = self._meter(CONNECTION_CREATION_RATE, limit, "", now_ms)
        assert isinstance(meter, WindowedRate)
        if throttle_ms := meter.record(1, now_ms):
            meter.unrecord(1, now_ms)
        return throttle_ms

    def drop_idle(self, now_ms: int) -> int:
        """Drops meters that would measure the same as new ones. To be called every second.

        Each call looks at a part of the meters. Returns how many were dropped.
        """
        dropped = 0
        for each in list(islice(self._meters, _SWEEP_METERS)):
            meter = self._meters.pop(each)
            if not meter.gauge.is_idle(now_ms):
                self._meters[each] = meter  # At the end: the next call looks at others.
                continue
            dropped += 1
            if (user := meter.counted_for) is not None:
                self._counted -= 1
                self._counts[user] -= 1
                if not self._counts[user]:
                    del self._counts[user]
        if dropped:
            for routes in self._routes.values():
                routes.clear()
        return dropped

    def usage(self, now_ms: int) -> Iterator[MeterUsage]:
        for (key, sharer, _), meter in self._meters.items():
            gauge = meter.gauge
            yield MeterUsage(key, *sharer, gauge.limit, gauge.rate(now_ms), gauge.throttled_ms)

    def _find(self, key: str, client: Client, now_ms: int) -> WindowedRate | None:
        """Returns the meter of a client; None if it has no limit."""
        routes = self._routes.get(key)
        if routes is None:
            return None
        meter = routes.get(client, _UNKNOWN)
        return self._route(key, client, now_ms) if meter is _UNKNOWN else meter

    def _route(self, key: str, client: Client, now_ms: int) -> WindowedRate | None:
        """Looks up the meter of a client, and remembers it."""
        user, client_id = client
        limit = self._quotas.limit(user, client_id, key)
        gauge = None if limit is None else self._meter(key, limit, user, now_ms)
        assert not isinstance(gauge, TokenBucket)
        if len(user) <= ENTITY_NAME_CHARS_MAX and len(client_id or "") <= ENTITY_NAME_CHARS_MAX:
            routes = self._routes[key]
            if len(routes) >= _ROUTES_MAX:
                routes.clear()
            routes[client] = gauge
        return gauge

    def _bucket(self, client: Client, now_ms: int) -> TokenBucket | None:
        limit = self._quotas.limit(*client, CONTROLLER_MUTATION_RATE)
        if limit is None:
            return None
        gauge = self._meter(CONTROLLER_MUTATION_RATE, limit, client.user, now_ms)
        assert isinstance(gauge, TokenBucket)
        return gauge

    def _meter(self, key: str, limit: Limit, user: str, now_ms: int) -> _Gauge:
        """Returns the meter of the clients that share this limit, with its current rate."""
        own = _MeterId(key, limit.sharer)
        if own in self._meters or all(name is not None for _, name in limit.entity.parts):
            return self._get(own, limit.rate, None, now_ms)
        is_short = all(len(name or "") <= ENTITY_NAME_CHARS_MAX for name in limit.sharer)
        if is_short and self._has_room(user, now_ms):
            return self._get(own, limit.rate, user, now_ms)
        self.shared += 1
        of_user = _MeterId(key, Sharer(user, None), limit.entity)
        can_add = 0 < len(user) <= ENTITY_NAME_CHARS_MAX and self._counted < self._meters_max
        if can_add or of_user in self._meters:
            return self._get(of_user, limit.rate, user, now_ms)
        return self._get(_MeterId(key, _EVERYONE, limit.entity), limit.rate, None, now_ms)

    def _has_room(self, user: str, now_ms: int) -> bool:
        for _ in range(2):
            if self._counted < self._meters_max and (
                # Addresses do not belong to a user.
                not user or self._counts.get(user, 0) < self._user_max
            ):
                return True
            if self._sweep_ms is not None and now_ms - self._sweep_ms < _SWEEP_INTERVAL_MS:
                return False
            self._sweep_ms = now_ms
            self.drop_idle(now_ms)
        return False

    def _get(self, each: _MeterId, rate: float, counted_for: str | None, now_ms: int) -> _Gauge:
        if (found := self._meters.get(each)) is not None:
            found.gauge.limit = rate
            return found.gauge
        gauge: _Gauge
        if each.key == CONTROLLER_MUTATION_RATE:
            gauge = TokenBucket(rate, now_ms)
        elif each.key in {REQUEST_PERCENTAGE, CONNECTION_CREATION_RATE}:
            gauge = WindowedRate(rate, now_ms, SHORT_THROTTLE_MAX_MS)
        else:
            gauge = WindowedRate(rate, now_ms)
        self._meters[each] = _Meter(gauge, counted_for)
        if counted_for is not None:
            self._counted += 1
            self._counts[counted_for] = self._counts.get(counted_for, 0) + 1
        return gauge
