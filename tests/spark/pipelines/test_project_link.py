"""Tests the link to the files of a project, for Python processes that started before it was
known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from penstock.spark.pipelines.project_link import make_link, point_link

PROCESS = """
import sys
for name in sys.stdin:
    try:
        __import__(name.strip())
        print("found", flush=True)
    except ImportError:
        print("missing", flush=True)
"""


def test_a_process_that_started_before_finds_the_modules_of_the_project(tmp_path: Path) -> None:
    link, root = tmp_path / "project", tmp_path / "files"
    make_link(link)
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS],
        env={**os.environ, "PYTHONPATH": str(link)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def answer(name: str) -> str:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert answer("module_of_the_project") == "missing"
        root.mkdir()
        (root / "module_of_the_project.py").write_text("")
        # The folder is older than the empty one, as files that were unpacked before.
        os.utime(root, (1_000_000_000, 1_000_000_000))
        point_link(link, root)
        assert answer("module_of_the_project") == "found"
        process.stdin.close()


def test_a_link_can_be_pointed_again(tmp_path: Path) -> None:
    link = tmp_path / "deep" / "project"
    make_link(link)
    assert list(link.iterdir()) == []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        point_link(link, tmp_path / name)
        assert link.resolve() == tmp_path / name
