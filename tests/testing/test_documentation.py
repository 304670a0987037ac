"""Runs the examples of docs/TESTING.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from penstock.testing.slowness import patient

TEXT = (Path(__file__).parents[2] / "docs" / "TESTING.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
WITHOUT_PYTEST = [block for block in BLOCKS if "def test_" not in block]


def run(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=patient(100),
        check=False,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_pytest_examples_of_the_documentation_pass(tmp_path: Path) -> None:
    """Each example is a separate module. The one with broker settings runs alone, because settings
    apply to a whole pytest run."""
    tests = [block for block in BLOCKS if "def test_" in block]
    for number, block in enumerate(tests):
        folder = tmp_path / ("settings" if "penstock_broker_settings" in block else "plain")
        folder.mkdir(exist_ok=True)
        (folder / f"test_example_{number}.py").write_text(block)
    assert len(tests) == 6
    assert "1 passed" in run(tmp_path / "settings", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "5 passed" in run(tmp_path / "plain", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert not list(tmp_path.glob("penstock-broker-*")), "a broker left its directory behind"


def test_the_example_without_pytest_runs(tmp_path: Path) -> None:
    (block,) = WITHOUT_PYTEST
    assert "a slow one at 127.0.0.1:" in run(tmp_path, "-c", block)
