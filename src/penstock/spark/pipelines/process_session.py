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
    found = []
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError, ValueError, IndexError):  # It has ended in the meantime.
            stat = (entry / "stat").read_bytes()
            # The second field is the name in parentheses, which may contain anything.
            fields = stat[stat.rindex(b")") + 2 :].split()
            if fields[0] != _ZOMBIE:
                found.append(Process(int(entry.name), int(fields[3]), int(fields[21]) * _PAGE))
    return found


def memory_by_session() -> dict[int, int]:
    """Returns the resident memory of each session's processes, in bytes."""
    found: dict[int, int] = {}
    for process in processes():
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
