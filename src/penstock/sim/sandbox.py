"""Raises an error when simulated code uses real clocks, randomness, files, sockets or threads.

Clocks and randomness are replaced in their modules during a run. An audit hook watches the rest.
Python cannot remove such a hook, so it is installed once and switched by a flag. Only the thread of
the run is watched. Reading the code itself is allowed (imports, tracebacks), and so is the clock
for the `logging` module, because the timestamps of log records are not used. A module that is
imported during a run is not compiled into a file.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - replaced here
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final


class NotSimulated(Exception):
    """Simulated code used something of the real world."""


_CLOCKS: Final = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "sleep",
)
_DRAWS: Final = (
    "random",
    "randrange",
    "randint",
    "randbytes",
    "getrandbits",
    "uniform",
    "choice",
    "choices",
    "sample",
    "shuffle",
    "_urandom",
)
_FORBIDDEN_EVENTS: Final = (
    "socket.",
    "subprocess.",
    "os.fork",
    "os.exec",
    "os.system",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.truncate",
    "sqlite3.",
)
_CODE: Final = (".py", ".pyc", ".so", "METADATA", "entry_points.txt")
_STAMPERS: Final = ("logging", "traceback", "linecache")

_thread: int | None = None
_found: list[str] = []
_watching = False


@contextmanager
def sandbox() -> Iterator[list[str]]:
    """Watches while the context lasts. Yields the list of violations."""
    global _thread, _found, _watching  # noqa: PLW0603 - an audit hook belongs to the process
    if not _watching:
        _watching = True
        sys.addaudithook(_audit)
    originals: list[tuple[Any, str, Any]] = []
    doors: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (time, _CLOCKS),
        (random, _DRAWS),
        (os, ("urandom",)),
        (threading.Thread, ("start",)),
    )
    for owner, names in doors:
        for name in names:
            original = getattr(owner, name)
            originals.append((owner, name, original))
            setattr(owner, name, _trap(f"{owner.__name__}.{name}", original))
    found: list[str] = []
    _found = found
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _thread = threading.get_ident()
    try:
        yield found
    finally:
        _thread = None
        sys.dont_write_bytecode = writes_none
        for owner, name, original in originals:
            setattr(owner, name, original)


def _trap(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def trapped(*args: Any, **options: Any) -> Any:
        if (
            _thread != threading.get_ident()
            or sys._getframe(1).f_globals.get("__name__") in _STAMPERS
        ):
            return original(*args, **options)
        raise _tripped(name)

    return trapped


def _tripped(what: str) -> NotSimulated:
    said = f"{what} was used in a simulation: use the port instead"
    _found.append(said)
    return NotSimulated(said)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _thread is None or _thread != threading.get_ident():
        return
    if event == "open":
        path, mode = args[0], args[1]
        reading = mode in (None, "r", "rb", "rt") and not (args[2] & (os.O_WRONLY | os.O_RDWR))
        if not (reading and str(path).endswith(_CODE)):
            raise _tripped(f"open({path!r}, {mode!r})")
    elif event.startswith(_FORBIDDEN_EVENTS):
        raise _tripped(event)
