"""Measures how much of its quota each client uses, and for how long to throttle it.

`QuotaMeters` has one gauge (see `gauges`) for each group of clients that share a limit. Callers
pass the milliseconds of a clock that never goes back. A throttled client is answered at once; then
the broker stops reading from its connection for the throttle time.

Clients choose their client ids and can have many addresses, so the number of meters is limited:

- A user, client id, pair or address with a quota of its own always has its own meter.
- Clients with a default quota have their own meters up to `METERS_PER_USER_MAX` for one user and
  `METERS_MAX` in total. Client ids longer than `CLIENT_ID_CHARS_MAX` have none.
- Addresses are counted apart from users: up to `METERS_PER_SITE_MAX` for one IPv6 site (a /48
  network) and `ADDRESS_METERS_MAX` in total.
- Beyond that, the clients of one user, or the addresses of one site, share one meter per default
  quota. More client ids or addresses do not allow more then.
- Once there are `METERS_MAX`, users share `SHARED_ROWS` times `SHARED_COLUMNS` meters per default
  quota. A hash of its name gives each user one meter of each row. All of them measure what it
  uses, and the shortest throttle time counts. So a user is throttled as with a meter of its own,
  unless it shares every single one of its meters with a user that is over the limit. With 10 such
  users, this happens to one user in 130,000.
- A meter is dropped when it would measure the same as a new one: no answer changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

from penstock.security.addresses import site_of
from penstock.security.gauges import (
    BYTES_BURST_S,
    WINDOW_MS,
    JointBucket,
    JointRate,
    TokenBucket,
    WindowedRate,
    new_byte_bucket,
)
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

SHORT_THROTTLE_MAX_MS: Final = WINDOW_MS
"""The longest throttle time for request time and connections."""
FETCH_BYTES_MAX: Final = 2**31 - 1

PERCENT_PER_NANOSECOND: Final = 100 / 1_000_000_000
"""Turns the time that a request took into the unit of `REQUEST_PERCENTAGE`."""

METERS_MAX: Final = 20_000
"""How many clients with a default quota are measured apart from each other."""
METERS_PER_USER_MAX: Final = 5_000
"""How many of them can belong to one user."""
ADDRESS_METERS_MAX: Final = 20_000
"""How many addresses with the default quota are measured apart from each other."""
METERS_PER_SITE_MAX: Final = 256
"""How many of them can belong to one IPv6 site."""
SHARED_ROWS: Final = 3
SHARED_COLUMNS: Final = 512
CLIENT_ID_CHARS_MAX: Final = 256
"""The length of a client id that can have a meter of its own without a quota of its own."""
_ROUTES_MAX: Final = 20_000
"""How many clients are remembered with their meter. Beyond that, all are looked up again."""
ROUTE_BYTES_MAX: Final = 4 * 1024 * 1024
"""How much memory they may use, for each key."""
_ROUTE_BYTES: Final = 200
"""How much one uses, without its names."""
_SWEEP_METERS: Final = 1_000
"""How many meters one call of `drop_idle` looks at."""
_SWEEP_INTERVAL_MS: Final = 1000


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
    """For connections: the IP address, or the IPv6 network that shares the default quota."""
    limit: float
    rate: float
    throttled_ms: int


class _MeterId(NamedTuple):
    key: str
    sharer: Sharer
    entity: QuotaEntity | None = None
    """The default quota, if clients beyond the maximum number of meters share this one."""
    row: int | None = None
    """Of a meter that all users share."""
    column: int | None = None


_Gauge = WindowedRate | TokenBucket
_Rate = WindowedRate | JointRate
_Bucket = TokenBucket | JointBucket


@dataclass(slots=True)
class _Pool:
    """How many meters with default quotas there are, for users or for addresses."""

    most: int
    owner_most: int
    counted: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """User or site -> how many meters count for it."""
    sweep_ms: int | None = None

    def has_room(self, owner: str) -> bool:
        return self.counted < self.most and self.counts.get(owner, 0) < self.owner_most

    def add(self, owner: str) -> None:
        self.counted += 1
        self.counts[owner] = self.counts.get(owner, 0) + 1

    def remove(self, owner: str) -> None:
        self.counted -= 1
        self.counts[owner] -= 1
        if not self.counts[owner]:
            del self.counts[owner]


class _Meter(NamedTuple):
    gauge: _Gauge
    counted_for: str | None
    """The user or site whose share of the meters this is; None if it does not count."""


_UNKNOWN: Final = WindowedRate(1, 0)
"""The default of a dictionary's `get`, to tell "no limit" from "not looked up yet"."""
_EVERYONE: Final = Sharer(None, None)


class QuotaMeters:
    """Measures all clients of a broker. The module says how many meters there can be."""

    def __init__(
        self,
        quotas: Quotas,
        meters_max: int = METERS_MAX,
        user_max: int = METERS_PER_USER_MAX,
        addresses_max: int = ADDRESS_METERS_MAX,
        salt: bytes = b"",
    ) -> None:
        """`salt`: up to 64 random bytes. Nobody can then compute which users share a meter."""
        self._users = _Pool(meters_max, user_max)
        self._addresses = _Pool(addresses_max, METERS_PER_SITE_MAX)
        self._salt = salt
        self._meters: dict[_MeterId, _Meter] = {}
        self.shared = 0
        """How often a client was assigned to a shared meter, because there were too many."""
        self.update(quotas)

    def __len__(self) -> int:
        return len(self._meters)

    def update(self, quotas: Quotas) -> None:
        """Applies changed quotas. What was measured before still counts."""
        self._quotas = quotas
        self._routes: dict[str, dict[Client, _Rate | _Bucket | None]] = {
            key: {} for key in CLIENT_KEYS if key != CONTROLLER_MUTATION_RATE and quotas.has(key)
        }
        self._route_bytes = dict.fromkeys(self._routes, 0)

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

    def fetch_bytes_max(self, client: Client, now_ms: int) -> int:
        """Returns how much one fetch may return: no more than the quota of one second."""
        meter = self._find(CONSUMER_BYTE_RATE, client, now_ms)
        if meter is None:
            return FETCH_BYTES_MAX
        return int(min(meter.limit * BYTES_BURST_S, FETCH_BYTES_MAX))

    def record_fetch(self, client: Client, size: int, now_ms: int) -> FetchVerdict:
        """Decides whether a fetch is answered with its `size` bytes of records.

        Over the quota it is answered without records, and they are not recorded. Otherwise they are
        sent, and the next fetch waits until the quota allows them. So a consumer gets past a batch
        that is larger than `fetch_bytes_max`. (Kafka answers such a fetch without records forever.)
        """
        bucket = self._find(CONSUMER_BYTE_RATE, client, now_ms)
        if bucket is None:
            return _SERVED
        assert isinstance(bucket, _Bucket)
        if throttle_ms := bucket.admit(0, now_ms):
            return FetchVerdict(throttle_ms, True)
        return FetchVerdict(bucket.record(size, now_ms), False)

    def admit_mutations(self, client: Client, partitions: int, now_ms: int) -> int:
        """Returns 0 if the client may create or delete the partitions, and records them.

        Otherwise the topic is refused with THROTTLING_QUOTA_EXCEEDED and this throttle time. For
        CreateTopics from version 6, DeleteTopics from 5 and CreatePartitions from 3.
        """
        bucket = self._mutations(client, now_ms)
        return 0 if bucket is None else bucket.admit(partitions, now_ms)

    def record_mutations(self, client: Client, partitions: int, now_ms: int) -> int:
        """Records created or deleted partitions, and returns the throttle time.

        For older versions than those of `admit_mutations`: they do not know the error.
        """
        bucket = self._mutations(client, now_ms)
        return 0 if bucket is None else bucket.record(partitions, now_ms)

    def record_connection(self, address: str, now_ms: int) -> int:
        """Returns 0 if the address may open a connection now, and records it.

        Otherwise the connection is not recorded, and is closed after this many milliseconds.
        """
        limit = self._quotas.ip_limit(address)
        if limit is None:
            return 0
        meter = self._rate(CONNECTION_CREATION_RATE, limit, site_of(address), now_ms)
        if throttle_ms := meter.record(1, now_ms):
            meter.unrecord(1, now_ms)
        return throttle_ms

    def drop_idle(self, now_ms: int) -> int:
        """Drops meters that would measure the same as new ones. To be called every second.

        Each call looks at a part of the meters. Returns how many were dropped.
        """
        dropped = []
        for each in list(islice(self._meters, _SWEEP_METERS)):
            meter = self._meters.pop(each)
            if not meter.gauge.is_idle(now_ms):
                self._meters[each] = meter  # At the end: the next call looks at others.
                continue
            dropped.append(each.key)
            if meter.counted_for is not None:
                self._pool(each.key).remove(meter.counted_for)
        for key in set(dropped):
            self._forget_routes(key)
        return len(dropped)

    def usage(self, now_ms: int) -> Iterator[MeterUsage]:
        """Returns an entry for each meter. The meters that all users share have one together."""
        shared: dict[_MeterId, list[_Gauge]] = {}
        for each, (gauge, _) in self._meters.items():
            if each.row is None:
                rate = gauge.rate(now_ms)
                yield MeterUsage(each.key, *each.sharer, gauge.limit, rate, gauge.throttled_ms)
            elif each.row == 0:  # Each user has one meter in this row.
                shared.setdefault(each._replace(column=None), []).append(gauge)
        for each, gauges in shared.items():
            rate = sum(gauge.rate(now_ms) for gauge in gauges)
            throttled_ms = sum(gauge.throttled_ms for gauge in gauges)
            yield MeterUsage(each.key, None, None, gauges[0].limit, rate, throttled_ms)

    def _find(self, key: str, client: Client, now_ms: int) -> _Rate | _Bucket | None:
        """Returns the meter of a client; None if it has no limit."""
        routes = self._routes.get(key)
        if routes is None:
            return None
        meter = routes.get(client, _UNKNOWN)
        return self._route(key, client, now_ms) if meter is _UNKNOWN else meter

    def _route(self, key: str, client: Client, now_ms: int) -> _Rate | _Bucket | None:
        """Looks up the meter of a client, and remembers it."""
        user, client_id = client
        limit = self._quotas.limit(user, client_id, key)
        choose = self._rate if key == REQUEST_PERCENTAGE else self._bucket
        gauge = None if limit is None else choose(key, limit, user, now_ms)
        if len(user) <= ENTITY_NAME_CHARS_MAX and len(client_id or "") <= ENTITY_NAME_CHARS_MAX:
            size = sys.getsizeof(user) + sys.getsizeof(client_id) + _ROUTE_BYTES
            routes = self._routes[key]
            if len(routes) >= _ROUTES_MAX or self._route_bytes[key] + size > ROUTE_BYTES_MAX:
                self._forget_routes(key)
            routes[client] = gauge
            self._route_bytes[key] += size
        return gauge

    def _forget_routes(self, key: str) -> None:
        if key in self._routes:
            self._routes[key].clear()
            self._route_bytes[key] = 0

    def _rate(self, key: str, limit: Limit, owner: str, now_ms: int) -> _Rate:
        gauges = [
            gauge
            for gauge in self._gauges(key, limit, owner, now_ms)
            if isinstance(gauge, WindowedRate)
        ]
        return gauges[0] if len(gauges) == 1 else JointRate(gauges)

    def _bucket(self, key: str, limit: Limit, owner: str, now_ms: int) -> _Bucket:
        gauges = self._gauges(key, limit, owner, now_ms)
        buckets = [gauge for gauge in gauges if isinstance(gauge, TokenBucket)]
        return buckets[0] if len(buckets) == 1 else JointBucket(buckets)

    def _mutations(self, client: Client, now_ms: int) -> _Bucket | None:
        limit = self._quotas.limit(*client, CONTROLLER_MUTATION_RATE)
        if limit is None:
            return None
        return self._bucket(CONTROLLER_MUTATION_RATE, limit, client.user, now_ms)

    def _gauges(self, key: str, limit: Limit, owner: str, now_ms: int) -> list[_Gauge]:
        """Returns the gauges of the clients that share this limit, with its current rate.

        There is one, unless all users share them. `owner` is the user, or the site of the address.
        """
        own = _MeterId(key, limit.sharer)
        rate = limit.rate
        if own in self._meters or all(name is not None for _, name in limit.entity.parts):
            return [self._get(own, rate, None, now_ms)]
        user, client_id = limit.sharer
        is_short = len(user or "") <= ENTITY_NAME_CHARS_MAX
        is_short = is_short and len(client_id or "") <= CLIENT_ID_CHARS_MAX
        if is_short and self._has_room(key, owner, now_ms):
            return [self._get(own, rate, owner, now_ms)]
        self.shared += 1
        pool = self._pool(key)
        sharer = Sharer(None, owner) if limit.entity.is_ip else Sharer(owner, None)
        of_owner = _MeterId(key, sharer, limit.entity)
        can_add = 0 < len(owner) <= ENTITY_NAME_CHARS_MAX and pool.counted < pool.most
        if can_add or of_owner in self._meters:
            return [self._get(of_owner, rate, owner, now_ms)]
        return [
            self._get(_MeterId(key, _EVERYONE, limit.entity, row, column), rate, None, now_ms)
            for row, column in enumerate(self._columns(owner))
        ]

    def _columns(self, owner: str) -> list[int]:
        name = owner.encode("utf-8", "surrogatepass")
        digest = blake2b(name, key=self._salt, digest_size=4 * SHARED_ROWS).digest()
        return [
            int.from_bytes(digest[4 * row : 4 * row + 4], "big") % SHARED_COLUMNS
            for row in range(SHARED_ROWS)
        ]

    def _pool(self, key: str) -> _Pool:
        return self._addresses if key == CONNECTION_CREATION_RATE else self._users

    def _has_room(self, key: str, owner: str, now_ms: int) -> bool:
        pool = self._pool(key)
        for _ in range(2):
            if pool.has_room(owner):
                return True
            if pool.sweep_ms is not None and now_ms - pool.sweep_ms < _SWEEP_INTERVAL_MS:
                return False
            pool.sweep_ms = now_ms
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
            gauge = new_byte_bucket(rate, now_ms)
        self._meters[each] = _Meter(gauge, counted_for)
        if counted_for is not None:
            self._pool(each.key).add(counted_for)
        return gauge
