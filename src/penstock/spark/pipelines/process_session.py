"""The processes of a driver: itself, the JVM, and Spark's Python workers.

Spark's Python workers are in a process group of their own, but all of them are in the session that
the driver began. Linux lists sessions in /proc. On other systems only the process group of the
driver is known.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


def kill_session(session: int) -> bool:
    """Kills all processes of a session but this one. Returns whether there were any."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgrp() != session:
            os.killpg(session, signal.SIGKILL)
    found = False
    for process in processes():
        if process.session == session and process.pid != os.getpid():
            found = True
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    return found


def kill_own_session() -> None:
    """Ends this process and all that it has started. Only for a process that began its session."""
    kill_session(os.getsid(0))
    os.killpg(os.getpgrp(), signal.SIGKILL)
