"""`penstock sim`: runs simulated clusters under faults, one for each seed.

The simulator runs in a new process. A seed gives the same run everywhere only with a fixed hash
seed of Python, which must be set before the interpreter starts.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

_HELP = """Run simulated clusters under faults, and check them.

Runs one cluster for each seed. A seed determines the cluster, its clients and the faults. The same
seed gives the same run everywhere. For a seed that fails, the command to replay it is shown.

Exit code: 0; 1 if a seed failed or a planted bug was not found.

\b
Examples:
  penstock sim --seeds 0..200
  penstock sim --replay 17
  penstock sim --bug all
  penstock sim --power-cuts 100
  penstock sim --seeds 0..2000 --record tests/sim/seeds-run.jsonl
  penstock sim --results
"""


def register(root: typer.Typer) -> None:
    root.command("sim", help=_HELP)(sim)


def sim(
    *,
    seeds: Annotated[str, typer.Option(metavar="A..B", help="Run seeds A to B - 1.")] = "",
    replay: Annotated[
        int | None, typer.Option(metavar="SEED", help="Run one seed and print its event log.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=0, metavar="N", help="Parallel processes; 0: one per core.")
    ] = 0,
    bug: Annotated[
        str, typer.Option(metavar="NAME", help="Plant a bug and find it; `all`: every bug.")
    ] = "",
    focus: Annotated[
        str, typer.Option(metavar="NAME", help="Concentrate on one part, e.g. `transactions`.")
    ] = "",
    also: Annotated[
        str, typer.Option(metavar="NAMES", help="Add faults that are off by default, or `all`.")
    ] = "",
    power_cuts: Annotated[
        int, typer.Option(min=0, metavar="N", help="Cut the power of all brokers N times.")
    ] = 0,
    virtual_s: Annotated[
        float, typer.Option(min=1, metavar="S", help="Simulated seconds of load and faults.")
    ] = 60.0,
    twice_every: Annotated[
        int, typer.Option(min=0, metavar="N", help="Run every Nth seed twice; 0: none.")
    ] = 4,
    failures_max: Annotated[
        int, typer.Option(min=1, metavar="N", help="Stop after N failures.")
    ] = 20,
    history: Annotated[
        str, typer.Option(metavar="FILE", help="With --replay: write what clients saw (JSONL).")
    ] = "",
    trace: Annotated[
        str, typer.Option(metavar="FILE", help="With --replay: write every event.")
    ] = "",
    python: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Use this Python interpreter, for example an optimized build."
        ),
    ] = "",
    record: Annotated[
        str, typer.Option(metavar="FILE", help="Append the seeds and the source's hash here.")
    ] = "",
    results: Annotated[
        bool, typer.Option("--results", help="Count the seeds recorded for this source code.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    arguments = ["--virtual-s", str(virtual_s)]
    arguments += ["--jobs", str(jobs or os.cpu_count() or 1)]
    arguments += ["--twice-every", str(twice_every), "--failures-max", str(failures_max)]
    if replay is not None:
        arguments += ["--replay", str(replay)]
    if power_cuts:
        arguments += ["--power-cuts", str(power_cuts)]
    for name, value in (
        *(("--seeds", seeds), ("--bug", bug), ("--focus", focus), ("--also", also)),
        *(("--history", history), ("--trace", trace), ("--record", record)),
    ):
        arguments += [name, value] if value else []
    arguments += ["--results"] if results else []
    arguments += ["--json"] if json else []
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    if python:
        # The other interpreter needs the packages of this one.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    executable = python or sys.executable
    command = [executable, "-m", "penstock.sim.main", *arguments]
    # Replaces this process, so that the parent of the workers is the process that the user started.
    sys.stdout.flush()
    os.execve(executable, command, environment)  # noqa: S606 - our own module
