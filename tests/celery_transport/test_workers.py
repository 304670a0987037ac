"""Workers on Penstock: killed, restarted brokers, locks, replies, Flower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Producer, Queue

from celery_transport.task_program import make_app
from celery_transport.task_workers import (
    LIMIT_S,
    TESTS,
    Worker,
    lines,
    results_in,
    wait_until,
    worker,
)
from penstock.errors import ApiNotServed
from penstock.runtime import SystemClock, SystemRandom
from penstock.testing import Broker
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient

pytestmark = pytest.mark.xdist_group("celery")
ONE_THREAD = ("--pool", "solo")


@pytest.fixture
def new_app() -> Iterator[Callable[[str, str, str], Celery]]:
    made: list[Celery] = []

    def make(url: str, results: str, queue: str) -> Celery:
        made.append(make_app(url, results, queue))
        return made[-1]

    yield make
    for app in made:
        app.close()


def send(app: Celery, name: str, *args: object, **options: Any) -> Any:
    return app.signature(name, args=args).apply_async(**options)


def get(result: Any) -> Any:
    return result.get(timeout=LIMIT_S, interval=0.05)


def test_another_worker_gets_the_task_of_a_worker_that_was_killed(
    broker: Broker, tmp_path: Path, new_app: Callable[[str, str, str], Celery]
) -> None:
    url, queue = f"penstock://{broker.bootstrap}", broker.new_name("killed")
    app = new_app(url, results_in(tmp_path), queue)
    started, go = tmp_path / "started", tmp_path / "go"
    with worker(tmp_path, "first", url, queue, *ONE_THREAD) as first:
        result = send(app, "wait_for", str(started), str(go))
        wait_until(lambda: lines(started), "the first worker has the task")
        first.kill()
    go.touch()
    with worker(tmp_path, "second", url, queue, *ONE_THREAD):
        assert get(result) is True
    assert [line.split()[1] for line in lines(started)] == ["False", "True"]


def test_a_worker_outlasts_a_restart_of_the_broker(
    tmp_path: Path, new_app: Callable[[str, str, str], Celery]
) -> None:
    with Broker() as broker:
        url = f"penstock://{broker.bootstrap}"
        app = new_app(url, results_in(tmp_path), "jobs")
        with worker(tmp_path, "steady", url, "jobs", *ONE_THREAD):
            assert get(send(app, "add", 1, 1)) == 2
            broker.restart()
            assert get(send(app, "add", 2, 2)) == 4


def test_results_come_back_as_messages(
    broker: Broker, tmp_path: Path, new_app: Callable[[str, str, str], Celery]
) -> None:
    url, queue = f"penstock://{broker.bootstrap}", broker.new_name("replies")
    app = new_app(url, "rpc://", queue)
    with worker(tmp_path, "replying", url, queue, *ONE_THREAD, results="rpc://"):
        results = [send(app, "add", number, 1) for number in range(20)]
        assert [get(result) for result in results] == list(range(1, 21))
        with pytest.raises(ValueError, match="no tea"):
            get(send(app, "fail", "no tea"))


def test_the_example_runs(broker: Broker, tmp_path: Path) -> None:
    """A chain with a retry, and its result as a message."""
    environment = {**os.environ, "PENSTOCK_URL": f"penstock://{broker.bootstrap}/example"}
    root = TESTS.parent
    started = Worker(
        "example", environment, tmp_path / "log", *ONE_THREAD, app="examples.celery_tasks", cwd=root
    )
    try:
        started.wait_ready()
        found = subprocess.run(
            [sys.executable, "-m", "examples.celery_tasks"],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    finally:
        started.stop()
    assert found.stdout == "1800\n", found.stderr


def test_a_lock_is_extended_while_a_worker_has_the_message(tmp_path: Path) -> None:
    """The message is held for several lock times, and no other client gets it."""
    lock_s = min(60.0, patient(6.0))
    settings = {
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": str(int(1_000 * lock_s)),
    }
    with Broker(settings) as broker:
        url = f"penstock://{broker.bootstrap}"
        with Connection(url) as holder, Connection(url) as other:
            held: list[Any] = []
            stolen: list[Any] = []
            queue = Queue("long")
            queue(holder.default_channel).declare()
            Producer(holder.default_channel).publish("job", routing_key="long")
            Consumer(holder.default_channel, [queue], on_message=held.append).consume()

            def arrived() -> bool:
                _drain(holder)
                return bool(held)

            wait_until(arrived, "the message has arrived")
            Consumer(other.default_channel, [queue], on_message=stolen.append).consume()
            clock = SystemClock()
            end = clock.monotonic() + 2.5 * lock_s
            while clock.monotonic() < end:
                _drain(other)
            assert stolen == []
            held[0].ack()
            size = queue(other.default_channel).queue_declare
            wait_until(lambda: size(passive=True).message_count == 0, "the message is done")


def test_a_broker_without_share_groups_says_so() -> None:
    """It is no connection error: to connect again would not help."""
    with (
        Broker({"group.share.enable": "false"}) as broker,
        Connection(f"penstock://{broker.bootstrap}") as connection,
    ):
        queue = Queue("jobs")(connection.default_channel)
        queue.declare()
        Consumer(connection.default_channel, [queue]).consume()
        with pytest.raises(ApiNotServed, match="share groups need") as caught:
            while True:
                _drain(connection)
        assert not isinstance(caught.value, connection.connection_errors)


def _drain(connection: Connection) -> None:
    try:
        connection.drain_events(timeout=0.2)
    except TimeoutError:
        return


def test_flower_shows_workers_and_tasks(
    broker: Broker, tmp_path: Path, new_app: Callable[[str, str, str], Celery]
) -> None:
    url, queue = f"penstock://{broker.bootstrap}", broker.new_name("flower")
    app = new_app(url, results_in(tmp_path), queue)
    port = free_port(SystemRandom())
    with worker(tmp_path, "shown", url, queue, *ONE_THREAD) as shown:
        command = [sys.executable, "-m", "celery", "--broker", url, "flower"]
        # Flower waits this long for the replies of workers that it does not know yet.
        options = [f"--port={port}", "--address=127.0.0.1", "--inspect_timeout=5000"]
        with (tmp_path / "flower.log").open("wb") as log:
            flower = subprocess.Popen(
                [*command, *options],
                cwd=TESTS,
                env={"PATH": "", "FLOWER_UNAUTHENTICATED_API": "true"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:

            def answer(path: str) -> dict[str, Any]:
                assert flower.poll() is None, (tmp_path / "flower.log").read_text("utf-8")
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as response:
                        found: dict[str, Any] = json.load(response)
                        return found
                except OSError:  # It does not listen yet, or not answer.
                    return {}

            wait_until(
                lambda: shown.name in answer("/api/workers?refresh=1"), "Flower knows the worker"
            )
            result = send(app, "add", 1, 1)
            assert get(result) == 2
            wait_until(
                lambda: answer("/api/tasks").get(result.id, {}).get("state") == "SUCCESS",
                "Flower knows that the task has succeeded",
            )
        finally:
            flower.kill()
            flower.wait()
