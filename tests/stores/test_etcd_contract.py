"""etcd keeps the contract of metadata stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .contract import StoreContract
from .etcd_server import EtcdBench, EtcdCluster


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    # A short election timeout allows leases of one second. A single member elects itself anyway.
    cluster = EtcdCluster(1, ["--heartbeat-interval=10", "--election-timeout=100"])
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def bench(etcd: EtcdCluster) -> Iterator[EtcdBench]:
    bench = EtcdBench(etcd)
    yield bench
    bench.close()


class TestEtcd(StoreContract):
    """On a real server."""
