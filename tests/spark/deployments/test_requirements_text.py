"""Tests what is read from a requirements.txt, and from the output of pip."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.deployments.pip_output import is_lasting
from penstock.spark.deployments.project_files import prepare
from penstock.spark.deployments.requirements_text import (
    check_requirements,
    editable_line,
    refers_to_files,
)
from penstock.spark.pipelines.errors import PipelineError


@pytest.mark.parametrize(
    "line",
    [
        "requests",
        "requests==2.31  # a comment with ./a/path",
        "requests[socks,security] >= 2 ; python_version < '4'",
        "requests==2 \\\n    --hash=sha256:ab",
        "own @ https://example.org/own-1.0.tar.gz",
        "https://example.org/own-1.0-py3-none-any.whl",
        "git+https://example.org/own.git@v1",
        "-e git+ssh://git@example.org/own.git#egg=own",
        "--index-url https://example.org/simple --pre",
        "-i https://example.org/simple",
        "--find-links=https://example.org/wheels",
        "--no-binary :all:",
    ],
)
def test_these_lines_mean_the_same_in_every_project(line: str) -> None:
    assert not refers_to_files(f"# first\n{line}\n".encode())


@pytest.mark.parametrize(
    "line",
    [
        "-r requirements/base.txt",
        "-rbase.txt",
        "--requirement=base.txt",
        "--pre -r base.txt",
        "-c constraints.txt",
        "--constraint constraints.txt",
        "--find-links wheels",
        "--find-links=./wheels",
        "-i file:///simple",
        "./libs/own-1.0-py3-none-any.whl",
        "own-1.0-py3-none-any.whl",
        "own-1.0.tar.gz",
        "libs/own",
        "own[extra] @ file:///libs/own",
        "own @ ./libs/own",
        "git+file:///libs/own",
        ".",
        ".[extra]",
        "-e .",
        "/opt/own",
        "file:libs/own",
        "req\\\nuests/x",
        "--something-new",
    ],
)
def test_these_lines_refer_to_files(line: str) -> None:
    assert refers_to_files(f"requests\n{line}\n".encode())


@pytest.mark.parametrize("line", ["-e .", "--editable=.", "--pre --editable .", "-e file:libs/x"])
def test_a_deploy_refuses_editable_packages_of_the_project(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"requests\n{line}\n")
    with pytest.raises(PipelineError, match=r"requirements\.txt, line 2: .*editable"):
        check_requirements(tmp_path)
    (tmp_path / "job.py").write_text("print()\n")
    with pytest.raises(PipelineError, match="editable"):
        prepare(tmp_path / "job.py")


def test_an_editable_package_is_found_in_a_list_that_is_included(tmp_path: Path) -> None:
    """The message says what to write. Lists that include each other end."""
    (tmp_path / "lists").mkdir()
    (tmp_path / "requirements.txt").write_text("-r lists/base.txt\n")
    base = tmp_path / "lists" / "base.txt"
    base.write_text("-r ../requirements.txt\n-c more.txt\n-e git+https://example.org/x#egg=x\n")
    assert editable_line(tmp_path) is None
    (tmp_path / "lists" / "more.txt").write_text("\n# nothing\n-e ../libs/own\n")
    with pytest.raises(PipelineError, match=r"lists/more.txt, line 3: .*write ../libs/own$"):
        check_requirements(tmp_path)


NONE_FOUND = (
    "ERROR: Could not find a version that satisfies the requirement x==9 (from versions: none)\n"
    "ERROR: No matching distribution found for x==9\n"
)
NOT_FOUND = (
    "Could not fetch URL https://i/simple/x/: 404 Client Error: Not Found for url - skipping"
)

RETRIED = "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'\n"
CONFLICT = (
    "because these package versions have conflicting dependencies.\n"
    "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io\n"
)


@pytest.mark.parametrize(
    ("output", "log", "lasting"),
    [
        ("ERROR: Invalid requirement: 'x=='\n", "", True),
        ("ERROR: Could not open requirements file: No such file: 'base.txt'\n", "", True),
        (NONE_FOUND.replace("none", "1.0, 2.0"), "", True),
        (NONE_FOUND, NOT_FOUND, True),
        (NONE_FOUND, "", False),
        (NONE_FOUND, NOT_FOUND.replace("404 Client", "503 Server"), False),
        (NONE_FOUND, f"{NOT_FOUND}\n{NOT_FOUND.replace('404 Client', '403 Client')}", False),
        (NONE_FOUND, f"{NOT_FOUND}\nCould not fetch URL https://j/x/: timed out - skipping", False),
        (RETRIED + NONE_FOUND, NOT_FOUND, False),
        (CONFLICT, "", True),
        ("ERROR: Could not install packages due to an OSError: No space left on device", "", False),
        ("ERROR: Failed building wheel for x", "", False),
        ("", "", False),
    ],
)  # fmt: skip
def test_a_failure_of_pip_is_lasting_only_if_it_is_clear(
    output: str, log: str, lasting: bool
) -> None:
    assert is_lasting(output, log) is lasting
