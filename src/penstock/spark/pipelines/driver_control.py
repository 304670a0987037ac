"""How a worker controls its driver: commands by standard input, and a watchdog for the lease.

One JSON object per line:

    {"assign": {...}}          the pipeline that this driver runs from now on, see `Assignment`
    {"lease": 1234.5}          the boot time at which the driver must have ended
    {"round": true}            begin a round
    {"preview": {...}}         read a few rows of a table, see `preview`
    {"stop": "soon"}           end after the current round
    {"stop": "now"}            end at once
    {"backfills": [...]}       all backfills that are wanted, see `BackfillRequest`

The end of standard input means that the worker has ended, and ends the driver at once. So does the
end of the lease. In both cases all processes of the driver are killed, with the JVM and its Python
workers: another worker may start the same pipeline a moment later.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from penstock.client.dataclass_json import builder
from penstock.runtime import boot_time
from penstock.spark.pipelines.process_session import kill_own_session
from penstock.spark.stream_position import BackfillRequest

_LOOK_EVERY_S: Final = 0.1

Command = Literal["round", "stop"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A pipeline, and everything that is needed to run it."""

    name: str
    kind: Literal["project", "script"]
    root: str
    """The folder with its files."""
    entry: str
    """The file in `root` that is run: the specification of a project, or a script."""
    storage: str
    """The folder or URL for checkpoints and tables."""
    warehouse: str
    metastore: str
    """The folder of the metastore."""
    bootstrap: str
    settings: dict[str, str] = field(default_factory=dict)
    """Spark settings, which override those of the project."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables for the code of the project."""
    reset: list[str] = field(default_factory=list)
    """Flows of a project that begin again in the first round."""
    live_interval_s: float | None = None
    """If it is set, streaming flows of a project run without an end after the first round, and
    begin a batch at most this often. None: they run in rounds only."""
    recompute: list[str] = field(default_factory=list)
    """Tables that this driver computes again, beside the running one; empty: it is that one."""
    running_flows: list[str] = field(default_factory=list)
    """With `recompute`: the flows of the version that runs."""
    link: str = ""
    """Where Python workers look for the files of the project; a link to `root` is created there."""


class Watchdog:
    """Kills the driver when its lease has ended. Not armed before the first `renew`."""

    def __init__(
        self, kill: Callable[[], None] = kill_own_session, now: Callable[[], float] = boot_time
    ) -> None:
        self._kill = kill
        self._now = now
        self._until = float("inf")
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock lease", daemon=True)
        self._thread.start()

    def renew(self, until: float) -> None:
        self._until = until if self._until == float("inf") else max(self._until, until)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        # The clock is looked at often: the time to wait does not include suspended time.
        while not self._closed.wait(_LOOK_EVERY_S):
            if self._now() >= self._until:
                self._kill()
                return


class Control:
    """Reads the commands of the worker, from a thread of its own."""

    def __init__(
        self,
        lines: Iterable[str],
        watchdog: Watchdog,
        kill: Callable[[], None] = kill_own_session,
        on_backfills: Callable[[list[BackfillRequest]], None] = lambda _: None,
    ) -> None:
        self.stopping = threading.Event()
        """Set when the driver is to end after its round."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called when the driver is to end soon, from a thread of its own."""
        self._on_backfills = on_backfills
        """Called with the backfills that are wanted, from the thread that reads."""
        self.on_preview: Callable[[dict[str, Any]], None] = lambda _: None
        """Called with a request for rows, from the thread that reads. Must not block."""
        self._lines = lines
        self._watchdog = watchdog
        self._kill = kill
        self._assigned: queue.Queue[Assignment | None] = queue.Queue()
        self._commands: queue.Queue[Command] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="penstock control", daemon=True)
        self._thread.start()

    def assignment(self) -> Assignment | None:
        """Waits for the pipeline. Returns None if the driver is to stop before there is one."""
        return self._assigned.get()

    def command(self) -> Command:
        return self._commands.get()

    def _run(self) -> None:
        for line in self._lines:
            self._on(json.loads(line))
        self._kill()

    def _on(self, command: dict[str, Any]) -> None:
        if "lease" in command:
            self._watchdog.renew(float(command["lease"]))
        if "backfills" in command:
            # Before the assignment: the first round knows them.
            self._on_backfills([builder(BackfillRequest)(each) for each in command["backfills"]])
        if "assign" in command:
            self._assigned.put(builder(Assignment)(command["assign"]))
        if "preview" in command:
            self.on_preview(command["preview"])
        if "round" in command:
            self._commands.put("round")
        match command.get("stop"):
            case "soon":
                self.stopping.set()
                self._assigned.put(None)
                self._commands.put("stop")
                # It may take longer than the lease, which this thread renews.
                threading.Thread(target=self.on_stop, name="penstock stop", daemon=True).start()
            case "now":
                self._kill()
            case _:
                pass
