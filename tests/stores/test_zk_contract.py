"""ZooKeeper keeps the contract of metadata stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .contract import StoreContract
from .zk_server import ZooKeeperBench, ZooKeeperEnsemble


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperEnsemble]:
    ensemble = ZooKeeperEnsemble(1)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.close()


@pytest.fixture
def bench(zookeeper: ZooKeeperEnsemble) -> Iterator[ZooKeeperBench]:
    bench = ZooKeeperBench(zookeeper)
    yield bench
    bench.close()


class TestZooKeeper(StoreContract):
    """On a real server."""
