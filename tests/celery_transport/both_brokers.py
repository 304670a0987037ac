"""What a test needs to run the same tasks on Penstock and on RabbitMQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery

from celery_transport.task_workers import LIMIT_S, Worker

QUEUE = "canvas"


class Setup(NamedTuple):
    """A broker, a worker with two processes, and an application that sends tasks to it."""

    app: Celery
    worker: Worker
    folder: Path

    def task(self, name: str, *args: Any, **options: Any) -> Any:
        """Returns the signature of a task."""
        return self.app.signature(name, args=args, **options)


def get(result: Any) -> Any:
    """Waits for a result and returns it, or raises what the task raised."""
    return result.get(timeout=LIMIT_S, interval=0.05)
