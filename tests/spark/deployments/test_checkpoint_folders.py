"""Tests how a query of a script begins again without its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.deployments.checkpoint_folders import (
    check_resettable,
    local_folder,
    reset_query,
)
from penstock.spark.pipelines.errors import PipelineError


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "metadata").write_text("{}")
    return folder


def test_the_query_of_a_script(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "_checkpoints/copy")
    for number in (1, 2):
        assert reset_query(str(tmp_path), "copy") == [folder]
        assert not folder.exists()
        assert (tmp_path / f"_checkpoints/copy.reset-{number}/metadata").is_file()
        checkpoint(folder)


def test_a_query_without_a_checkpoint(tmp_path: Path) -> None:
    assert reset_query(str(tmp_path / "missing"), "clicks") == []
    with pytest.raises(PipelineError):
        reset_query(str(tmp_path), "../x")


def test_other_storage_names_the_folder_to_delete() -> None:
    with pytest.raises(PipelineError, match="s3a://bucket/x/_checkpoints/clicks"):
        reset_query("s3a://bucket/x/", "clicks")
    check_resettable("project", "s3a://bucket/x", "clicks")


def test_urls_of_folders() -> None:
    assert local_folder("/a b") == Path("/a b")
    assert local_folder("file:///a%20b") == Path("/a b")
    assert local_folder("file:/a") == Path("/a")
    assert local_folder("hdfs://n/a") is None
    assert local_folder("file://other-machine/a") is None
