"""Applies the client quotas of the cluster on this broker.

`ClientQuotas` follows the metadata store and measures all clients (`security.rates`). Its `current`
is None as long as no entity has a quota: then nothing is measured, and a request pays for one
comparison.

With quotas, each request has a `RequestMeter`, which collects what it uses: bytes, time, created or
deleted partitions. `finish` returns the throttle time, which goes into the response, and mutes the
connection for that long (KIP-219). The mute begins when the response is ready. Only a produce
request is finished as soon as its batches are appended: later ones of the connection may begin
before it is answered.

Request time is the time that the event loop spends on a request: 100 % is the whole of it. Work on
threads is not counted.

Requests that only brokers send are not measured, nor is a connection on which a broker replicates.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.metadata.image import Changed
from penstock.net.session import Peer
from penstock.ports import Env
from penstock.security.quotas import (
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP_KEYS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Client,
    Quotas,
)
from penstock.security.rates import PERCENT_PER_NANOSECOND, QuotaMeters
from penstock.wire.api import ApiKey

_AT_ONCE_MAX: Final = 500
"""With more entities than this, the quotas are arranged on a thread."""
_SWEEP_S: Final = 1.0
_SALT_BYTES: Final = 16
_PERCENT_PER_SECOND: Final = PERCENT_PER_NANOSECOND * 1_000_000_000
_CLIENT_ID_AT: Final = 10
"""The position of the client id in a request. Its length is in the two bytes before."""
_VERIFIES_SINCE: Final = 4
"""From this version on, only brokers send AddPartitionsToTxn."""
_USER_PREFIX: Final = "User:"


class Throttled:
    """How often and for how long requests or connections were throttled by one quota."""

    __slots__ = ("count", "ms")

    def __init__(self) -> None:
        self.count = 0
        self.ms = 0

    def add(self, throttle_ms: int) -> None:
        self.count += 1
        self.ms += throttle_ms


class ClientQuotas:
    """The quotas in force on one broker, and what its clients use of them."""

    def __init__(self, env: Env, cluster: ClusterView) -> None:
        self._env = env
        self._cluster = cluster
        self._monotonic = env.clock.monotonic
        self.current: QuotaMeters | None = None
        """Measures the clients; None if there are no quotas."""
        self.has_request_time = False
        """Whether an entity has a quota of request time, so that it must be measured."""
        self.throttled = {key: Throttled() for key in (*CLIENT_KEYS, *IP_KEYS)}
        self._shared_before = 0
        self.changes = 0
        """How often quotas have changed."""
        self._changed = asyncio.Event()
        cluster.listen(self._on_change)

    @property
    def shared_meters(self) -> int:
        """How often a client was assigned to a shared meter, because there are too many clients."""
        return self._shared_before + (0 if self.current is None else self.current.shared)

    def now_ms(self) -> int:
        return int(self._monotonic() * 1000)

    def now_s(self) -> float:
        return self._monotonic()

    async def refresh(self) -> None:
        """Puts the quotas of the image in force."""
        while True:
            changes = self.changes
            build = partial(Quotas, dict(self._cluster.image.quotas.entities))
            if len(self._cluster.image.quotas.entities) > _AT_ONCE_MAX:
                quotas = await self._env.executor.run(build)
            else:
                quotas = build()
            if changes == self.changes:
                self._apply(quotas)
                return

    async def run(self) -> None:
        """Follows the changes of quotas, and drops meters that are idle, until cancelled."""
        while True:
            if self.current is None or self._changed.is_set():
                await self._changed.wait()
                self._changed.clear()
                await self.refresh()
                continue
            await self._env.clock.sleep(_SWEEP_S)
            if self.current is not None:  # The last quota may have been removed meanwhile.
                self.current.drop_idle(self.now_ms())

    def record_connection(self, address: str) -> int:
        """Returns 0 if the address may open a connection now.

        Otherwise returns after how many milliseconds the connection is to be closed."""
        meters = self.current
        throttle_ms = 0 if meters is None else meters.record_connection(address, self.now_ms())
        if throttle_ms:
            self.throttled[CONNECTION_CREATION_RATE].add(throttle_ms)
        return throttle_ms

    def _on_change(self, changed: Changed) -> None:
        if not changed.quotas:
            return
        self.changes += 1
        self._changed.set()
        entities = self._cluster.image.quotas.entities
        if len(entities) <= _AT_ONCE_MAX:
            self._apply(Quotas(dict(entities)))

    def _apply(self, quotas: Quotas) -> None:
        self.has_request_time = quotas.has(REQUEST_PERCENTAGE)
        if not quotas.entities:
            self._shared_before, self.current = self.shared_meters, None
        elif self.current is None:
            self.current = QuotaMeters(quotas, salt=self._env.random.bytes(_SALT_BYTES))
        else:
            self.current.update(quotas)


class ConnectionMeter:
    """Measures the requests of one connection."""

    __slots__ = ("_client", "_client_id", "_peer", "_quotas", "_user")

    def __init__(self, quotas: ClientQuotas, peer: Peer, principal: str) -> None:
        self._quotas = quotas
        self._peer = peer
        self._user = principal.removeprefix(_USER_PREFIX)
        self._client_id = b""
        self._client = Client(self._user, None)

    def begin(self, frame: memoryview, api_key: int, version: int) -> RequestMeter | None:
        """Returns what measures a request; None if it is exempt."""
        meters = self._quotas.current
        if meters is None or self._peer.is_replica or _is_between_brokers(api_key, version):
            return None
        size = int.from_bytes(frame[_CLIENT_ID_AT - 2 : _CLIENT_ID_AT], "big", signed=True)
        client_id = frame[_CLIENT_ID_AT : _CLIENT_ID_AT + max(0, size)].tobytes()
        if client_id != self._client_id:
            self._client_id = client_id
            self._client = Client(self._user, client_id.decode("utf-8", "replace"))
        return RequestMeter(self._quotas, meters, self._client, self._peer)


def _is_between_brokers(api_key: int, version: int) -> bool:
    return api_key == ApiKey.WRITE_TXN_MARKERS or (
        api_key == ApiKey.ADD_PARTITIONS_TO_TXN and version >= _VERIFIES_SINCE
    )


class RequestMeter:
    """Measures one request, and throttles its client."""

    __slots__ = (
        "_client",
        "_is_finished",
        "_key",
        "_meters",
        "_peer",
        "_quotas",
        "seconds",
        "throttle_ms",
    )

    def __init__(
        self, quotas: ClientQuotas, meters: QuotaMeters, client: Client, peer: Peer
    ) -> None:
        self._quotas = quotas
        self._meters = meters
        self._client = client
        self._peer = peer
        self.seconds = 0.0
        """The time that the event loop has spent on the request."""
        self._key = REQUEST_PERCENTAGE
        self._is_finished = False
        self.throttle_ms = 0
        """The longest throttle time of all quotas so far."""

    def record_produce(self, size: int) -> None:
        key = PRODUCER_BYTE_RATE
        now_ms = self._quotas.now_ms()
        self._throttle(key, self._meters.record_and_throttle(key, self._client, size, now_ms))

    def fetch_bytes_max(self) -> int:
        """Returns how many bytes of records the response to a fetch may have."""
        return self._meters.fetch_bytes_max(self._client, self._quotas.now_ms())

    def record_fetch(self, size: int) -> bool:
        """Records the records of a response. Returns whether to answer without them."""
        verdict = self._meters.record_fetch(self._client, size, self._quotas.now_ms())
        self._throttle(CONSUMER_BYTE_RATE, verdict.throttle_ms)
        return verdict.is_empty

    def admit_mutations(self, partitions: int) -> bool:
        """Returns whether the client may create or delete the partitions, and records them."""
        wait_ms = self._meters.admit_mutations(self._client, partitions, self._quotas.now_ms())
        self._throttle(CONTROLLER_MUTATION_RATE, wait_ms)
        return not wait_ms

    def record_mutations(self, partitions: int) -> None:
        """Records partitions in any case, for versions that do not know the error."""
        wait_ms = self._meters.record_mutations(self._client, partitions, self._quotas.now_ms())
        self._throttle(CONTROLLER_MUTATION_RATE, wait_ms)

    def spend(self, seconds: float) -> None:
        """Adds time that the event loop has spent on the request."""
        self.seconds += seconds

    def finish(self) -> int:
        """Mutes the connection if the client is over a quota. Returns the throttle time in
        milliseconds. Later calls return the same, and do nothing."""
        if self._is_finished:
            return self.throttle_ms
        self._is_finished = True
        quotas = self._quotas
        if quotas.has_request_time:
            percent = self.seconds * _PERCENT_PER_SECOND
            key, now_ms = REQUEST_PERCENTAGE, quotas.now_ms()
            throttle_ms = self._meters.record_and_throttle(key, self._client, percent, now_ms)
            self._throttle(key, throttle_ms)
        if self.throttle_ms:
            quotas.throttled[self._key].add(self.throttle_ms)
            self._peer.mute(self.throttle_ms / 1000)
        return self.throttle_ms

    @property
    def is_timed(self) -> bool:
        """Whether work that is done later is to be measured too."""
        return self._quotas.has_request_time

    def _throttle(self, key: str, throttle_ms: int) -> None:
        if throttle_ms > self.throttle_ms:
            self.throttle_ms = throttle_ms
            self._key = key
