"""`penstock sim`: whole clusters under faults, one for each seed.

The simulator runs in a process of its own, since a run is the same everywhere only if Python hashes
alike, which is settled when the interpreter starts.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

_HELP = """Run simulated clusters under faults, one for each seed, and check what they promised.

Each seed draws its own cluster, clients and faults; the same seed is the same run everywhere. A
failing seed is shown with the command that replays it. Exit code: 0; 1 when a seed failed, or a
planted bug was not found.

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
    seeds: Annotated[str, typer.Option(metavar="A..B", help="B is not included; 0..100.")] = "",
    replay: Annotated[
        int | None, typer.Option(metavar="SEED", help="Run one seed and tell its story.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=0, metavar="N", help="Processes at a time; 0: one for each core.")
    ] = 0,
    bug: Annotated[
        str, typer.Option(metavar="NAME", help="Plant a bug; `all` tries each of them.")
    ] = "",
    focus: Annotated[
        str, typer.Option(metavar="NAME", help="Concentrate on one part, as on `transactions`.")
    ] = "",
    also: Annotated[
        str, typer.Option(metavar="NAMES", help="Faults that are off by default; `all` of them.")
    ] = "",
    power_cuts: Annotated[
        int, typer.Option(min=0, metavar="N", help="Cut the power of all brokers N times.")
    ] = 0,
    virtual_s: Annotated[
        float, typer.Option(min=1, metavar="S", help="How long load and faults go on.")
    ] = 60.0,
    twice_every: Annotated[
        int, typer.Option(min=0, metavar="N", help="Every Nth seed runs twice; 0: none.")
    ] = 4,
    failures_max: Annotated[
        int, typer.Option(min=1, metavar="N", help="Stop after so many failures.")
    ] = 20,
    history: Annotated[
        str, typer.Option(metavar="FILE", help="With --replay: what clients saw, as JSON lines.")
    ] = "",
    trace: Annotated[
        str, typer.Option(metavar="FILE", help="With --replay: everything that happened.")
    ] = "",
    python: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Run on this interpreter, such as one built with optimizations."
        ),
    ] = "",
    record: Annotated[
        str, typer.Option(metavar="FILE", help="Append which seeds ran on which source code.")
    ] = "",
    results: Annotated[
        bool, typer.Option("--results", help="Count the recorded seeds of this source code.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
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
        # It has its own packages, or none, and needs those of this one.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    executable = python or sys.executable
    command = [executable, "-m", "penstock.sim.seeds", *arguments]
    # In place of this process, so that the workers' parent is the process that was started.
    sys.stdout.flush()
    os.execve(executable, command, environment)  # noqa: S606 - our own module
