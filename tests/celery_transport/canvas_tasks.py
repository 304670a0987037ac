"""Tasks of the canvas examples: they replace, retry, abort and reject themselves."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from celery import Celery, chord, group
from celery.contrib.abortable import AbortableTask
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_transport.task_registry import append, task
from penstock.runtime import SystemClock


def add_canvas_tasks(app: Celery) -> None:
    _add_replacing_tasks(app)
    _add_failing_tasks(app)
    _add_endless_tasks(app)


def _add_replacing_tasks(app: Celery) -> None:
    @task(app, "answer")
    def answer(value: Any = 42) -> Any:
        return value

    @task(app, "describe", bind=True)
    def describe(self: Any, *_: object) -> dict[str, Any]:
        """Returns what the message of the task said about it."""
        request = self.request
        names = request.stamped_headers or []
        return {
            "stamps": {name: request.stamps[name] for name in names if name in request.stamps},
            "tenant": (request.headers or {}).get("tenant"),
            "priority": request.delivery_info["priority"],
            "routing_key": request.delivery_info["routing_key"],
        }

    @task(app, "note_stamps", bind=True)
    def note_stamps(self: Any, _: object, path: str) -> None:
        append(path, ",".join(sorted(self.request.stamped_headers or [])))

    @task(app, "replace_with_task", bind=True)
    def replace_with_task(self: Any, x: int, y: int) -> Any:
        raise self.replace(app.signature("add", args=(x, y)))

    @task(app, "replace_with_chain", bind=True)
    def replace_with_chain(self: Any, x: int) -> Any:
        raise self.replace(app.signature("add", args=(x, 1)) | app.signature("mul", args=(10,)))

    @task(app, "replace_with_group", bind=True)
    def replace_with_group(self: Any, count: int) -> Any:
        raise self.replace(group(app.signature("add", args=(n, n)) for n in range(count)))

    @task(app, "replace_with_chord", bind=True)
    def replace_with_chord(self: Any, count: int) -> Any:
        squares = (app.signature("mul", args=(n, n)) for n in range(count))
        raise self.replace(chord(squares, app.signature("total")))

    @task(app, "grow_chord", bind=True)
    def grow_chord(self: Any) -> int:
        self.add_to_chord(app.signature("add", args=(1, 1)))
        return 0


def _add_failing_tasks(app: Celery) -> None:
    @task(
        app,
        "back_off",
        bind=True,
        autoretry_for=(ConnectionError,),
        retry_backoff=True,
        retry_jitter=False,
        max_retries=5,
    )
    def back_off(self: Any, path: str) -> int:
        """Fails twice, and is tried again after one second and then after two."""
        append(path, str(SystemClock().wall_ms()))
        if self.request.retries < 2:
            raise ConnectionError("not yet")
        return int(self.request.retries)

    @task(
        app,
        "give_up",
        autoretry_for=(ConnectionError,),
        default_retry_delay=0,
        max_retries=1,
    )
    def give_up(path: str) -> None:
        append(path, "attempt")
        raise ConnectionError("nobody is there")

    @task(app, "retry_without_error", bind=True, max_retries=0)
    def retry_without_error(self: Any) -> None:
        raise self.retry(countdown=0)

    @task(app, "ignore_itself", bind=True)
    def ignore_itself(self: Any) -> None:
        self.update_state(state="SKIPPED")
        raise Ignore

    @task(app, "reject_once", bind=True, acks_late=True)
    def reject_once(self: Any, path: str) -> str:
        """Puts itself back the first time, and runs when it comes again."""
        is_first = not Path(path).exists()
        append(path, str(bool(self.request.delivery_info.get("redelivered"))))
        if is_first:
            raise Reject("not now", requeue=True)
        return "ran"

    @task(app, "reject_for_good", bind=True, acks_late=True)
    def reject_for_good(self: Any, path: str) -> None:
        append(path, "rejected")
        raise Reject("never", requeue=False)


def _add_endless_tasks(app: Celery) -> None:
    @task(app, "run_until_aborted", bind=True, base=AbortableTask)
    def run_until_aborted(self: Any, path: str) -> str:
        append(path, "started")
        while not self.is_aborted():
            threading.Event().wait(0.05)
        return "aborted"

    @task(app, "run_until_told", bind=True)
    def run_until_told(self: Any, started: str, go: str) -> str:
        """Says in which process it runs, until the file `go` exists or its soft time limit ends."""
        append(started, str(os.getpid()))
        try:
            while not Path(go).exists():
                threading.Event().wait(0.02)
        except SoftTimeLimitExceeded:
            return "in time"
        return "told"
