"""Remembers what a worker has seen of its cluster, for `outside_trouble`.

The addresses of brokers that are down are remembered, because the cluster no longer names them.
Contact is judged by the lease: a worker renews it every second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from penstock.client.address import Address
from penstock.ports import Clock
from penstock.spark.deployments.outside_trouble import ClusterSeen

LATE_S: Final = 5.0
"""A lease that was not renewed for this long means that the cluster does not answer."""
_ADDRESSES_MAX: Final = 1_000


class KnowsBrokers(Protocol):
    """What is needed of the client's `Cluster`."""

    @property
    def brokers(self) -> Mapping[int, Address]: ...


class ClusterWatch:
    def __init__(
        self,
        bootstrap: str,
        cluster: KnowsBrokers,
        lease_age_s: Callable[[], float | None],
        clock: Clock,
    ) -> None:
        """`lease_age_s` returns how long ago the lease was renewed; None if there is none."""
        self._bootstrap = bootstrap
        self._cluster = cluster
        self._lease_age_s = lease_age_s
        self._clock = clock
        self._addresses: dict[str, None] = {}
        """The last ones that were seen, the newest at the end."""
        self._had_lease = False
        self._lost_at: float | None = None

    def look(self) -> None:
        """Call it every second: an outage may be over when its errors arrive."""
        for address in map(str, self._cluster.brokers.values()):
            self._addresses.pop(address, None)
            self._addresses[address] = None
        while len(self._addresses) > _ADDRESSES_MAX:
            del self._addresses[next(iter(self._addresses))]
        age_s = self._lease_age_s()
        self._had_lease = self._had_lease or age_s is not None
        if self._had_lease and (age_s is None or age_s > LATE_S):
            self._lost_at = self._clock.monotonic()

    def seen(self) -> ClusterSeen:
        self.look()
        lost_s = None if self._lost_at is None else self._clock.monotonic() - self._lost_at
        return ClusterSeen(frozenset({self._bootstrap, *self._addresses}), lost_s)
