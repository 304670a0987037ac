"""The Celery application that tests start workers of, and that they send tasks with.

A worker finds its broker, the folder of its results and its queue in the environment.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from celery import Celery

from celery_transport.canvas_tasks import add_canvas_tasks
from celery_transport.task_registry import append, task
from penstock.runtime import SystemClock

BROKER, RESULTS, QUEUE = "TASKS_BROKER", "TASKS_RESULTS", "TASKS_QUEUE"


def make_app(broker: str, results: str, queue: str) -> Celery:
    """Returns an application with all tasks of the tests."""
    app = Celery("tasks", broker=broker, backend=results, set_as_current=False)
    app.conf.update(
        task_default_queue=queue,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        result_extended=True,
        task_track_started=True,
        worker_send_task_events=True,
        task_send_sent_event=True,
        worker_hijack_root_logger=False,
        task_allow_error_cb_on_chord_header=True,
        # How often a chord looks whether its group is done.
        result_chord_retry_interval=0.2,
    )
    _add_tasks(app)
    _add_tasks_with_files(app)
    add_canvas_tasks(app)
    return app


def _add_tasks(app: Celery) -> None:
    @task(app, "add")
    def add(x: int, y: int) -> int:
        return x + y

    @task(app, "mul")
    def mul(x: int, y: int) -> int:
        return x * y

    @task(app, "total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @task(app, "fail")
    def fail(text: str) -> None:
        raise ValueError(text)

    @task(app, "note")
    def note(path: str, text: str) -> None:
        append(path, text)

    @task(app, "note_failure")
    def note_failure(request: Any, error: Any, traceback: Any, path: str) -> None:
        append(path, str(error))


def _add_tasks_with_files(app: Celery) -> None:
    @task(app, "third_time", bind=True, max_retries=5)
    def third_time(self: Any, path: str) -> int:
        """Fails twice, and is tried again."""
        append(path, f"attempt {self.request.retries}")
        if self.request.retries < 2:
            raise self.retry(countdown=0.1)
        return int(self.request.retries)

    @task(app, "note_time")
    def note_time(path: str) -> None:
        """Writes down when it runs, in seconds since 1970."""
        append(path, str(SystemClock().wall_ms() / 1000))

    @task(app, "wait_for", bind=True, acks_late=True)
    def wait_for(self: Any, started: str, go: str) -> bool:
        """Says that it has started, and ends when the file `go` exists. Returns whether it was
        delivered before."""
        redelivered = bool(self.request.delivery_info.get("redelivered"))
        append(started, f"{os.getpid()} {redelivered}")
        while not Path(go).exists():
            threading.Event().wait(0.02)
        return redelivered


if BROKER in os.environ:
    app = make_app(os.environ[BROKER], os.environ[RESULTS], os.environ[QUEUE])
