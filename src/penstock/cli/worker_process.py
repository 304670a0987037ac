"""Starts and stops the pipeline worker that `penstock up` runs as a separate process.

The worker starts no Java before a pipeline is deployed, so it costs little until then.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from typing import Final

PROGRAM: Final = (sys.executable, "-m", "penstock.cli.main", "pipeline", "worker")
_ROUND_S: Final = 40.0
"""A worker gives rounds 30 seconds to end, and then leaves its group."""
_STOP_S: Final = 3.0
"""How long it may take after it was told to stop at once."""
_LOOK_S: Final = 0.1
_STDERR: Final = 2
METRICS_OFFSET: Final = 1_100
"""The metrics of the worker are on the port of the first broker plus this. Those of the brokers, at
most 64, are on their ports plus 1,000."""
_PORT_MAX: Final = 65_535


class WorkerProcess:
    """The worker of `penstock up`. It stops before the brokers, so that rounds can be completed. If
    it fails to start, the brokers run without it."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._process: subprocess.Popen[bytes] | None = None
        self._hurry = threading.Event()

    def start(self, addresses: list[str], data: str, *, with_metrics: bool = True) -> None:
        if not self._wanted or not has_spark():
            return
        command = [*PROGRAM, "--bootstrap", ",".join(addresses), "--data", f"{data}/worker"]
        if with_metrics:
            # Another port if that one is in use: the worker prints which.
            port = int(addresses[0].rpartition(":")[2]) + METRICS_OFFSET
            port = port if port <= _PORT_MAX else 0
            command += ["--metrics-port", str(port), "--metrics-moves"]
        self._process = subprocess.Popen(  # noqa: S603 -- our own program, our own words
            [*command, "--stop-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=_STDERR,
            start_new_session=True,
        )

    async def stop(self) -> None:
        """Stops it, after the rounds of its pipelines. If cancelled, it stops at once."""
        if self._process is None:
            return
        try:
            await asyncio.to_thread(self.close)
        except asyncio.CancelledError:
            self._hurry.set()
            raise

    def close(self) -> None:
        """Waits until it has ended."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        # First it lets rounds end, then it stops them, then it is killed.
        self._wait(process, _ROUND_S)
        for harder in (process.terminate, process.kill):
            if process.poll() is None:
                harder()
                self._wait(process, _STOP_S)
        process.wait()

    def _wait(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        """Waits for the end of the process, not for long if that is urgent."""
        for _ in range(round(seconds / _LOOK_S)):
            if process.poll() is not None or (self._hurry.is_set() and seconds > _STOP_S):
                return
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)


def has_spark() -> bool:
    """Whether PySpark and a Java are there. The worker itself checks the version of Java."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    return find_spec("pyspark") is not None and java is not None
