"""The entry point of the simulator: `penstock sim` runs this module in a process of its own.

    penstock sim --seeds 0..2000                 run them, and print which failed and how to replay
    penstock sim --replay 1234                   one seed, with the events of the partition it broke
    penstock sim --bug all                       prove that the checks find what they are made for
    penstock sim --power-cuts 100                all brokers lose power 100 times: nothing is lost
    penstock sim --seeds 0..2000 --record FILE   append to FILE which seeds ran on which source code
    penstock sim --results                       count the seeds that ran clean on this source code

Every seed runs in a process with fixed string hashes, so that a seed is the same run everywhere.
Some seeds run twice, and must leave the same trace.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from penstock.sim import bug_search, power_cuts
from penstock.sim.bugs.replication import BUGS
from penstock.sim.focus import FOCUSES
from penstock.sim.scenario import WAITING
from penstock.sim.seeds import (
    FAILURES_MAX,
    TWICE_EVERY,
    VIRTUAL_S,
    replay,
    run_range,
    show_results,
)
from penstock.sim.world import reexec_with_fixed_hashes


def _seeds(text: str) -> range:
    """Parses `A..B`, B not included, or one number."""
    first, dots, last = text.partition("..")
    try:
        seeds = range(int(first), int(last)) if dots else range(int(first), int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range: write 0..2000") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} has no seeds: write the smaller number first")
    return seeds


def _bug(text: str) -> str:
    if text != "all" and text not in BUGS:
        raise argparse.ArgumentTypeError(f"there is no bug {text!r}: one of all, {', '.join(BUGS)}")
    return text


def _focus(text: str) -> str:
    if text not in FOCUSES:
        raise argparse.ArgumentTypeError(f"there is no focus {text!r}: one of {', '.join(FOCUSES)}")
    return text


def _also(text: str) -> tuple[str, ...]:
    names = tuple(sorted(WAITING)) if text == "all" else tuple(text.split(","))
    if unknown := [name for name in names if name not in WAITING]:
        known = ", ".join(sorted(WAITING)) or "none"
        raise argparse.ArgumentTypeError(f"there is no fault {unknown[0]!r}: one of all, {known}")
    return names


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="penstock sim", description="Run simulated clusters.")
    options.add_argument("--seeds", type=_seeds, default=None, help="A..B, B not included")
    options.add_argument("--replay", type=int, metavar="SEED", help="one seed, with all events")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options.add_argument("--bug", type=_bug, help="plant a bug; `all` tries each of them")
    options.add_argument("--focus", type=_focus, help="concentrate on one part")
    options.add_argument(
        "--also", type=_also, default=(), help="faults the product does not handle yet, or `all`"
    )
    options.add_argument(
        "--power-cuts", type=int, metavar="N", help="run seeds until all brokers lost power N times"
    )
    options.add_argument("--virtual-s", type=float, default=VIRTUAL_S, help="of load and faults")
    options.add_argument(
        "--twice-every", type=int, default=TWICE_EVERY, help="0: no seed runs twice"
    )
    options.add_argument("--failures-max", type=int, default=FAILURES_MAX)
    options.add_argument("--history", help="with --replay: write what clients saw to this file")
    options.add_argument("--trace", help="with --replay: write every step's marks to this file")
    options.add_argument("--record", type=Path, metavar="FILE", help="append the results")
    options.add_argument("--results", action="store_true", help="count the recorded seeds")
    options.add_argument("--json", action="store_true", help="print one JSON object only")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    console = Console()
    if chosen.results:
        return show_results(chosen, console)
    if chosen.replay is not None:
        return replay(chosen, console)
    if chosen.bug:
        return bug_search.run_bugs(chosen, console)
    if chosen.power_cuts:
        return power_cuts.run_power_cuts(chosen, console)
    return run_range(chosen, console)


if __name__ == "__main__":
    reexec_with_fixed_hashes()
    gc.freeze()
    sys.exit(main())
