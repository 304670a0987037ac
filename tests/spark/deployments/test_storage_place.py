"""Tests which storages are the same place."""

from __future__ import annotations

import pytest

from penstock.spark.deployments import change_plan
from penstock.spark.deployments.catalog_view import CatalogView
from penstock.spark.deployments.change_plan import Change, NewVersion
from penstock.spark.deployments.model import Deployment
from penstock.spark.deployments.storage_place import check_storage, storage_place
from penstock.spark.pipelines.errors import PipelineError


@pytest.mark.parametrize(
    ("storage", "place"),
    [
        ("", ""),
        ("/mnt/x", "file:///mnt/x"),
        ("/mnt/x/", "file:///mnt/x"),
        ("/mnt/y/../x", "file:///mnt/x"),
        ("//mnt//./x", "file:///mnt/x"),
        ("file:/mnt/x", "file:///mnt/x"),
        ("file:///mnt/x/", "file:///mnt/x"),
        ("file://localhost/mnt/x", "file:///mnt/x"),
        ("file:///mnt/a%20b", "file:///mnt/a b"),
        ("s3a://bucket/x/", "s3a://bucket/x"),
        ("S3://Bucket/x", "s3a://bucket/x"),
        ("s3a://bucket", "s3a://bucket/"),
        ("s3a://bucket/X", "s3a://bucket/X"),
        ("hdfs://Name:8020/x//y", "hdfs://name:8020/x/y"),
    ],
)
def test_all_ways_to_write_a_storage_have_the_same_place(storage: str, place: str) -> None:
    assert storage_place(storage) == place


@pytest.mark.parametrize("storage", ["s3://[x", "file://[x", "s3://x]y"])
def test_what_is_not_a_url_is_told(storage: str) -> None:
    with pytest.raises(PipelineError, match="is neither a folder nor a URL"):
        storage_place(storage)
    with pytest.raises(PipelineError, match="is neither a folder nor a URL"):
        check_storage(storage, "views", {})


def test_the_storage_of_another_deployment_is_not_the_fault_of_this_one() -> None:
    others = {"old": Deployment("old", 1, 1, storage="s3://[x")}
    check_storage("s3://bucket/x", "views", others)


def test_a_change_does_not_give_two_pipelines_one_storage() -> None:
    """A folder inside the storage of another pipeline is a storage of its own."""
    view = CatalogView()
    view.deployments["views"] = Deployment("views", 1, 1, storage="file:///mnt/x")

    def planned(name: str, storage: str | None) -> Deployment:
        plan = NewVersion(name, "project", "x", b"x", storage=storage)
        return change_plan.planned(view, plan, 2, Change("ann", 1))

    for storage in ("/mnt/x", "file:///mnt/x/", "/mnt/x/../x"):
        with pytest.raises(PipelineError, match="the storage of views: give each pipeline its own"):
            planned("clicks", storage)
    assert planned("clicks", "/mnt/x/clicks").storage == "/mnt/x/clicks"
    assert planned("clicks", None).storage == ""
    assert planned("views", "/mnt/x").storage == "/mnt/x"
