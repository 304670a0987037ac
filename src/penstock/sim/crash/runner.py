"""Runs thousands of seeded crash cases of one partition log on the simulated disk.

    python -m penstock.sim.crash.runner --cases 20000 --seed 1 --jobs 2
    python -m penstock.sim.crash.runner --seed 4711 --steps    one case again, and its events

A case is `case.run_case(seed)`, and depends on nothing but the seed. The summary counts what
happened, so that a run that succeeds only because nothing was tried is recognized. Every hundredth
case runs twice and must leave the same trace.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.sim.crash.case import CaseResult, run_case
from penstock.sim.worker_pool import worker_pool

CHUNK_CASES = 50
TWICE_EVERY = 100
FAILURES_SHOWN = 5


@dataclass(slots=True)
class Summary:
    cases: int = 0
    failures: list[CaseResult] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        self.cases += 1
        for name, times in result.counters.items():
            self.counters[name] = self.counters.get(name, 0) + times
        if result.failure is not None:
            self.failures.append(result)

    def merge(self, other: Summary) -> None:
        self.cases += other.cases
        self.failures.extend(other.failures)
        for name, times in other.counters.items():
            self.counters[name] = self.counters.get(name, 0) + times


def run_cases(seeds: Sequence[int]) -> Summary:
    """Runs these cases in this process, one after the other."""
    summary = Summary()
    for seed in seeds:
        result = run_case(seed)
        if seed % TWICE_EVERY == 0 and run_case(seed).trace_hash != result.trace_hash:
            result.failure = result.failure or "two runs of this seed left different traces"
        summary.add(result)
    return summary


def run_parallel(first_seed: int, cases: int, jobs: int, progress: Progress) -> Summary:
    """Runs all cases, in chunks on `jobs` processes. Stops early once enough have failed."""
    total = Summary()
    bar = progress.add_task("crash cases", total=cases)
    chunks = _chunks(first_seed, cases)
    with worker_pool(jobs) as workers:
        running: set[Future[Summary]] = set()
        for chunk in chunks:
            running.add(workers.submit(run_cases, chunk))
            if len(running) > 2 * jobs:
                running = _collect(running, total, progress, bar)
            if len(total.failures) >= FAILURES_SHOWN:
                break
        while running:
            running = _collect(running, total, progress, bar)
    return total


def _chunks(first_seed: int, cases: int) -> Iterator[range]:
    end = first_seed + cases
    for start in range(first_seed, end, CHUNK_CASES):
        yield range(start, min(start + CHUNK_CASES, end))


def _collect(
    running: set[Future[Summary]], total: Summary, progress: Progress, bar: object
) -> set[Future[Summary]]:
    done, left = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        total.merge(future.result())
    # The number of a bar is a type of its own in the library.
    progress.update(bar, completed=total.cases)  # type: ignore[arg-type]
    return left


def show(console: Console, summary: Summary) -> None:
    table = Table(
        "what happened", "times", title=f"{summary.cases} crash cases", title_justify="left"
    )
    for name, times in sorted(summary.counters.items()):
        table.add_row(name.replace("_", " "), f"{times:,}")
    console.print(table)
    for result in sorted(summary.failures, key=lambda failed: len(failed.steps))[:FAILURES_SHOWN]:
        told = f"seed {result.seed}: {result.failure}\n  {replay_command(result.seed)}"
        console.print(told, style="red", markup=False, highlight=False, soft_wrap=True)
    verdict = f"{len(summary.failures)} of {summary.cases} cases failed"
    console.print(f"[bold red]{verdict}" if summary.failures else f"[bold green]{verdict}")


def replay_command(seed: int) -> str:
    return f"python -m penstock.sim.crash.runner --seed {seed} --steps"


def tell(console: Console, result: CaseResult) -> None:
    """Prints all events of one case."""
    console.print(f"seed {result.seed}: {result.config}", markup=False, highlight=False)
    for number, line in enumerate(result.steps, start=1):
        console.print(f"{number:4} {line}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"trace {result.trace_hash}")
    if result.failure:
        console.print(f"FAILED: {result.failure}", markup=False, highlight=False, style="bold red")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="penstock.sim.crash.runner", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--steps", action="store_true", help="run one seed and tell what happened")
    chosen = parser.parse_args(arguments)
    console = Console()
    if chosen.steps:
        result = run_case(chosen.seed)
        tell(console, result)
        return 1 if result.failure else 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        summary = run_parallel(chosen.seed, chosen.cases, chosen.jobs, progress)
    show(console, summary)
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
