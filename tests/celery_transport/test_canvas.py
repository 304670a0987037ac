"""Celery's canvas and its other features on Penstock and, side by side, on RabbitMQ.

The same tasks run on both with the same results. Both use the same result backend, files, because
the one with messages has no chords.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError

from celery_transport.rabbitmq_server import rabbitmq
from celery_transport.task_program import make_app
from celery_transport.task_workers import (
    LIMIT_S,
    Worker,
    lines,
    results_in,
    wait_until,
    worker,
)
from penstock.testing import Broker
from penstock.testing.slowness import patient

QUEUE = "canvas"
pytestmark = pytest.mark.xdist_group("celery")


class Setup(NamedTuple):
    """A broker, a worker with two processes, and an application that sends tasks to it."""

    app: Celery
    worker: Worker
    folder: Path

    def task(self, name: str, *args: Any, **options: Any) -> Any:
        return self.app.signature(name, args=args, **options)


@pytest.fixture(scope="module", params=["penstock", "rabbitmq"])
def setup(
    request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "penstock":
            url = f"penstock://{broker.bootstrap}"
        else:
            url = stack.enter_context(rabbitmq(folder))
        app = make_app(url, results_in(folder), QUEUE)
        stack.callback(app.close)
        started = stack.enter_context(
            worker(folder, "pool", url, QUEUE, "--concurrency", "2", "--pool", "prefork")
        )
        yield Setup(app, started, folder)


def get(result: Any) -> Any:
    return result.get(timeout=LIMIT_S, interval=0.05)


def test_a_chain_passes_each_result_on(setup: Setup) -> None:
    steps = chain(setup.task("add", 2, 2), setup.task("add", 4), setup.task("mul", 10))
    assert get(steps.apply_async()) == 80


def test_a_group_runs_its_tasks_side_by_side(setup: Setup) -> None:
    squares = group(setup.task("mul", number, number) for number in range(10))
    assert get(squares.apply_async()) == [number * number for number in range(10)]


def test_a_chord_gets_the_results_of_its_group(setup: Setup) -> None:
    numbers = chord((setup.task("add", number, number) for number in range(5)), setup.task("total"))
    assert get(numbers.apply_async()) == 20


def test_a_group_in_a_chain_becomes_a_chord(setup: Setup) -> None:
    steps = chain(
        setup.task("add", 1, 1),
        group(setup.task("add", 10), setup.task("mul", 10)),
        setup.task("total"),
    )
    assert get(steps.apply_async()) == 32


def test_a_failed_task_calls_its_errback(setup: Setup, tmp_path: Path) -> None:
    failed = setup.task("fail", "no milk").apply_async(
        link_error=setup.task("note_failure", str(tmp_path / "errors"))
    )
    with pytest.raises(ValueError, match="no milk"):
        get(failed)
    wait_until(lambda: lines(tmp_path / "errors") == ["no milk"], "the errback was called")


def test_a_retried_task_counts_its_retries(setup: Setup, tmp_path: Path) -> None:
    assert get(setup.task("third_time", str(tmp_path / "attempts")).apply_async()) == 2
    assert lines(tmp_path / "attempts") == ["attempt 0", "attempt 1", "attempt 2"]


def test_a_task_with_an_eta_runs_after_it_and_others_before(setup: Setup) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1)
    later = setup.task("add", 1, 2).apply_async(eta=due)
    assert get(setup.task("add", 3, 4).apply_async()) == 7
    assert get(later) == 3
    assert later.date_done.replace(tzinfo=UTC) >= due


def test_a_task_with_a_countdown_runs_later(setup: Setup) -> None:
    sent = datetime.now(UTC)
    result = setup.task("add", 1, 2).apply_async(countdown=0.5)
    assert get(result) == 3
    assert result.date_done.replace(tzinfo=UTC) >= sent + timedelta(seconds=0.5)


def test_an_expired_task_is_revoked(setup: Setup) -> None:
    result = setup.task("add", 1, 2).apply_async(expires=datetime.now(UTC) - timedelta(seconds=5))
    with pytest.raises(TaskRevokedError):
        get(result)


def test_a_revoked_task_does_not_run(setup: Setup, tmp_path: Path) -> None:
    """It waits in the worker until it is due, and is revoked there by remote control."""
    notes = tmp_path / "notes"
    result = setup.task("note", str(notes), "ran").apply_async(countdown=patient(8.0))
    replies = setup.app.control.revoke(result.id, reply=True, timeout=LIMIT_S, limit=1)
    assert [list(reply) for reply in replies or []] == [[setup.worker.name]]
    with pytest.raises(TaskRevokedError):
        get(result)
    assert lines(notes) == []


def test_remote_control_answers(setup: Setup, tmp_path: Path) -> None:
    inspect = setup.app.control.inspect([setup.worker.name], timeout=LIMIT_S)
    assert inspect.ping() == {setup.worker.name: {"ok": "pong"}}
    started, go = tmp_path / "started", tmp_path / "go"
    result = setup.task("wait_for", str(started), str(go)).apply_async()
    wait_until(lambda: lines(started), "the task has started")
    active = inspect.active()
    assert [task["id"] for task in active[setup.worker.name]] == [result.id]
    go.touch()
    assert get(result) is False
    queues = inspect.active_queues()[setup.worker.name]
    assert [queue["name"] for queue in queues] == [QUEUE]


def test_events_reach_a_monitor(setup: Setup) -> None:
    seen: list[str] = []
    with setup.app.connection_for_read() as connection:
        receiver = setup.app.events.Receiver(
            connection, handlers={"*": lambda event: seen.append(event["type"])}
        )
        with receiver.consumer_context() as (own, _, _):
            result = setup.task("add", 1, 1).apply_async()

            def has_succeeded() -> bool:
                try:
                    own.drain_events(timeout=0.2)
                except TimeoutError:
                    return False
                return "task-succeeded" in seen

            wait_until(has_succeeded, "the event has arrived")
    assert get(result) == 2
    assert {"task-received", "task-started", "task-succeeded"} <= set(seen)
