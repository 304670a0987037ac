"""A cluster started with `penstock up`, as its own process, on free ports."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from penstock.broker.config import METRICS_OFFSET
from penstock.testing.slowness import patient

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
READY_S = 100.0
STOP_S = 25.0
PORTS = range(3_000, 9_000)
"""Below those of `penstock.testing.ports`, which are not next to each other for one test process.
"""
SETTINGS = {
    # Kafka waits three seconds for more members before a group's first rebalance.
    "group.initial.rebalance.delay.ms": "0",
    # Some tests write records that are years old; retention must not delete them.
    "log.retention.check.interval.ms": "86400000",
}

_READY = re.compile(r"^ready bootstrap=(\S+)$", re.MULTILINE)


def free_ports(count: int) -> int:
    """Returns the first of `count` consecutive ports on which nothing listens.

    No outgoing connection has one of them, and no other process of pytest-xdist uses them: either
    could take the port of a broker while the broker is down.
    """
    ports = _own_ports()
    # A broker has its metrics at a port that is so much higher.
    room = max(len(ports) - METRICS_OFFSET, len(ports) // 2)
    for _ in range(50):
        first = random.choice(ports[: room - count])
        if all(_is_free(first + i) for i in range(count)):
            return first
    raise AssertionError(f"found no {count} neighbouring free ports")


def _own_ports() -> range:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "")
    if not (worker.isdecimal() and workers.isdecimal()):
        return PORTS
    each = len(PORTS) // int(workers)
    # A worker that replaces another has a number above the count of workers.
    first = PORTS[each * (int(worker) % int(workers))]
    return range(first, first + each)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
        return True


class Cluster:
    """Start it, use `bootstrap`, stop it. The data stays, so it can be started again."""

    def __init__(
        self, data: Path, brokers: int = 1, settings: Mapping[str, str] = SETTINGS
    ) -> None:
        self.data = data
        self.log = data.with_name(data.name + ".log")
        self.errors = data.with_name(data.name + ".errors")
        self.command = [PENSTOCK, "up", "--brokers", str(brokers), "--data", str(data)]
        self.command += ["--port", str(free_ports(brokers))]
        for key, value in settings.items():
            self.command += ["--set", f"{key}={value}"]
        self.process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""

    def start(self) -> str:
        with self.log.open("wb") as out, self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
            )
        deadline = time.monotonic() + patient(READY_S)
        pause = threading.Event()
        while time.monotonic() < deadline:
            if found := _READY.search(self.log.read_text(errors="replace")):
                self.bootstrap = found[1]
                return self.bootstrap
            if self.process.poll() is not None:
                break
            pause.wait(0.02)
        self.kill()
        raise AssertionError(
            f"`{' '.join(self.command)}` did not get ready in time:\n" + self.output()
        )

    def stop(self) -> int:
        """Sends SIGTERM, as a supervisor would. Returns the exit code; fails if it is slow."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(patient(STOP_S))
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                "`penstock up` did not stop in time after SIGTERM:\n" + self.output()
            ) from None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def output(self, lines: int = 200) -> str:
        """Returns the end of its stdout and stderr."""
        shown = []
        for path in (self.log, self.errors):
            text = path.read_text(errors="replace") if path.exists() else ""
            shown.append(f"--- {path.name}\n" + "\n".join(text.splitlines()[-lines:]))
        return "\n".join(shown)
