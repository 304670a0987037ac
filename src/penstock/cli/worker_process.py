"""Starts and stops the pipeline worker that `penstock up` runs as a separate process.

The worker starts no Java before a pipeline is deployed, so it costs little until then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import Final

PROGRAM: Final = (sys.executable, "-m", "penstock.cli.main", "pipeline", "worker")
_STOP_S: Final = 3.0
"""Short: the brokers are gone already, so no round can be completed."""
_STDERR: Final = 2
METRICS_OFFSET: Final = 1_100
"""The metrics of the worker are on the port of the first broker plus this. Those of the brokers, at
most 64, are on their ports plus 1,000."""
_PORT_MAX: Final = 65_535


class WorkerProcess:
    """The worker of `penstock up`. It stops with the brokers. If it fails to start, the brokers run
    without it."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._process: subprocess.Popen[bytes] | None = None

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

    def close(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        # First it lets rounds end, then it stops them, then it is killed.
        for harder in (process.terminate, process.kill):
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                harder()
        process.wait()


def has_spark() -> bool:
    """Whether PySpark and a Java are there. The worker itself checks the version of Java."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    return find_spec("pyspark") is not None and java is not None
