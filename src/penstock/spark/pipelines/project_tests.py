"""Runs the tests of a pipeline project with pytest, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.project import Project
from penstock.spark.pipelines.runner import check_spark

FOLDER: Final = "tests"
_NO_TESTS: Final = 5
"""pytest's exit code if it found no test."""
_PLUGIN: Final = "penstock.testing.plugin"


def check_tests(project: Project) -> Path:
    """Returns the folder of the tests. Raises `PipelineError` if the tests cannot be run."""
    folder = project.root / FOLDER
    if not any(folder.rglob("test_*.py")) and not any(folder.rglob("*_test.py")):
        raise PipelineError(
            f"{project.name} has no tests: write them into {folder / 'test_pipeline.py'}, with the "
            "fixture penstock_pipeline (see Test a pipeline in docs/SPARK.md)"
        )
    if find_spec("pytest") is None:
        raise PipelineError("the tests of a pipeline need pytest: pip install pytest")
    check_spark()
    return folder


def run_tests(project: Project, arguments: Sequence[str]) -> int:
    """Runs the tests and returns pytest's exit code: 0 if all of them passed."""
    folder = check_tests(project)
    code = subprocess.run(  # noqa: S603 (this Python)
        [sys.executable, "-m", "pytest", *_given_plugin(), str(folder), *arguments],
        cwd=project.root,
        check=False,
    ).returncode
    if code == _NO_TESTS and not arguments:
        raise PipelineError(f"pytest found no tests in {folder}: name them test_...")
    return code


def _given_plugin() -> list[str]:
    """Returns the arguments that load the fixtures. pytest finds them by itself if Penstock was
    installed; they are missing if only its source is on the path."""
    from importlib.metadata import entry_points  # noqa: PLC0415 (only here)

    known = {entry.value for entry in entry_points(group="pytest11")}
    return [] if _PLUGIN in known else ["-p", _PLUGIN]
