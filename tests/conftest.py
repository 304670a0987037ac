"""Settings for all tests: pure kernels, grouping by process, timeouts, a watchdog.

With PENSTOCK_PURE=1 the kernels run as plain Python, even if the compiled extension is there.

`make test` uses several processes. Tests that belong together run in the same process: those of one
file, those that share a Spark session, those that share a browser. The long ones come first, so
that all processes end at about the same time.

A test's timeout raises an exception in the main thread. The exception cannot interrupt a foreign
library that waits in C, and the cleanup after it may wait again without a timeout. So a watchdog
that does not need the interpreter backs it up: it prints the stack of every thread and ends the
process, and the run fails with the test's name instead of hanging. `--max-worker-restart 0` is set
because xdist would run that test again, and may itself hang when it replaces a worker.

On CI the long tests also have a time budget (`time_budget`).

Timeouts are chosen for a quiet machine. When a test starts, its timeout is multiplied by the
measured slowness of the machine (`penstock.testing.slowness`). Deadlines inside tests use
`patient`.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import signal
import sys
from collections.abc import Generator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import PurePath
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from penstock.testing.slowness import patient
from time_budget import REASON, TimeBudget, summary

_KERNELS = tuple(
    f"penstock.records.{name}"
    for name in ("reading", "checking", "ordinary_batch", "gc_tracking", "writing", "hashing")
)
_TOGETHER = ("spark", "console/browser", "chaos", "sim", "compat")
"""Folders with long tests, the longest first. Only those in `_SHARING` are not split by file."""
_SHARING = _TOGETHER[:2]
_ALSO_LONG = ("broker/test_occupation", "broker/test_scale", "broker/test_fuzz")
"""Files in other folders that have long tests."""


class _PureKernels(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _KERNELS or path is None:
            return None
        source = os.path.join(path[0], name.rpartition(".")[2] + ".py")
        return importlib.util.spec_from_file_location(
            name, source, loader=SourceFileLoader(name, source)
        )


# No test needs a console next to every broker that it starts.
os.environ.setdefault("PENSTOCK_CONSOLE", "0")
os.environ.setdefault("PENSTOCK_WORKER", "0")
# A JVM of Spark lives for a minute here, so the second compiler and G1 cost a third of its time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

if os.environ.get("PENSTOCK_PURE") == "1":
    assert not sys.modules.keys() & set(_KERNELS), (
        "the kernels were imported before they could be replaced"
    )
    sys.meta_path.insert(0, _PureKernels())


# A busy machine must not fail an example because it, or its generation, took long. The rest is as
# Hypothesis has chosen, which knows CI.
settings.register_profile(
    "any machine",
    settings(),
    deadline=None,
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.too_slow],
)
settings.load_profile("any machine")

_BUDGET = TimeBudget()
_GRACE_S = 90.0
"""Extra time for the teardown of a test that timed out, and for a process after its last test."""
_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Duplicates stderr: while tests run it is captured, and lost if the process ends.

    A shell without job control starts background commands with SIGINT ignored, and all processes
    below inherit that. Tests of Ctrl-C would wait in vain.
    """
    config.stash[_STDERR] = os.dup(2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _watch(config: pytest.Config, limit_s: float) -> None:
    faulthandler.dump_traceback_later(limit_s + _GRACE_S, exit=True, file=config.stash[_STDERR])


def _timeout_s(item: pytest.Item) -> float:
    marker, limit_s = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    if marker is not None:
        limit_s = marker.args[0]
    elif limit_s is None:
        limit_s = item.config.getini("timeout")
    return float(limit_s)


def _watch_test(item: pytest.Item) -> None:
    limit_s = _timeout_s(item)
    is_debugged = limit_s == 0 or sys.gettrace() is not None
    if not is_debugged:
        _watch(item.config, limit_s)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.add_marker(pytest.mark.timeout(patient(_timeout_s(item))), append=False)
    _watch_test(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if (_folder(item) or _path(item).startswith(_ALSO_LONG)) and _BUDGET.is_used_up():
        pytest.skip(REASON)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a failed test at once, because a run may take an hour. xdist passes reports on."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        sys.stdout.write(f"\nFAILED {report.nodeid} ({report.when})\n")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    if said := summary(skipped):
        terminalreporter.write_line(said)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Starts the watchdog again, because pytest cancels it when a test fails."""
    _watch_test(item)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # Workers wait until the last one is done.
        # On a starved machine a large process takes minutes to exit.
        _watch(session.config, patient(60.0))


@pytest.fixture(scope="session")
def penstock_broker_settings() -> Mapping[str, str]:
    """Some tests write records that are years old; retention must not delete them."""
    return {"log.retention.check.interval.ms": "86400000"}


def _path(item: pytest.Item) -> str:
    return item.path.relative_to(PurePath(__file__).parent).as_posix()


def _folder(item: pytest.Item) -> str:
    path = _path(item)
    return next((each for each in _TOGETHER if path.startswith(f"{each}/")), "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {folder: number for number, folder in enumerate((*_TOGETHER, ""))}
    items.sort(key=lambda item: order[_folder(item)])
    for item in items:
        folder = _folder(item)
        group = folder if folder in _SHARING else item.path.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
