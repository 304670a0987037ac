"""Tests that deadlines of tests grow with the load of the machine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from penstock.testing.slowness import Slowness, cpu_limit, factor_of, patient


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class System:
    """A fake for /proc/stat and the load average."""

    def __init__(self) -> None:
        self.running = 1
        self.load = 0.2
        self.busy = self.stolen = 0

    def read(self) -> tuple[str, float]:
        stat = f"cpu {self.busy} 0 0 0 0 0 0 {self.stolen} 0 0\nprocs_running {self.running}\n"
        return stat, self.load


@pytest.mark.parametrize(
    ("runnable", "processors", "stolen_share", "factor"),
    [(0, 2, 0.0, 1.0), (2, 2, 0.0, 1.0), (10, 2, 0.0, 5.0), (1, 2, 0.5, 2.0), (9, 1, 1.0, 30.0)],
)
def test_the_factor_counts_runnable_processes_and_stolen_time(
    runnable: float, processors: int, stolen_share: float, factor: float
) -> None:
    assert factor_of(runnable, processors, stolen_share) == pytest.approx(factor)


def test_a_quiet_machine_has_factor_one() -> None:
    assert Slowness(ManualClock(), System().read, processors=2).factor == 1.0


def test_new_load_counts_before_the_load_average_shows_it() -> None:
    clock, system = ManualClock(), System()
    slowness = Slowness(clock, system.read, processors=2)
    assert slowness.factor == 1.0
    system.running = 8
    clock.now += 1.0
    assert slowness.factor == 4.0


def test_stolen_time_is_counted_between_two_measurements() -> None:
    clock, system = ManualClock(), System()
    system.busy, system.stolen = 1000, 900
    slowness = Slowness(clock, system.read, processors=2)
    assert slowness.factor == 1.0, "what was stolen before the first look says nothing"
    system.busy, system.stolen = 1025, 975
    clock.now += 1.0
    assert slowness.factor == pytest.approx(4.0)


def test_high_load_is_remembered_for_two_minutes() -> None:
    clock, system = ManualClock(), System()
    slowness = Slowness(clock, system.read, processors=2)
    system.running = 8
    assert slowness.factor == 4.0
    system.running = 1
    clock.now += 119.0
    assert slowness.factor == 4.0
    clock.now += 2.0
    assert slowness.factor == 1.0


def test_a_lower_bound_can_be_set() -> None:
    assert Slowness(ManualClock(), System().read, processors=2, at_least=6.0).factor == 6.0


def test_a_system_without_proc_is_judged_by_its_load_average() -> None:
    assert Slowness(ManualClock(), lambda: ("", 6.0), processors=2).factor == 3.0


def test_a_patient_deadline_is_never_shorter_than_requested() -> None:
    assert patient(7.0) >= 7.0


@pytest.mark.parametrize(
    ("own", "files", "processors"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        (
            "3:cpuset:/\n2:cpuacct,cpu:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "40000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            0.4,
        ),
        (
            "1:cpu:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            math.inf,
        ),
    ],
)
def test_the_cpu_limit_of_a_container_is_found(
    tmp_path: Path, own: str, files: dict[str, str], processors: float
) -> None:
    """In both versions of cgroups, and on the process's own group or on one of its parents."""
    for name, text in files.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "own").write_text(own)
    assert cpu_limit(tmp_path / "root", tmp_path / "own") == processors
