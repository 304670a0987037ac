"""Runs a project's pipeline in a separate process and reports its events.

Problems that can be found without a JVM are reported before one is started: a missing Java, a
broker that does not answer, a topic that cannot be created. Then the driver process is started, in
its own process session so that Ctrl-C reaches only this process, and its events are passed on until
it ends. However a run ends, no process is left running.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

from penstock.client.blocking.admin import Admin
from penstock.client.errors import BrokerError
from penstock.ports import Clock
from penstock.spark.home import make_home
from penstock.spark.java import JavaMissing, check_java
from penstock.spark.pipelines import state_files
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.events import ENDED, RunView, read_event
from penstock.spark.pipelines.project import BOOTSTRAP_SETTING, Project
from penstock.wire.errors import ErrorCode

_log = logging.getLogger(__name__)
_STOP_S: Final = 20.0
_SAVE_EVERY_S: Final = 1.0
_CONNECT_TIMEOUT_MS: Final = 5_000
_TIMEOUT_MS: Final = 15_000


@dataclass(frozen=True, slots=True)
class RunOptions:
    master: str = "local[*]"
    bootstrap: str = ""
    """If empty, the project's setting is used."""
    continuous: bool = False
    interval_s: float = 1.0
    """The pause between two rounds of a continuous run."""
    dry: bool = False
    full_refresh: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    """Spark settings, which override those of the project."""


def check_spark() -> None:
    """Raises `PipelineError`, with one line, if PySpark or Java is missing on this machine."""
    if find_spec("pyspark") is None or find_spec("grpc") is None:
        raise PipelineError('pipelines need PySpark: pip install "penstock[spark]"')
    try:
        check_java()
    except JavaMissing as error:
        raise PipelineError(str(error)) from None


def prepare_topics(bootstrap: str, topics: Mapping[str, int]) -> list[str]:
    """Creates the topics that do not exist, and returns their names."""
    if not topics:
        return []
    made = []
    with Admin(
        bootstrap,
        request_timeout_ms=_TIMEOUT_MS,
        default_api_timeout_ms=_TIMEOUT_MS,
        socket_connection_setup_timeout_ms=_CONNECT_TIMEOUT_MS,
    ) as admin:
        for name, found in admin.describe_topics(list(topics)).items():
            if isinstance(found, BrokerError):
                if found.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise found
                try:
                    admin.create_topic(name, topics[name])
                except BrokerError as error:
                    if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise
                made.append(name)
    return made


class Run:
    """One run. Iterate over `events` to run it to its end; `view` is the sum of its events."""

    def __init__(self, project: Project, options: RunOptions, clock: Clock) -> None:
        self.view = RunView(project.name)
        self._project = project
        self._options = options
        self._clock = clock
        self._started_ms = clock.wall_ms()
        self._saved_at = clock.monotonic()
        self._driver: subprocess.Popen[bytes] | None = None
        self._asked_to_stop = False

    def events(self) -> Iterator[Mapping[str, Any]]:
        root = self._project.root
        last = state_files.load_run(root)
        if last is not None and last.content.get("state") not in ENDED and not last.interrupted:
            raise PipelineError(
                f"process {last.content.get('pid')} is already running {self._project.name}: "
                "stop that process first"
            )
        state_files.remember(root)
        self._save()
        try:
            with self._spawned() as told:
                for line in told:
                    try:
                        event = read_event(line)
                        self.view.apply(event)
                    except Exception as error:  # noqa: BLE001 - whatever it wrote, it is read on
                        _log.warning(
                            "ignored an invalid event of the driver: %s: %s", error, line[:200]
                        )
                        continue
                    self._save_now_and_then()
                    yield event
            if self.view.state not in ENDED:
                self._on_silence()
                yield {"event": "end", "state": self.view.state, "error": self.view.error}
        finally:
            if self.view.state not in ENDED:
                self.view.apply({"event": "end", "state": "STOPPED"})
            self._save()

    def stop(self) -> None:
        """Stops the run after its current round; a second call stops it at once. `events` then
        ends. Safe to call from a signal handler."""
        if self._driver is not None and self._driver.poll() is None:
            self._driver.send_signal(signal.SIGTERM if self._asked_to_stop else signal.SIGUSR1)
            self._asked_to_stop = True

    @property
    def log_path(self) -> Path:
        return state_files.log_path(self._project.root)

    @contextmanager
    def _spawned(self) -> Iterator[IO[str]]:
        receiving, sending = os.pipe()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with (
            self.log_path.open("wb") as log,
            os.fdopen(receiving, encoding="utf-8", errors="replace") as told,
        ):
            try:
                self._driver = subprocess.Popen(  # noqa: S603 (this program)
                    self._command(sending),
                    cwd=self._project.root,
                    env=self._environment(),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(sending,),
                    start_new_session=True,
                )
            finally:
                os.close(sending)
            try:
                yield told
            finally:
                self._end()

    def _end(self) -> None:
        driver = self._driver
        assert driver is not None
        if driver.stdin is not None:
            driver.stdin.close()  # This ends the driver, if it has not ended already.
        try:
            driver.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
        # The JVM and its workers are in the same process group.
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)

    def _command(self, events: int) -> list[str]:
        options = self._options
        settings = dict(options.settings)
        if options.bootstrap:
            settings[BOOTSTRAP_SETTING] = options.bootstrap
        command = [sys.executable, "-m", "penstock.spark.pipelines.driver"]
        command += ["--spec", str(self._project.spec), "--master", options.master]
        command += ["--settings", json.dumps(settings), "--events", str(events)]
        command += ["--interval-s", str(options.interval_s)]
        command += ["--dry"] if options.dry else []
        command += ["--continuous"] if options.continuous else []
        command += ["--full-refresh"] if options.full_refresh else []
        return command

    def _environment(self) -> dict[str, str]:
        """Returns the driver's environment. Spark must run this Python, which has the format."""
        kept = {name: value for name, value in os.environ.items() if name not in CONNECT_MODE}
        if self._options.master.startswith("local"):
            kept.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            with suppress(OSError):  # Without symbolic links the run is only slower.
                kept.update(make_home(self.log_path.parent / "spark-home"))
        return {
            **kept,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONUNBUFFERED": "1",
        }

    def _on_silence(self) -> None:
        assert self._driver is not None
        if self._asked_to_stop:
            self.view.apply({"event": "end", "state": "STOPPED"})
            return
        code = self._driver.returncode
        self.view.apply(
            {
                "event": "end",
                "state": "FAILED",
                "error": f"the driver exited with code {code} without an error message: "
                f"see {self.log_path}",
            }
        )

    def _save_now_and_then(self) -> None:
        now = self._clock.monotonic()
        if now - self._saved_at >= _SAVE_EVERY_S:
            self._saved_at = now
            self._save()

    def _save(self) -> None:
        if self._options.dry:
            return
        with suppress(OSError):
            state_files.save_run(
                self._project.root,
                {
                    **self.view.as_dict(),
                    "pid": os.getpid(),
                    "master": self._options.master,
                    "continuous": self._options.continuous,
                    "started_ms": self._started_ms,
                    "updated_ms": self._clock.wall_ms(),
                },
            )


CONNECT_MODE: Final = frozenset(
    {"SPARK_REMOTE", "SPARKCONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", "SPARK_API_MODE"}
)
"""Variables that pyspark leaves in the environment of a process that has used Connect."""
