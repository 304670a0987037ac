"""The one line that a failed run shows names the exception that was raised first, and its place."""

from __future__ import annotations

import asyncio

import pytest

from penstock.sim.disk.disk import SimDisk
from penstock.sim.failures import describe
from penstock.sim.faults.fault_schedule import FaultSchedule
from penstock.sim.random_streams import RandomStreams
from penstock.sim.scenario import draw
from penstock.sim.workload import run_scenario


def fail() -> None:
    """Fails outside the package."""
    raise ValueError("mine")


def wipe_in_use() -> None:
    """Fails inside the package."""
    draws = RandomStreams(1).stream("disk")
    disk = SimDisk(draws, draws)
    disk.open("/file", create=True)
    disk.wipe()


def test_the_first_exception_of_nested_groups_is_described() -> None:
    deep = ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("mine"), KeyError("x")])])
    assert describe(deep) == "ValueError: mine (and 1 more)"
    assert describe(TimeoutError()) == "TimeoutError"
    assert describe(RuntimeError("one\ntwo")) == "RuntimeError: one"


def test_the_place_is_the_innermost_call_in_the_package() -> None:
    with pytest.raises(RuntimeError) as raised:
        wipe_in_use()
    assert "(sim/disk/disk.py:" in describe(raised.value)
    assert describe(raised.value).endswith(" in wipe)")
    with pytest.raises(ValueError, match="mine") as other:
        fail()
    text = describe(ExceptionGroup("group", [other.value]))
    assert text.startswith("ValueError: mine (test_failures.py:")
    assert text.endswith(" in fail)")


def test_a_failed_run_shows_what_was_raised_inside_its_task_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run(self: FaultSchedule) -> None:
        async with asyncio.TaskGroup() as actions:
            actions.create_task(self._wait_until(0.0))
            wipe_in_use()

    monkeypatch.setattr(FaultSchedule, "run", run)
    verdict = run_scenario(draw(1, virtual_s=1.0))
    assert verdict.failure.startswith("RuntimeError: a process has files open on this disk")
    assert verdict.failure.endswith(" in wipe)")
    assert "Traceback" in verdict.trouble
