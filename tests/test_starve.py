"""`make starve` names each test that fails on a busy machine, or with late brokers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import pauses
import starve

TESTS = """
def test_good():
    pass

def test_bad():
    assert 1 == 2, "it had not happened by now"
"""

LATE_TESTS = """
from importlib import import_module

import pytest
import sitecustomize

@pytest.mark.parametrize("name", sitecustomize.DELAYS)
def test_delayed(name):
    found = list(vars(import_module(name)).values())
    found += [method for each in found if isinstance(each, type) for method in vars(each).values()]
    assert any(getattr(each, "__module__", "") == "sitecustomize" for each in found)
"""


def test_the_failed_tests_are_named_and_the_loops_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "test_sample.py"
    sample.write_text(TESTS)
    arguments = ["--loops", "1", "--workers", "1", str(sample), "--rootdir", str(tmp_path)]
    code = starve.main([*arguments, "-p", "no:cacheprovider", "-c", "/dev/null"])
    said = capsys.readouterr().out
    assert code == 1
    assert "FAILED test_sample::test_bad" in said
    assert "it had not happened by now" in said
    assert "FAILED test_sample::test_good" not in said
    assert "1 passed or skipped, 1 failed" in said


def test_late_brokers_delay_every_kind_of_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "test_sample.py"
    sample.write_text(LATE_TESTS)
    arguments = ["--loops", "0", "--late", "--workers", "1", str(sample), "-W", "error"]
    code = starve.main(
        [*arguments, "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-c", "/dev/null"]
    )
    said = capsys.readouterr().out
    assert code == 0, said
    found = re.search(r"(\d+) passed or skipped, 0 failed", said)
    assert found is not None, said
    assert int(found[1]) >= 6


PAUSED_TESTS = """
import subprocess, sys, time

LOOK = '''
import time
before = longest = 0.0
while longest < 0.2:
    now = time.monotonic()
    longest, before = max(longest, now - (before or now)), now
    time.sleep(0.001)
'''

def test_paused():
    subprocess.run([sys.executable, "-c", LOOK], check=True, timeout=60)
"""


@pytest.mark.skipif(not pauses.can_freeze(), reason="needs the right to make cgroups")
def test_pauses_stop_the_processes_that_tests_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process of the test looks for a gap in its own time."""
    sample = tmp_path / "test_sample.py"
    sample.write_text(PAUSED_TESTS)
    arguments = ["--loops", "0", "--workers", "1", "--pauses", "0.5", str(sample)]
    code = starve.main(
        [*arguments, "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-c", "/dev/null"]
    )
    assert code == 0, capsys.readouterr().out
    assert not list(pauses.ROOT.glob(f"**/pauses-{os.getpid()}"))
