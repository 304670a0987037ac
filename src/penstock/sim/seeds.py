"""Runs many seeds on all cores, and reports which failed and how to replay them.

Every seed runs in a process with fixed string hashes, so that a seed is the same run everywhere.
Some seeds run twice, and must leave the same trace.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from penstock.runtime import SystemClock
from penstock.sim.bugs.replication import planted
from penstock.sim.focus import drawn_focus, focused
from penstock.sim.scenario import draw
from penstock.sim.seed_record import DEFAULT_RECORD, Recorder, open_recorder, read_record, standing
from penstock.sim.simulated_source import source_hash
from penstock.sim.worker_pool import worker_pool
from penstock.sim.workload import Verdict, run_scenario

_CLOCK: Final = SystemClock()
VIRTUAL_S: Final = 60.0
TWICE_EVERY: Final = 4
TOLD_EVERY_S: Final = 10.0
"""Seconds between two progress lines, without a terminal for a progress bar."""
FAILURES_MAX: Final = 20
"""A run stops after this many failures."""


@dataclass(frozen=True, slots=True)
class Task:
    """One seed to run."""

    seed: int
    virtual_s: float = VIRTUAL_S
    bug: str = ""
    twice: bool = False
    focus: str = ""
    """The part to concentrate on. If empty, the seed draws one."""
    also: tuple[str, ...] = ()
    """Faults that are drawn although the product does not handle them yet."""


@dataclass(slots=True)
class Report:
    """The result of a seed, small enough to be passed between processes."""

    seed: int
    failure: str = ""
    config: str = ""
    trace_hash: str = ""
    steps: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    reran: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    timeline: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Summary:
    seeds: int = 0
    failures: list[Report] = field(default_factory=list)
    reran: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    steps: int = 0
    counters: dict[str, int] = field(default_factory=dict)

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.reran += report.reran
        self.virtual_s += report.virtual_s
        self.steps += report.steps
        for name, times in report.counters.items():
            self.counters[name] = self.counters.get(name, 0) + times
        if report.failure:
            self.failures.append(report)


def run_verdict(task: Task, *, keep_trace: bool = False) -> Verdict:
    scenario = draw(task.seed, virtual_s=task.virtual_s, also=task.also)
    scenario = focused(scenario, task.focus or drawn_focus(task.seed))
    bug = planted(task.bug) if task.bug else None
    return run_scenario(scenario, keep_trace=keep_trace, bug=bug)


def run_task(task: Task) -> Report:
    """Runs one seed in this process, perhaps twice."""
    began = _CLOCK.monotonic()
    verdict = run_verdict(task)
    report = _report(task, verdict)
    if task.twice:
        again = run_verdict(task)
        report.reran = True
        if again.trace_hash != verdict.trace_hash:
            report.failure = report.failure or "two runs of this seed left different traces"
    # A cluster is one large reference cycle. Without this a worker keeps the remains of many.
    gc.collect()
    report.real_s = _CLOCK.monotonic() - began
    return report


def _report(task: Task, verdict: Verdict) -> Report:
    return Report(
        task.seed,
        failure=verdict.failure,
        config=str(verdict.scenario) if verdict.failed else "",
        trace_hash=verdict.trace_hash,
        steps=verdict.steps,
        virtual_s=verdict.virtual_s,
        counters=verdict.counters,
        timeline=verdict.timeline,
    )


def replay_command(task: Task) -> str:
    bug = f" --bug {task.bug}" if task.bug else ""
    length = f" --virtual-s {task.virtual_s:g}" if task.virtual_s != VIRTUAL_S else ""
    focus = f" --focus {task.focus}" if task.focus else ""
    also = f" --also {','.join(task.also)}" if task.also else ""
    return f"penstock sim --replay {task.seed}{bug}{length}{focus}{also}"


def run_tasks(
    tasks: Sequence[Task], jobs: int, progress: Progress, bar: TaskID
) -> Iterator[Report]:
    """Runs all tasks and yields the reports as they arrive. The caller may stop at any time."""
    if jobs == 1:
        for each in tasks:
            yield run_task(each)
            progress.advance(bar)
        return
    left = iter(tasks)
    with worker_pool(jobs) as workers:
        running: set[Future[Report]] = set()
        try:
            while True:
                while len(running) < 2 * jobs and (task := next(left, None)) is not None:
                    running.add(workers.submit(run_task, task))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    progress.advance(bar)
                    yield future.result()
        finally:
            for future in running:
                future.cancel()


# -- output


def show_failure(console: Console, report: Report, task: Task) -> None:
    text = f"seed {report.seed}: {report.failure}\n  {replay_command(task)}"
    console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def show_summary(console: Console, summary: Summary, chosen: argparse.Namespace) -> None:
    table = Table("what happened", "times", title=f"{summary.seeds} seeds", title_justify="left")
    for name, times in sorted(summary.counters.items()):
        table.add_row(name.replace("_", " "), f"{times:,}")
    console.print(table)
    speed = summary.virtual_s / summary.real_s if summary.real_s else 0.0
    console.print(
        f"{summary.virtual_s:,.0f} virtual seconds in {summary.real_s:,.0f} s "
        f"({speed:.0f} times as fast), {summary.steps:,} steps; {summary.reran} seeds ran twice",
        highlight=False,
    )
    verdict = f"{len(summary.failures)} of {summary.seeds} seeds failed"
    console.print(f"[bold red]{verdict}" if summary.failures else f"[bold green]{verdict}")
    for report in sorted(summary.failures, key=lambda failed: failed.seed):
        show_failure(console, report, _task(chosen, report.seed))


def summary_json(summary: Summary, chosen: argparse.Namespace) -> dict[str, Any]:
    return {
        "seeds": summary.seeds,
        "failures": [
            {
                "seed": report.seed,
                "failure": report.failure,
                "config": report.config,
                "replay": replay_command(_task(chosen, report.seed)),
                "timeline": report.timeline,
            }
            for report in summary.failures
        ],
        "reran": summary.reran,
        "virtual_s": round(summary.virtual_s, 1),
        "real_s": round(summary.real_s, 1),
        "steps": summary.steps,
        "counters": dict(sorted(summary.counters.items())),
    }


# -- commands


def run_range(chosen: argparse.Namespace, console: Console) -> int:
    seeds = range(100) if chosen.seeds is None else chosen.seeds
    tasks = [
        replace(_task(chosen, seed), twice=bool(chosen.twice_every) and not n % chosen.twice_every)
        for n, seed in enumerate(seeds)
    ]
    recorder = None
    if chosen.record:
        recorder = open_recorder(chosen.record, chosen.virtual_s, _variant(chosen))
    summary = Summary()
    try:
        _run_recorded(tasks, summary, recorder, chosen, console)
    finally:
        if recorder is not None:
            recorder.flush()
    if chosen.json:
        sys.stdout.write(json.dumps(summary_json(summary, chosen)) + "\n")
    else:
        show_summary(console, summary, chosen)
    return 1 if summary.failures else 0


def _run_recorded(
    tasks: Sequence[Task],
    summary: Summary,
    recorder: Recorder | None,
    chosen: argparse.Namespace,
    console: Console,
) -> None:
    began = told_at = _CLOCK.monotonic()
    with progress_bar(console, chosen) as progress:
        bar = progress.add_task("seeds", total=len(tasks))
        for report in run_tasks(tasks, chosen.jobs, progress, bar):
            summary.add(report)
            summary.real_s = _CLOCK.monotonic() - began
            if recorder is not None:
                recorder.add(report.seed, report.failure)
            if report.failure and not chosen.json:
                show_failure(console, report, _task(chosen, report.seed))
            if not console.is_terminal and _CLOCK.monotonic() - told_at >= TOLD_EVERY_S:
                told_at = _CLOCK.monotonic()
                sys.stderr.write(progress_line(summary, len(tasks)) + "\n")
                sys.stderr.flush()
            if len(summary.failures) >= chosen.failures_max:
                break


def _variant(chosen: argparse.Namespace) -> str:
    """Returns the options beyond what seeds draw, as one string. Empty for ordinary runs."""
    task = _task(chosen, 0)
    return ",".join(filter(None, (task.focus, *task.also)))


def progress_line(summary: Summary, seeds: int) -> str:
    """Returns how far a run is, how fast it is, and how long it will take."""
    per_s = summary.seeds / summary.real_s if summary.real_s else 0.0
    left = f"{(seeds - summary.seeds) / per_s / 60:.1f} min left" if per_s else "just begun"
    return (
        f"{summary.seeds} of {seeds} seeds, {len(summary.failures)} failed, "
        f"{60 * per_s:.1f} seeds/min, {left}"
    )


def show_results(chosen: argparse.Namespace, console: Console) -> int:
    """Counts the recorded seeds of the current source code. Returns 1 if any of them failed."""
    path = chosen.record or DEFAULT_RECORD
    found = standing(read_record(path), source_hash(), chosen.virtual_s, _variant(chosen))
    if chosen.json:
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
        return 1 if found.failed else 0
    console.print(
        f"{found.clean} distinct seeds ran clean on source {found.source}, "
        f"{len(found.failed)} failed; {found.other_sources} other versions are recorded in {path}",
        highlight=False,
        soft_wrap=True,
    )
    if found.commits:
        console.print(f"commits with this source: {', '.join(found.commits)}", highlight=False)
    for seed, failure in sorted(found.failed.items()):
        show_failure(console, Report(seed, failure=failure), _task(chosen, seed))
    return 1 if found.failed else 0


def replay(chosen: argparse.Namespace, console: Console) -> int:
    """Runs one seed and prints everything about it."""
    task = replace(_task(chosen, chosen.replay), bug=chosen.bug or "")
    verdict = run_verdict(task, keep_trace=chosen.trace is not None)
    if chosen.history:
        with open(chosen.history, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in verdict.history.lines())
    if chosen.trace:
        with open(chosen.trace, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in verdict.trace)
    if chosen.json:
        report = asdict(_report(task, verdict)) | {"config": str(verdict.scenario)}
        sys.stdout.write(json.dumps(report) + "\n")
        return 1 if verdict.failed else 0
    console.print(f"seed {task.seed}: {verdict.scenario}", markup=False, highlight=False)
    for line in verdict.timeline:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    told = f"{verdict.virtual_s:.1f} virtual seconds, {verdict.steps:,} steps"
    console.print(f"trace {verdict.trace_hash}, {told}", highlight=False)
    for violation in verdict.violations:
        console.print(f"FAILED: {violation}", markup=False, highlight=False, style="bold red")
    if verdict.trouble:
        console.print(
            f"FAILED: {verdict.trouble}",
            markup=False,
            highlight=False,
            soft_wrap=True,
            style="bold red",
        )
    return 1 if verdict.failed else 0


def _task(chosen: argparse.Namespace, seed: int) -> Task:
    return Task(seed, chosen.virtual_s, focus=chosen.focus or "", also=chosen.also)


def progress_bar(console: Console, chosen: argparse.Namespace) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=chosen.json or not console.is_terminal,
    )
