"""One Penstock broker for all tests of this folder, and for those of Celery's features a worker on
it and a worker on RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from celery import _state

from celery_transport.both_brokers import QUEUE, Setup
from celery_transport.rabbitmq_server import rabbitmq
from celery_transport.task_program import make_app
from celery_transport.task_workers import results_in, worker
from penstock.testing import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture(scope="package", params=["penstock", "rabbitmq"])
def setup(
    request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setup]:
    """Both brokers have the same result backend, files: the one with messages has no chords."""
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "penstock":
            url = f"penstock://{broker.bootstrap}"
        else:
            url = stack.enter_context(rabbitmq(folder))
        app = make_app(url, results_in(folder), QUEUE)
        stack.callback(app.close)
        # Parts of a nested canvas find their application in this way.
        stack.callback(_state._set_current_app, _state._tls.current_app)
        app.set_current()
        started = stack.enter_context(
            worker(folder, "pool", url, QUEUE, "--concurrency", "2", "--pool", "prefork")
        )
        yield Setup(app, started, folder)
