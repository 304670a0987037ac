"""Tests how a flow begins again without its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.deployments.checkpoint_folders import local_folder, reset_flow
from penstock.spark.pipelines.errors import PipelineError


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "metadata").write_text("{}")
    return folder


def test_a_flow_of_a_project_gets_a_new_folder(tmp_path: Path) -> None:
    flow = tmp_path / "_checkpoints/spark_catalog/default/clicks/clicks"
    checkpoint(flow / "0")
    checkpoint(flow / "9")
    latest = checkpoint(flow / "10")
    other = checkpoint(tmp_path / "_checkpoints/sink/send/0")
    assert reset_flow(f"file://{tmp_path}", "clicks") == [latest]
    assert sorted(each.name for each in flow.iterdir()) == ["0", "10", "11", "9"]
    assert list((flow / "11").iterdir()) == []
    assert [each.name for each in other.parent.iterdir()] == ["0"]
    assert reset_flow(str(tmp_path), "clicks") == [], "it has not begun yet"


def test_the_table_of_a_flow_begins_again_with_it(tmp_path: Path) -> None:
    """Spark would skip the new batch 0, because the table's own record has a batch 0."""
    checkpoint(tmp_path / "_checkpoints/spark_catalog/default/clicks/clicks/0")
    table, other = tmp_path / "warehouse/clicks", tmp_path / "warehouse/views"
    for each in (table, other):
        (each / "_spark_metadata").mkdir(parents=True)
        (each / "_spark_metadata/0").write_text("v1")
    (table / "part-0.parquet").write_text("rows")
    reset_flow(str(tmp_path), "clicks")
    assert (table / "_spark_metadata.reset-1/0").is_file()
    assert not (table / "_spark_metadata").exists()
    assert (table / "part-0.parquet").is_file()
    assert (other / "_spark_metadata/0").is_file()


def test_a_flow_into_a_sink(tmp_path: Path) -> None:
    checkpoint(tmp_path / "_checkpoints/out/send/0")
    reset_flow(str(tmp_path), "spark_catalog.default.send")
    assert (tmp_path / "_checkpoints/out/send/1").is_dir()


def test_the_query_of_a_script(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "_checkpoints/copy")
    for number in (1, 2):
        assert reset_flow(str(tmp_path), "copy") == [folder]
        assert not folder.exists()
        assert (tmp_path / f"_checkpoints/copy.reset-{number}/metadata").is_file()
        checkpoint(folder)


def test_a_flow_without_a_checkpoint(tmp_path: Path) -> None:
    assert reset_flow(str(tmp_path / "missing"), "clicks") == []
    with pytest.raises(PipelineError):
        reset_flow(str(tmp_path), "../x")


def test_other_storage_names_the_folder_to_delete() -> None:
    with pytest.raises(PipelineError, match="s3a://bucket/x/_checkpoints/TARGET/clicks"):
        reset_flow("s3a://bucket/x/", "clicks")


def test_urls_of_folders() -> None:
    assert local_folder("/a b") == Path("/a b")
    assert local_folder("file:///a%20b") == Path("/a b")
    assert local_folder("file:/a") == Path("/a")
    assert local_folder("hdfs://n/a") is None
    assert local_folder("file://other-machine/a") is None
