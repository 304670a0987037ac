"""Tests what is said about a pipeline that waits for a worker: why, and what to do."""

from __future__ import annotations

from penstock.spark.deployments.model import Deployment, Status, WorkerStatus
from penstock.spark.deployments.waiting import waiting_reason

HERE = Status("views", "WAITING FOR A WORKER", 1, 1, host="box-1", storage_id="disk-1")


def reason(
    *workers: WorkerStatus, status: Status | None = None, memory_mb: int = 1024, storage: str = ""
) -> str:
    deployments = {
        "views": Deployment("views", 1, 1, memory_mb=memory_mb, storage=storage),
        "other": Deployment("other", 1, 1, memory_mb=1500),
    }
    statuses = {} if status is None else {"views": status}
    return waiting_reason("views", deployments, statuses, workers)


def worker(storage: str = "disk-1", memory_mb: int = 0, *owned: str) -> WorkerStatus:
    return WorkerStatus(
        f"w-{storage}", "box", storage, 0, 0, pipelines=list(owned), memory_mb=memory_mb
    )


def test_no_worker_runs() -> None:
    text = reason(status=HERE)
    assert text.startswith("No worker is running.")
    assert "penstock pipeline worker --data DIR" in text


def test_no_worker_may_take_it() -> None:
    text = reason(worker("disk-2"), status=HERE)
    assert text.startswith("No worker may take it") and "the worker on box-1" in text
    assert "with the same --data" in text
    assert "in a moment" in reason(worker("disk-2"), status=HERE, storage="s3://a/b")
    assert "in a moment" in reason(worker("disk-2")), "it never ran"


def test_no_worker_has_room() -> None:
    text = reason(worker("disk-1", 2048, "other"), status=HERE)
    assert "it needs 1,024 MB, and at most 548 MB are free" in text
    assert "Start another worker" in text
    assert "in a moment" in reason(worker("disk-1", 4096, "other"), status=HERE)
    # The room of a worker that may not take it does not count.
    text = reason(worker("disk-1", 2048, "other"), worker("disk-2", 9000), status=HERE)
    assert "548 MB are free" in text


def test_it_is_larger_than_every_worker() -> None:
    text = reason(worker("disk-1", 2048), memory_mb=4096)
    assert "it needs 4,096 MB, and the largest worker has 2,048 MB" in text
    assert "more --memory" in text


def test_a_worker_has_it_already() -> None:
    assert "is about to start it" in reason(worker("disk-1", 1024, "views"), status=HERE)
