"""Spark processes for tests: a standalone cluster, a Connect server, a driver.

They are started from the pip installation, listen on loopback only, and end with the tests in every
case: the kernel kills each when its parent process dies. Executors end with their worker, and
Python workers with their executor.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pyspark

from penstock.runtime import SystemClock, SystemRandom
from penstock.spark.home import make_home
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient

HOST = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For short-lived processes: an optimizing compiler would cost more than it saves."""
START_S = 200.0
CALL_S = 200.0
_STOP_S = 50.0

_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class SparkFailed(Exception):
    """A Spark process failed; the message ends with its output."""


def environment(**more: str) -> dict[str, str]:
    """Returns an environment in which Spark uses this Python installation, and
    so finds the data source."""
    return {
        **{name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"},
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        **more,
    }


class Process:
    """A process whose output goes to a file."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._clock = SystemClock()
        with self.log.open("wb") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", _DIE_WITH_PARENT, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(env),
                cwd=folder,
            )

    def wait_for(self, pattern: str, timeout_s: float = START_S) -> re.Match[str]:
        """Waits until the log contains the pattern."""
        end = self._clock.monotonic() + patient(timeout_s)
        pause = threading.Event()
        while True:
            if found := re.search(pattern, self.log.read_text("utf-8", "replace")):
                return found
            if self.popen.poll() is not None:
                raise self.failed(f"ended with {self.popen.returncode}")
            if self._clock.monotonic() > end:
                raise self.failed(f"did not write {pattern!r} within {timeout_s:g} s")
            pause.wait(0.05)

    def failed(self, what: str) -> SparkFailed:
        tail = "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-40:])
        return SparkFailed(f"{self.name} {what}; it wrote:\n{tail}")

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(patient(_STOP_S))
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait(patient(_STOP_S))
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()


class Standalone:
    """A master, and workers with one core each, or with `cores`."""

    def __init__(self, workers: int = 2, cores: int = 1) -> None:
        self.url = ""
        self._cores = cores
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-standalone-"))
        self._workers = workers
        self.processes: list[Process] = []

    def __enter__(self) -> Self:
        port = free_port(SystemRandom(), HOST)
        self.url = f"spark://{HOST}:{port}"
        # The master's REST server has its own port, which may be taken, and is not needed here.
        # Executors that are killed are always replaced.
        options = f"{JAVA_OPTIONS} -Dspark.master.rest.enabled=false"
        options += " -Dspark.deploy.maxExecutorRetries=-1"
        env = environment(
            SPARK_DAEMON_MEMORY="256m",
            SPARK_DAEMON_JAVA_OPTS=options,
            # Python workers of executors start faster in this home.
            **make_home(self.folder / "home"),
        )
        try:
            # A worker retries until its master is up, so all can be started at once.
            self._start("master", env, "deploy.master.Master", "--port", str(port))
            for number in range(self._workers):
                home = str(self.folder / f"worker-{number}")
                size = ("--cores", str(self._cores), "--memory", f"{self._cores}g")
                settings = (*size, "--work-dir", home, self.url)
                self._start(f"worker-{number}", env, "deploy.worker.Worker", *settings)
            for process in self.processes[1:]:
                process.wait_for("Successfully registered with master")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self.processes):
            process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, env: Mapping[str, str], kind: str, *arguments: str) -> None:
        spark_class = str(SPARK_HOME / "bin" / "spark-class")
        topic_partition = ("--host", HOST, "--webui-port", "0")
        command = [spark_class, f"org.apache.spark.{kind}", *topic_partition, *arguments]
        self.processes.append(Process(name, command, self.folder, env))


class Driver:
    """A process that runs jobs by name, one after another: `driver.call("count", topic="t")`.

    It is a separate process because a Python process can have only one Spark session of a kind.
    """

    def __init__(self, script: Path, folder: Path, settings: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(script), json.dumps(dict(settings))]
        self._process = Process("driver", command, folder, environment())
        stdout = self._process.popen.stdout
        assert stdout is not None
        self._stdout: IO[bytes] = stdout
        self._clock = SystemClock()
        self._unread = b""
        self._asked = "its start"
        self._answer: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        try:
            self.result(START_S)
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.stop()

    def call(self, job: str, **arguments: Any) -> Any:
        self.start(job, **arguments)
        return self.result()

    def start(self, job: str, **arguments: Any) -> None:
        """Starts a job; `result` waits for its end."""
        stdin = self._process.popen.stdin
        assert stdin is not None
        self._asked = job
        stdin.write(json.dumps({"job": job, "arguments": arguments}).encode() + b"\n")
        stdin.flush()

    def result(self, timeout_s: float = CALL_S) -> Any:
        """Waits for the job and returns its result."""
        end = self._clock.monotonic() + patient(timeout_s)
        while self._answer is None:
            left_s = end - self._clock.monotonic()
            if left_s <= 0:
                raise self._process.failed(f"took longer than {timeout_s:g} s for {self._asked}")
            self._listen(left_s)
        answer, self._answer = self._answer, None
        if "error" in answer:
            raise self._process.failed(f"failed at {self._asked}: {answer['error']}")
        return answer["result"]

    def check(self) -> None:
        """Raises if the job has already failed."""
        self._listen(0.0)
        if self._answer is not None and "error" in self._answer:
            self.result()

    def _listen(self, timeout_s: float) -> None:
        """Reads the answers of the driver; other output of the JVM is skipped."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return
        said = os.read(self._stdout.fileno(), 1 << 16)
        if not said:
            raise self._process.failed("ended")
        *lines, self._unread = (self._unread + said).split(b"\n")
        for line in lines:
            if line.startswith(b"ANSWER "):
                self._answer = json.loads(line.removeprefix(b"ANSWER "))
