"""Tests whose fault it is that a version cannot be prepared. Others lead to no rollback."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from penstock.client.errors import BrokerError, ConnectFailed
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.spark.deployments.archive import pack
from penstock.spark.deployments.catalog_errors import AccessRefused, ArchiveDamaged
from penstock.spark.deployments.environments import EnvironmentFailed
from penstock.spark.deployments.model import Deployment, Version
from penstock.spark.deployments.preparation import NotPreparable, Preparation
from penstock.spark.deployments.worker_folder import WorkerFolder
from penstock.spark.pipelines.errors import PipelineError
from penstock.wire.errors import ErrorCode

VERSION = Version("views", 1, "script", "job.py", "a" * 64, 1)


class Files:
    """A catalog that has the files of one version, or an error."""

    def __init__(self, found: bytes | Exception) -> None:
        self._found = found

    async def archive(self, _: Version) -> bytes:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def versions_of(self, _: str) -> list[Version]:
        return []


def refused(folder: Path, found: bytes | Exception, deployment: Deployment) -> NotPreparable:
    async def work() -> None:
        threads = Threads(2)
        worker_folder = WorkerFolder(str(folder / "data"))
        worker_folder.prepare(SystemRandom())
        catalog: Any = Files(found)
        preparation = Preparation(
            catalog, worker_folder, threads, SystemClock(), worker="w", bootstrap="localhost:1"
        )
        try:
            await preparation.prepare(deployment, VERSION, lambda _: None)
        finally:
            threads.close()

    with pytest.raises(NotPreparable) as error:
        asyncio.run(work())
    return error.value


@pytest.mark.parametrize(
    ("error", "lasting", "outside"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/data"), False, True),
        (AccessRefused("this user may not read the files of pipelines"), False, True),
        (BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), False, True),
        (BrokerError(ErrorCode.NOT_CONTROLLER), False, True),
        (ConnectFailed("localhost:1", "refused"), False, True),
        (EnvironmentFailed("pip cannot install: timed out", lasting=False), False, True),
        # These have to do with the version.
        (BrokerError(ErrorCode.INVALID_PARTITIONS), False, False),
        (EnvironmentFailed("pip cannot install: no such package", lasting=True), True, False),
        (ArchiveDamaged("the files are damaged"), True, False),
        (PipelineError("the project has no storage"), True, False),
    ],
)
def test_whose_fault_it_is(tmp_path: Path, error: Exception, lasting: bool, outside: bool) -> None:
    found = refused(tmp_path, error, Deployment("views", 1, 1))
    assert (found.lasting, found.outside) == (lasting, outside)


def test_a_missing_secret_is_not_the_fault_of_a_version(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "job.py").write_text("pass")
    found = refused(
        tmp_path, pack(tmp_path / "project"), Deployment("views", 1, 1, secrets=["TOKEN"])
    )
    assert (found.lasting, found.outside) == (False, True)
    assert "--secrets DIR" in str(found)
