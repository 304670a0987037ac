"""Tests secrets, the data folder of a worker, and what a worker may run."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.runtime import SystemRandom
from penstock.spark.deployments import topics
from penstock.spark.deployments.catalog_view import CatalogView
from penstock.spark.deployments.eligibility import eligible
from penstock.spark.deployments.model import Deployment, Status, Version, WorkerStatus, encode
from penstock.spark.deployments.needed_here import needed_here
from penstock.spark.deployments.secret_files import read_secrets
from penstock.spark.deployments.worker_folder import WorkerFolder
from penstock.spark.pipelines.errors import PipelineError


def test_secrets_are_read_from_files_that_others_cannot_read(tmp_path: Path) -> None:
    folder = tmp_path / "my secrets"
    folder.mkdir()
    file = folder / "TOKEN"
    file.write_text("quite-secret\n")
    file.chmod(0o600)
    assert read_secrets(str(folder), ["TOKEN"]) == {"TOKEN": "quite-secret"}
    file.chmod(0o640)
    with pytest.raises(PipelineError, match=r"chmod 600 '.*my secrets/TOKEN',") as refused:
        read_secrets(str(folder), ["TOKEN"])
    assert "quite" not in str(refused.value)
    with pytest.raises(PipelineError, match="OTHER is missing on this worker"):
        read_secrets(str(folder), ["OTHER"])
    with pytest.raises(PipelineError, match="--secrets DIR"):
        read_secrets("", ["TOKEN"])
    with pytest.raises(PipelineError, match="is not the name of a secret"):
        read_secrets(str(folder), ["../TOKEN"])


def test_a_data_folder_keeps_its_id(tmp_path: Path) -> None:
    folder = WorkerFolder(str(tmp_path / "data"))
    found = folder.prepare(SystemRandom())
    assert found and folder.prepare(SystemRandom()) == found
    assert WorkerFolder(str(tmp_path / "other")).prepare(SystemRandom()) != found


def test_storage_is_the_workers_folder_unless_a_deployment_names_another(tmp_path: Path) -> None:
    folder = WorkerFolder(str(tmp_path))
    own = Deployment("views", 1, 1)
    assert folder.storage(own) == str(tmp_path / "storage" / "views")
    assert folder.metastore(own) == tmp_path / "storage" / "views"
    local = Deployment("views", 1, 1, storage="file:///shared/views")
    assert folder.metastore(local) == Path("/shared/views")
    remote = Deployment("views", 1, 1, storage="s3a://bucket/views")
    assert folder.metastore(remote) == tmp_path / "storage" / "views"


def test_files_of_old_versions_are_removed(tmp_path: Path) -> None:
    folder = WorkerFolder(str(tmp_path))
    versions = [Version("views", number, "project", "x", "a" * 64, 1) for number in (1, 2)]
    for version in versions:
        folder.files(version).mkdir(parents=True)
    folder.drop_files("views", {folder.files(versions[1]).name})
    assert [folder.files(version).exists() for version in versions] == [False, True]


def names(
    deployments: list[Deployment], statuses: list[Status], memory_mb: int = 0, *owned: str
) -> set[str]:
    return set(
        eligible(
            {each.name: each for each in deployments},
            {each.name: each for each in statuses},
            storage_id="here",
            memory_mb=memory_mb,
            owned=frozenset(owned),
            live=frozenset({"other"}),
        )
    )


def test_a_pipeline_stays_with_the_folder_that_has_its_tables() -> None:
    deployments = [
        Deployment("new", 1, 1),
        Deployment("here", 1, 1),
        Deployment("there", 1, 1),
        Deployment("shared", 1, 1, storage="s3a://x"),
    ]
    statuses = [
        Status("here", "RUNNING", 1, 1, storage_id="here"),
        Status("there", "RUNNING", 1, 1, storage_id="there"),
        Status("shared", "RUNNING", 1, 1, storage_id=""),
    ]
    assert names(deployments, statuses) == {"new", "here", "shared"}


def test_memory_limits_what_a_worker_runs() -> None:
    """What it owns comes first, then what no live worker runs."""
    deployments = [Deployment(name, 1, 1, memory_mb=1000) for name in "abcd"]
    statuses = [Status("b", "RUNNING", 1, 1, worker="other")]
    assert names(deployments, statuses, 3000, "d") == {"a", "c", "d"}
    assert names([Deployment("a", 1, 1, memory_mb=4000)], [], 3000) == set()


def test_files_are_needed_here_or_elsewhere() -> None:
    deployments = {
        name: Deployment(name, 1, 1) for name in ("mine", "stored", "moved", "beside", "unowned")
    }
    statuses = {
        "stored": Status("stored", "RUNNING", 1, 1, storage_id="here"),
        "deleted": Status("deleted", "STOPPED", 1, 1, storage_id="here"),
    }
    live = [
        WorkerStatus("a", "host", "there", 1, 1, pipelines=["moved", "stored", "mine"]),
        WorkerStatus("b", "host", "here", 1, 1, pipelines=["beside", "just-deleted"]),
    ]
    found = needed_here(deployments, statuses, live, storage_id="here", here=["mine", "ends"])
    assert found == {"mine", "stored", "beside", "unowned", "just-deleted", "ends"}


def test_details_of_deleted_pipelines_are_forgotten() -> None:
    """A new deployment of the name needs the rest, such as where the tables are."""
    view = CatalogView()
    key, status_key = topics.deployment_key("views"), topics.status_key("views")
    status = Status("views", "RUNNING", 1, 1, storage_id="here", run={"flows": ["x" * 1_000]})
    view.apply(topics.STATUS, status_key, encode(status))
    view.apply(topics.DEFINITIONS, key, encode(Deployment("views", 1, 1)))
    assert view.statuses["views"].run
    view.apply(topics.DEFINITIONS, key, None)
    assert view.statuses["views"].run == {} and view.statuses["views"].storage_id == "here"
    view.apply(topics.STATUS, status_key, encode(status))
    view.forget_details_of_deleted()
    assert view.statuses["views"].run == {}
