"""Runs the test suite next to busy loops that leave it a fraction of the machine: `make starve`.

A test that fails here and passes on a quiet machine assumes that something has happened "by now".
The run prints the failed tests and the slowest tests, and exits with 1 if any test failed.

    python -m starve [--loops 8] [--cpus 0.5] [--pauses 1.0] [--seed 1] [--late] [--workers 2]
                     [pytest's arguments]

With `--cpus` the tests also run in a cgroup that limits how many processors they use. The rest of
the machine stays free for other work. This needs root.

With `--pauses` all processes of the tests stop together at random moments, for at most this many
seconds each time, and for a fifth of the time in all (`pauses.py`). This needs root, too.

With `--late` brokers delay the work that they do after answering (`late/sitecustomize.py`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from pauses import pauses

HERE = Path(__file__).parent
SLOWEST = 15
LATE_SLOWNESS = 3
"""Factor by which timeouts grow with late brokers."""
LOOP = "import os\nstarter = os.getppid()\nwhile os.getppid() == starter: sum(range(1_000_000))"
"""A busy loop. It ends when the process that started it ends, even by SIGKILL."""


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    seconds: float
    failure: str
    """The first line of the error message; empty if the test passed or was skipped."""


def read_report(text: str) -> list[Outcome]:
    """Returns the outcome of each test in a report of pytest's `--junit-xml`."""
    outcomes = []
    for case in ElementTree.fromstring(text).iter("testcase"):
        failed = [part for kind in ("failure", "error") for part in case.iter(kind)]
        said = (failed[0].get("message") or "failed").splitlines()[0] if failed else ""
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        outcomes.append(Outcome(name, float(case.get("time", 0)), said))
    return outcomes


def verdict(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns the lines to print: the failures, then the slowest tests, then the count."""
    failed = [each for each in outcomes if each.failure]
    lines = [f"FAILED {each.name} ({each.seconds:.0f} s): {each.failure}" for each in failed]
    slowest = sorted(outcomes, key=lambda each: -each.seconds)[:SLOWEST]
    lines += [f"slow   {each.name} ({each.seconds:.0f} s)" for each in slowest]
    return [*lines, f"{len(outcomes) - len(failed)} passed or skipped, {len(failed)} failed"]


def limit_processors(cpus: float) -> Path:
    """Moves this process into a new cgroup that may use `cpus` processors. Returns the cgroup."""
    root = Path("/sys/fs/cgroup")
    period_us = 100_000
    quota_us = round(cpus * period_us)
    if (root / "cgroup.controllers").exists():
        (root / "cgroup.subtree_control").write_text("+cpu")
        group = root / f"starve-{os.getpid()}"
        group.mkdir()
        (group / "cpu.max").write_text(f"{quota_us} {period_us}")
    else:
        group = root / "cpu" / f"starve-{os.getpid()}"
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return group


def leave(group: Path) -> None:
    """Moves every process of the cgroup to the parent cgroup, and removes the cgroup."""
    for process in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            (group.parent / "cgroup.procs").write_text(process)
    group.rmdir()


def environment(*, late: bool) -> dict[str, str]:
    """Returns the environment of the tests, and of the brokers that they start."""
    found = dict(os.environ)
    if late:
        paths = [str(HERE / "late"), *filter(None, [found.get("PYTHONPATH")])]
        found["PYTHONPATH"] = os.pathsep.join(paths)
        found["PYTEST_PLUGINS"] = "sitecustomize"
        found.setdefault("PENSTOCK_SLOWNESS", str(LATE_SLOWNESS))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="starve", description=__doc__)
    parser.add_argument("--loops", type=int, default=8, help="busy processes beside the tests")
    parser.add_argument("--cpus", type=float, help="the most processors that the tests may use")
    parser.add_argument("--pauses", type=float, help="the longest pause of the tests, in seconds")
    parser.add_argument("--seed", type=int, default=1, help="determines the pauses")
    parser.add_argument("--late", action="store_true", help="delay the work after an answer")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests")
    chosen, rest = parser.parse_known_args(arguments)
    began = time.monotonic()
    with ExitStack() as stack:
        if chosen.cpus:
            stack.callback(leave, limit_processors(chosen.cpus))
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        for _ in range(chosen.loops):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", LOOP]))
            stack.callback(loop.kill)
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junit-xml={report}", "--tb=short"]
        if chosen.workers > 1:
            command += ["-n", str(chosen.workers), "--dist", "loadgroup", "--no-loadscope-reorder"]
            command += ["--max-worker-restart", "0"]
        command += rest
        if chosen.pauses:
            command = stack.enter_context(pauses(chosen.pauses, chosen.seed)).around(command)
        done = subprocess.run(
            command, check=False, cwd=HERE.parent, env=environment(late=chosen.late)
        )
        outcomes = read_report(report.read_text()) if report.exists() else []
    for line in verdict(outcomes):
        print(line)
    limit = f", with pauses of up to {chosen.pauses} s" if chosen.pauses else ""
    limit += f" with {chosen.cpus} processors" if chosen.cpus else ""
    print(f"beside {chosen.loops} busy loops{limit}, in {(time.monotonic() - began) / 60:.1f} min")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
