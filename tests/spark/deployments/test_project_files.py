"""Tests that mistakes in the files of a project are told as such."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("yaml", reason='pipelines need PySpark: pip install "penstock[spark]"')

from penstock.spark.deployments.project_files import prepare
from penstock.spark.pipelines.errors import PipelineError

SPEC = """name: clicks
storage: {storage}
libraries:
  - glob:
      include: {include}
"""


def project(folder: Path, storage: str, include: str, ignored: bytes) -> Path:
    (folder / "views").mkdir()
    (folder / "views" / "clicks.py").write_text("query = 1\n")
    (folder / "spark-pipeline.yml").write_text(SPEC.format(storage=storage, include=include))
    (folder / ".penstockignore").write_bytes(ignored)
    return folder


def test_a_project_without_mistakes(tmp_path: Path) -> None:
    found = prepare(project(tmp_path, "s3a://bucket/x", "views/**", b"*.csv\n"))
    assert (found.name, found.storage) == ("clicks", "s3a://bucket/x")


@pytest.mark.parametrize(
    ("ignored", "text"),
    [
        (b"\xff", ".penstockignore is not valid UTF-8 text"),
        (b"[z-a]", "has the pattern '[z-a]': bad character range z-a"),
        (b"x/[!]", "has the pattern 'x/[!]': unterminated character set"),
    ],
)
def test_what_is_not_ignored_is_told(tmp_path: Path, ignored: bytes, text: str) -> None:
    with pytest.raises(PipelineError) as told:
        prepare(project(tmp_path, "x", "views/**", ignored))
    assert text in str(told.value)


@pytest.mark.parametrize("include", ["views/**x", ".", "a" * 300, '"a\\0b"', "views/[z-a]"])
def test_a_bad_pattern_of_definitions_is_told(tmp_path: Path, include: str) -> None:
    """Which of them Python refuses depends on its version. The others match nothing."""
    told = "in libraries cannot be used|no file matches the libraries"
    with pytest.raises(PipelineError, match=told):
        prepare(project(tmp_path, "x", include, b""))


@pytest.mark.parametrize("storage", ["file://[x", "s3://[x", '"a\\0b"'])
def test_a_bad_storage_is_told(tmp_path: Path, storage: str) -> None:
    with pytest.raises(PipelineError, match="is neither a folder nor a URL"):
        prepare(project(tmp_path, storage, "views/**", b""))
