"""Starts and stops the web console that `penstock up` runs as a separate process.

This module is separate from the `console` command, which imports the client. A broker starts faster
without the client.
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
    """The web console of `penstock up`. It listens on loopback and stops with the brokers.

    As a separate process it takes no time from a broker's event loop. If it fails to start, the
    brokers run without it.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, addresses: list[str], *options: str) -> None:
        if not self._wanted:
            return
        command = [*PROGRAM, "--bootstrap", ",".join(addresses), "--port", str(DEFAULT_PORT)]
        self._process = subprocess.Popen(  # noqa: S603 -- our own program, our own words
            [*command, "--any-port", "--stop-with-stdin", *options],
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
