"""Copiers of one group, each a process that keeps its transactional id over restarts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from compat.java_build import VERSIONS, compiled
from penstock.testing.slowness import patient

from .broker_processes import NotInTime, wait_for

COUNT = 3
UNANSWERED = "Timed out"
BEGIN_S = 90.0
STOP_S = 150.0
PATH = [
    str(Path(__file__).resolve().parents[1]),
    *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
]
JAVA = {f"java-{version}": version for version in VERSIONS}
CLIENTS = ("confluent", "ours", *JAVA)
JAVA_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m")


class NotHere(Exception):
    """This client is not available on this machine; the message says why."""


def program(client: str, directory: Path) -> list[str]:
    """Returns the command of a copier with this client, without its arguments."""
    if client not in JAVA:
        return [sys.executable, "-m", "chaos.transactions_copier", client]
    classes = directory / client
    classes.mkdir(parents=True, exist_ok=True)
    try:
        path = compiled(JAVA[client], classes, "Copier")
    except pytest.skip.Exception as missing:
        raise NotHere(str(missing)) from None
    return ["java", *JAVA_FLAGS, "-cp", path, "Copier"]


class Copier:
    """One copier: its current or last process, and the output of all its processes."""

    def __init__(self, name: str, command: list[str], output: Path) -> None:
        self.name = name
        self.output = output
        self.process: subprocess.Popen[bytes] | None = None
        self.errors = output.with_suffix(".errors")
        self._lives = 0
        self._errors_from = 0
        self._command = command

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launch(self) -> None:
        assert not self.is_running, f"{self.name} runs already"
        self._errors_from = self.errors.stat().st_size if self.errors.exists() else 0
        self._lives = self.told()["began"] + 1
        with self.output.open("ab") as out, self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(PATH)},
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._reap()

    def stop(self) -> None:
        """Sends SIGTERM and waits until the copier has ended its transaction and left the group."""
        assert self.process is not None
        wait_for(f"{self.name} begins", self._has_begun, BEGIN_S)
        before = self.told()["stopped"]
        self.process.terminate()
        self._reap()
        if self.told()["stopped"] == before:
            raise NotInTime(f"{self.name} did not stop as it should")

    def _has_begun(self) -> bool:
        return self.told()["began"] >= self._lives or not self.is_running

    def _reap(self) -> None:
        assert self.process is not None and self.process.stdin is not None
        try:
            self.process.wait(patient(STOP_S))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise NotInTime(f"{self.name} does not end") from None
        finally:
            self.process.stdin.close()

    def lines(self) -> list[dict[str, object]]:
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def told(self) -> Counter[str]:
        """Returns how often each event was reported: aborted, stopped, fatal ..."""
        return Counter(kind for line in self.lines() for kind in line)

    def complaints(self) -> list[str]:
        """Returns what its last process wrote to standard error."""
        if not self.errors.exists():
            return []
        with self.errors.open("rb") as file:
            file.seek(self._errors_from)
            return file.read().decode(errors="replace").splitlines()

    @property
    def is_hung(self) -> bool:
        """Whether it ended because its library hung although all requests were answered."""
        told_so = any("hung" in line for line in self.lines()[-1:])
        return told_so and not any(UNANSWERED in line for line in self.complaints())

    def said(self) -> str:
        return "; ".join([*map(json.dumps, self.lines()[-3:]), *self.complaints()[-5:]])


class CopierProcesses:
    def __init__(self, directory: Path, command: Callable[[str], list[str]]) -> None:
        self.copiers = [
            Copier(name, command(name), directory / f"{name}.out")
            for name in (f"copier-{index}" for index in range(COUNT))
        ]
        self.ended: list[str] = []
        """The last output of copiers that ended by themselves, or would not end."""
        self.hung = 0
        """How many copiers ended because their library hung."""

    def start(self) -> None:
        for copier in self.copiers:
            copier.launch()

    def tend(self) -> None:
        """Restarts copiers that have ended by themselves, as a supervisor would."""
        for copier in self.copiers:
            if not copier.is_running:
                self._note(copier, "ended by itself")
                copier.launch()

    def stop(self) -> None:
        self.tend()
        for copier in self.copiers:
            self.stop_one(copier)

    def stop_one(self, copier: Copier) -> None:
        try:
            copier.stop()
        except NotInTime:
            self._note(copier, "did not stop as it should")

    def _note(self, copier: Copier, what: str) -> None:
        if copier.is_hung:
            self.hung += 1
        else:
            self.ended.append(f"{copier.name} {what}: {copier.said()}")

    def kill(self) -> None:
        for copier in self.copiers:
            copier.kill()

    def aborts(self) -> Counter[str]:
        """Returns the reasons of all aborted transactions, shortened."""
        return Counter(
            str(line["aborted"])[:90]
            for copier in self.copiers
            for line in copier.lines()
            if "aborted" in line
        )
