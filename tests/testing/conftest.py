"""Fixtures that run each third-party Python client through the fault proxy."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.clients.aio import AioClient
from compat.clients.base import Client, Consumer
from compat.clients.confluent import ConfluentClient
from compat.clients.kafkapython import KafkaPythonClient
from penstock.testing import Faults

CLIENTS: dict[str, type[Client]] = {
    kind.name: kind for kind in (ConfluentClient, KafkaPythonClient, AioClient)
}
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignores resource warnings: some client libraries leave their sockets
    to the garbage collector."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture(scope="package", autouse=True)
def no_litter() -> Iterator[None]:
    """Collects what the client libraries left behind here, so that its warnings do not appear
    in tests of other packages."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, penstock_faults: Faults) -> Iterator[Client]:
    """Yields each of the Python clients in turn. A client knows only the proxy's address."""
    opened = CLIENTS[request.param](penstock_faults.bootstrap)
    yield opened
    penstock_faults.clear()
    opened.close()


@pytest.fixture
def keep(client: Client) -> Iterator[Callable[[Consumer], Consumer]]:
    """Closes the consumers passed to it when the test ends, before their client is closed."""
    kept: list[Consumer] = []

    def keep_one(consumer: Consumer) -> Consumer:
        kept.append(consumer)
        return consumer

    yield keep_one
    for consumer in kept:
        consumer.close()
