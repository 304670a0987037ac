"""Fixtures for tests against a running broker: ours, or the one in PENSTOCK_COMPAT_BOOTSTRAP.

Running the suite on Apache Kafka (with `group.initial.rebalance.delay.ms=0`) tests the tests.
"""

from __future__ import annotations

import gc
import os
import uuid
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from compat.clients.aio import AioClient
from compat.clients.base import Client, Consumer, wait_until
from compat.clients.confluent import ConfluentClient
from compat.clients.kafkapython import KafkaPythonClient
from compat.cluster import Cluster
from compat.secured_broker import SecuredBroker
from compat.token_endpoint import TokenEndpoint, serve_tokens
from penstock import Admin

CLIENTS: dict[str, type[Client]] = {
    kind.name: kind for kind in (ConfluentClient, KafkaPythonClient, AioClient)
}
HERE = Path(__file__).parent
ConsumerType = TypeVar("ConsumerType", bound=Consumer)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes seconds; leave out with -m 'not slow'")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignores sockets that libraries leave to the garbage collector; they are not tested here."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture(scope="package", autouse=True)
def no_litter() -> Iterator[None]:
    """Collects what the libraries left, so that it causes no warnings in other tests."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class TopicFactory(Protocol):
    def __call__(self, partitions: int = 1, **configs: str) -> str: ...


@pytest.fixture(scope="session")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The bootstrap address of one broker that all tests share."""
    if given := os.environ.get("PENSTOCK_COMPAT_BOOTSTRAP"):
        yield given
        return
    cluster = Cluster(tmp_path_factory.mktemp("compat") / "data")
    failed = request.session.testsfailed
    try:
        bootstrap = cluster.start()
        with Admin(bootstrap) as admin:
            # Some clients do not retry while the coordinator of a group is still loading.
            for number in range(50):
                admin.group_offsets(f"warm-up-{number}")
        yield bootstrap
        cluster.stop()
    finally:
        cluster.kill()
        if request.session.testsfailed > failed:
            print(cluster.output())


@pytest.fixture(scope="session")
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    """One broker with TLS, logins and access control, for all tests of security."""
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"))
    failed = request.session.testsfailed
    try:
        broker.start()
        yield broker
        assert broker.cluster.stop() == 0
    finally:
        broker.cluster.kill()
        if request.session.testsfailed > failed:
            print(broker.cluster.output())


@pytest.fixture(scope="session")
def endpoint() -> Iterator[TokenEndpoint]:
    """Where clients get their tokens."""
    with serve_tokens() as serving:
        yield serving


@pytest.fixture
def other(secured: SecuredBroker, name: Callable[[], str]) -> str:
    """A topic of the secured broker that the user may not use."""
    made = name()
    with Admin(secured.plain) as admin:
        admin.create_topic(made, partitions=1)
    return made


@pytest.fixture(scope="session")
def clients(broker: str) -> Iterator[Callable[[str], Client]]:
    """Returns a Python client by name; each is created once for the whole session."""
    made: dict[str, Client] = {}

    def client(name: str) -> Client:
        if name not in made:
            made[name] = CLIENTS[name](broker)
        return made[name]

    yield client
    for opened in made.values():
        opened.close()


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, clients: Callable[[str], Client]) -> Client:
    """Each of the Python clients in turn."""
    return clients(request.param)


@pytest.fixture(scope="session")
def names() -> Iterator[str]:
    """Names that were never used before, neither on this broker nor on an older one."""
    run = uuid.uuid4().hex[:8]
    return (f"compat-{run}-{number}" for number in count())


@pytest.fixture
def name(names: Iterator[str]) -> Callable[[], str]:
    return lambda: next(names)


@pytest.fixture
def topic(clients: Callable[[str], Client], names: Iterator[str]) -> TopicFactory:
    """Creates topics; configs are written with underscores: `topic(3, retention_ms="1000")`."""

    def make(partitions: int = 1, **configs: str) -> str:
        admin, made = clients(ConfluentClient.name), next(names)
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topic(made, partitions, configs=settings)
        # Kafka answers before all of its parts know the topic.
        assert wait_until(
            lambda: (
                made in admin.list_topics()
                and len(admin.describe_topic(made)) == partitions
                and all(p.leader >= 0 for p in admin.describe_topic(made).values())
            )
        ), f"topic {made} got no leaders"
        return made

    return make


@pytest.fixture
def keep() -> Iterator[Callable[[ConsumerType], ConsumerType]]:
    """Closes the consumers that are passed to it when the test ends, however it ends."""
    kept: list[Consumer] = []

    def keep_one(consumer: ConsumerType) -> ConsumerType:
        kept.append(consumer)
        return consumer

    yield keep_one
    for consumer in kept:
        consumer.close()
