"""How a worker controls its driver: commands by standard input, and a watchdog for the lease.

One JSON object per line:

    {"rehearse": true}         do a step of the rehearsal, before there is a pipeline
    {"assign": {...}}          the pipeline that this driver runs from now on, see `Assignment`
    {"lease": 1234.5}          the boot time at which the driver must have ended
    {"round": true}            begin a round
    {"preview": {...}}         read a few rows of a table, see `preview`
    {"stop": "soon"}           end after the current round
    {"stop": "now"}            end at once
    {"backfills": [...]}       all backfills that are wanted, see `BackfillRequest`

The end of standard input means that the worker has ended, and ends the driver at once. So do the
end of the lease and a command that cannot be read. In all cases all processes of the driver are
killed, with the JVM and its Python workers: another worker may start the same pipeline a moment
later.
"""

from __future__ import annotations

import json
import os
import queue
import select
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from penstock.client.dataclass_json import builder
from penstock.runtime import boot_time
from penstock.spark.pipelines.process_session import kill_own_session
from penstock.spark.stream_position import BackfillRequest

_LOOK_EVERY_S: Final = 0.1
_ERROR_MAX: Final = 400
LEASE_ENDED: Final = "lease ended"
"""The last event of a driver that kills itself because its lease has ended."""

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
    """Where Python workers look for the files of the project: a link to `root`."""


class Watchdog:
    """Kills the driver when its lease has ended. Not armed before the first `renew`."""

    def __init__(
        self,
        kill: Callable[[], None] = kill_own_session,
        now: Callable[[], float] = boot_time,
        events: int | None = None,
    ) -> None:
        """`events` is the pipe on which the worker reads events. It is told why the driver ends."""
        self._kill = kill
        self._now = now
        self._events = events
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
                self.tell_last({"event": LEASE_ENDED})
                self._kill()
                return

    def tell_last(self, event: Mapping[str, Any]) -> None:
        """Says why the driver ends, if that is possible at once: nothing may delay the kill. No
        further event is told, such as an error of Spark because its JVM was killed first."""
        if self._events is None:
            return
        # Another thread may have written a part of a line. A write this short is never divided.
        line = b"\n" + json.dumps(event).encode() + b"\n"
        with suppress(OSError, ValueError):
            if select.select([], [self._events], [], 0)[1]:
                os.write(self._events, line)
            with Path(os.devnull).open("wb") as nothing:
                os.dup2(nothing.fileno(), self._events, inheritable=False)


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
        self._assigned: queue.Queue[Assignment | Literal["rehearse"] | None] = queue.Queue()
        self._commands: queue.Queue[Command] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="penstock control", daemon=True)
        self._thread.start()

    def assignment(self, rehearse: Callable[[], None] = lambda: None) -> Assignment | None:
        """Waits for the pipeline. Returns None if the driver is to stop before there is one. Calls
        `rehearse` when a step of the rehearsal is wanted, unless there is a pipeline already."""
        while (work := self._assigned.get()) == "rehearse":
            if self._assigned.empty():
                rehearse()
        return work

    def command(self) -> Command:
        return self._commands.get()

    def _run(self) -> None:
        try:
            for line in self._lines:
                self._on(json.loads(line))
        except Exception as failure:  # noqa: BLE001 (without this thread nothing renews the lease)
            sys.stderr.write(f"cannot carry out a command of the worker:\n{traceback.format_exc()}")
            error = f"the driver cannot carry out a command of its worker: {type(failure).__name__}"
            error = f"{error}: {failure}"[:_ERROR_MAX]
            self._watchdog.tell_last({"event": "end", "state": "FAILED", "error": error})
        self._kill()

    def _on(self, command: dict[str, Any]) -> None:
        if "lease" in command:
            self._watchdog.renew(float(command["lease"]))
        if "backfills" in command:
            # Before the assignment: the first round knows them.
            self._on_backfills([builder(BackfillRequest)(each) for each in command["backfills"]])
        if "rehearse" in command:
            self._assigned.put("rehearse")
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
