"""Tasks with a due time or a priority: brokers keep and order them, workers do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import penstock
from celery_transport.task_program import make_app
from celery_transport.task_workers import LIMIT_S, lines, results_in, wait_until, worker
from penstock.client.queues.queue_stats import QueueStats
from penstock.testing import Broker
from penstock.testing.slowness import patient

pytestmark = pytest.mark.xdist_group("celery")
ONE_THREAD = ("--pool", "solo")
HALF_AN_HOUR_S = 1800


class Shop:
    """An application whose queue does not exist before the first task."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.url = f"penstock://{broker.bootstrap}"
        self.queue = broker.new_name("due")
        self.folder = folder
        self._bootstrap = broker.bootstrap
        self.app: Celery = make_app(self.url, results_in(folder), self.queue)

    def send(self, name: str, *args: object, **options: Any) -> Any:
        return self.app.signature(name, args=args).apply_async(**options)

    def worker(self, name: str) -> Any:
        return worker(self.folder, name, self.url, self.queue, *ONE_THREAD)

    def stats(self) -> QueueStats:
        with penstock.Queue(self._bootstrap, self.queue) as queue:
            return queue.stats()


@pytest.fixture
def shop(broker: Broker, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(broker, tmp_path)
    yield made
    made.app.close()


def get(result: Any) -> Any:
    return result.get(timeout=LIMIT_S, interval=0.05)


def eta_in(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


DUE: list[Callable[[], dict[str, Any]]] = [
    lambda: {"countdown": HALF_AN_HOUR_S},
    lambda: {"eta": eta_in(HALF_AN_HOUR_S)},
]


@pytest.mark.parametrize("due", DUE, ids=["countdown", "eta"])
def test_the_broker_holds_a_task_until_it_is_due(
    shop: Shop, due: Callable[[], dict[str, Any]]
) -> None:
    """The worker has run a later task, and has nothing else: the task is at the broker, and is
    locked for nobody."""
    with shop.worker("idle") as started:
        shop.send("add", 1, 1, **due())
        assert get(shop.send("add", 2, 2)) == 4
        inspect = shop.app.control.inspect([started.name], timeout=LIMIT_S)
        assert inspect.scheduled() == {started.name: []}
        assert inspect.reserved() == {started.name: []}
        wait_until(lambda: shop.stats().in_flight == 0, "no worker has a task")
        assert shop.stats().depth + (shop.stats().scheduled or 0) >= 1


def test_a_task_runs_when_it_is_due_and_its_first_worker_is_dead(shop: Shop) -> None:
    notes = shop.folder / "notes"
    with shop.worker("killed") as killed:
        assert get(shop.send("add", 1, 1)) == 2
        due = eta_in(patient(6.0))
        result = shop.send("note_time", str(notes), eta=due)
        killed.kill()
    with shop.worker("next"):
        get(result)
    (ran_at,) = (float(line) for line in lines(notes))
    assert ran_at >= due.timestamp()


def test_a_retry_of_a_task_waits_at_the_broker(shop: Shop) -> None:
    attempts = shop.folder / "attempts"
    with shop.worker("retrying"):
        assert get(shop.send("third_time", str(attempts))) == 2
    assert lines(attempts) == ["attempt 0", "attempt 1", "attempt 2"]


def test_urgent_tasks_overtake_others(shop: Shop) -> None:
    """All tasks wait while the only worker is busy. The levels share the worker in proportion to
    their weights, so the urgent tasks do not all come first, but the last of them comes before
    half of the others."""
    shop.app.conf.task_queue_max_priority = 3
    started, go, notes = (shop.folder / name for name in ("started", "go", "notes"))
    shop.send("wait_for", str(started), str(go))  # It declares the queue.
    with shop.worker("busy"):
        wait_until(lambda: lines(started), "the worker is busy")
        for _ in range(30):
            shop.send("note", str(notes), "usual", priority=0)
        for _ in range(5):
            shop.send("note", str(notes), "urgent", priority=3)
        go.touch()
        wait_until(lambda: len(lines(notes)) == 35, "all tasks have run")
    order = lines(notes)
    last_urgent = len(order) - 1 - order[::-1].index("urgent")
    assert order[last_urgent:].count("usual") >= 15, order
