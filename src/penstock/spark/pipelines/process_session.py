"""The processes of a driver: itself, the JVM, Spark's Python workers, and what its code starts.

Spark's Python workers are in a process group of their own, but in the session that the driver
began. A program that the code starts may begin a session of its own. It is found by the mark of the
driver, which all of them have in their environment. Linux has sessions and environments in /proc.
On other systems only the process group of the driver is known.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DRIVER_VARIABLE: Final = "PENSTOCK_PIPELINE_DRIVER"
"""The variable with the mark of a driver, in the environment of all its processes."""
_OWN_MARK: Final = os.environ.get(DRIVER_VARIABLE, "")
"""Read at the start: the code of a pipeline may change the environment."""
_AGAIN_S: Final = 0.02
_LOOKS_MAX: Final = 50
_PROC: Final = Path("/proc")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_ZOMBIE: Final = b"Z"


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    session: int
    rss_bytes: int


def processes() -> list[Process]:
    """Returns the processes of this machine that still run; none if there is no /proc."""
    return [process for pid in _pids() if (process := _process(pid)) is not None]


def _pids() -> list[int]:
    names = os.listdir(_PROC) if _PROC.is_dir() else []
    return [int(name) for name in names if name.isdecimal()]


def _process(pid: int) -> Process | None:
    """Returns a process that runs; None if it has ended."""
    with suppress(OSError, ValueError, IndexError):
        stat = (_PROC / str(pid) / "stat").read_bytes()
        # The second field is the name in parentheses, which may contain anything.
        fields = stat[stat.rindex(b")") + 2 :].split()
        if fields[0] != _ZOMBIE:
            return Process(pid, int(fields[3]), int(fields[21]) * _PAGE)
    return None


def memory_of(sessions: Collection[int]) -> dict[int, int]:
    """Returns the resident memory of these sessions' processes, in bytes. Of other processes it
    reads nothing: a machine may have thousands, and this is called every other second."""
    found: dict[int, int] = {}
    for pid in _pids():
        with suppress(OSError):  # It has ended in the meantime.
            if os.getsid(pid) not in sessions:
                continue
            process = _process(pid)
            if process is not None and process.session in sessions:
                found[process.session] = found.get(process.session, 0) + process.rss_bytes
    return found


def sessions_with(variable: str, value: str) -> set[int]:
    """Returns the sessions with processes that have this variable in their environment."""
    mark = f"{variable}={value}".encode()
    found = set()
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if entry.name.isdecimal():
            # It has ended in the meantime, or belongs to another user.
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(os.getsid(int(entry.name)))
    return found


def kill_session(session: int) -> bool:
    """Kills all processes of a session but this one. Returns whether there were any."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgrp() != session:
            os.killpg(session, signal.SIGKILL)
    found = False
    for process in processes():
        if process.session == session and process.pid != os.getpid():
            with suppress(PermissionError):  # It runs as another user: nothing can be done.
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                found = True
    return found


def kill_driver(session: int, mark: str) -> bool:
    """Kills all processes of a driver but this one, by its session and its mark. Returns whether
    there were any: then look again, because one of them may have started another one."""
    sessions = {session} | (sessions_with(DRIVER_VARIABLE, mark) if mark else set())
    return sum(kill_session(each) for each in sessions) > 0  # All of them, in contrast to `any`.


def kill_own_session() -> None:
    """Ends this process and all that it has started. Only for a process that began its session."""
    session = os.getsid(0)
    for _ in range(_LOOKS_MAX):  # A process that cannot end must not keep this one.
        if not kill_driver(session, _OWN_MARK):
            break
        threading.Event().wait(_AGAIN_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)
