"""`penstock sim`: runs simulated clusters under faults, one for each seed.

The simulator runs in a new process. A seed gives the same run everywhere only with a fixed hash
seed of Python, which must be set before the interpreter starts.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Annotated, NoReturn

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


_Seeds = Annotated[str, typer.Option(metavar="A..B", help="Run seeds A to B - 1.")]
_Replay = Annotated[
    int | None, typer.Option(metavar="SEED", help="Run one seed and print its event log.")
]
_Jobs = Annotated[
    int, typer.Option(min=0, metavar="N", help="Parallel processes; 0: one per core.")
]
_Bug = Annotated[
    str, typer.Option(metavar="NAME", help="Plant a bug and find it; `all`: every bug.")
]
_Focus = Annotated[
    str, typer.Option(metavar="NAME", help="Concentrate on one part, e.g. `transactions`.")
]
_Also = Annotated[
    str, typer.Option(metavar="NAMES", help="Add faults that are off by default, or `all`.")
]
_PowerCuts = Annotated[
    int, typer.Option(min=0, metavar="N", help="Cut the power of all brokers N times.")
]
_VirtualSeconds = Annotated[
    float, typer.Option(min=1, metavar="S", help="Simulated seconds of load and faults.")
]
_TwiceEvery = Annotated[
    int, typer.Option(min=0, metavar="N", help="Run every Nth seed twice; 0: none.")
]
_FailuresMax = Annotated[int, typer.Option(min=1, metavar="N", help="Stop after N failures.")]
_History = Annotated[
    str, typer.Option(metavar="FILE", help="With --replay: write what clients saw (JSONL).")
]
_Trace = Annotated[str, typer.Option(metavar="FILE", help="With --replay: write every event.")]
_Python = Annotated[
    str,
    typer.Option(
        metavar="PATH", help="Use this Python interpreter, for example an optimized build."
    ),
]
_Record = Annotated[
    str, typer.Option(metavar="FILE", help="Append the seeds and the source's hash here.")
]
_Results = Annotated[
    bool, typer.Option("--results", help="Count the seeds recorded for this source code.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(root: typer.Typer) -> None:
    root.command("sim", help=_HELP)(sim)


def sim(
    *,
    seeds: _Seeds = "",
    replay: _Replay = None,
    jobs: _Jobs = 0,
    bug: _Bug = "",
    focus: _Focus = "",
    also: _Also = "",
    power_cuts: _PowerCuts = 0,
    virtual_s: _VirtualSeconds = 60.0,
    twice_every: _TwiceEvery = 4,
    failures_max: _FailuresMax = 20,
    history: _History = "",
    trace: _Trace = "",
    python: _Python = "",
    record: _Record = "",
    results: _Results = False,
    json: _Json = False,
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
    _replace_process(python or sys.executable, arguments)


def package_paths() -> list[str]:
    """Returns where this interpreter finds packages. Another one needs them, and not the standard
    library of this one, whose compiled parts it could not load."""
    library = sysconfig.get_path("stdlib")
    own = (library, f"{library}/lib-dynload")
    return [path for path in sys.path if path and path not in own and not path.endswith(".zip")]


def _replace_process(executable: str, arguments: list[str]) -> NoReturn:
    """Replaces this process, so that the parent of the workers is the process that the user
    started."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    if executable != sys.executable:
        environment["PYTHONPATH"] = os.pathsep.join(package_paths())
    command = [executable, "-m", "penstock.sim.main", *arguments]
    sys.stdout.flush()
    os.execve(executable, command, environment)  # noqa: S606 - our own module
