"""The console that `penstock up` brings along: a program of its own, started and stopped here.

Apart from the command, which loads what talks to clusters: a broker starts without that.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

DEFAULT_PORT: Final = 8090
PROGRAM: Final = (sys.executable, "-m", "penstock.console.main")
_STOP_S: Final = 5.0
_STDERR: Final = 2


class ConsoleProcess:
    """A console beside the brokers of `penstock up`: on loopback, gone when they are.

    In a process of its own, it takes nothing from the event loop of a broker, and one that fails
    to start is only missed."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, addresses: list[str]) -> None:
        if not self._wanted:
            return
        command = [*PROGRAM, "--bootstrap", ",".join(addresses), "--port", str(DEFAULT_PORT)]
        self._process = subprocess.Popen(  # noqa: S603 -- our own program, our own words
            [*command, "--any-port", "--stop-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=_STDERR,
            start_new_session=True,
        )

    def close(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
