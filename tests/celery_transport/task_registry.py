"""What the modules with tasks share: how a task is added, and how it writes to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from celery import Celery

F = TypeVar("F", bound=Callable[..., Any])


def task(app: Celery, name: str, **options: object) -> Callable[[F], F]:
    """Adds a function to an application. Celery's decorator has no types."""

    def add(function: F) -> F:
        app.task(name=name, **options)(function)
        return function

    return add


def append(path: str, line: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
