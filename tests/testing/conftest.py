"""Foreign clients, each in turn, on the way through the faults."""

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
    """Libraries that leave a socket to the garbage collector are not what is tested here."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture(scope="package", autouse=True)
def no_litter() -> Iterator[None]:
    """What the libraries left is collected here, not in the tests of somebody else."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, penstock_faults: Faults) -> Iterator[Client]:
    """Each of the Python clients in turn; all it knows is the proxy."""
    opened = CLIENTS[request.param](penstock_faults.bootstrap)
    yield opened
    penstock_faults.clear()
    opened.close()


@pytest.fixture
def keep(client: Client) -> Iterator[Callable[[Consumer], Consumer]]:
    """Consumers handed to it are closed when the test ends, before their client is."""
    kept: list[Consumer] = []

    def keep_one(consumer: Consumer) -> Consumer:
        kept.append(consumer)
        return consumer

    yield keep_one
    for consumer in kept:
        consumer.close()
