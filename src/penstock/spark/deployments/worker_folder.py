"""The data folder of a worker.

storage-id              names the folder: tables in it can only be used by its workers
files/NAME/VERSION-...  the unpacked files of a version. Removed a day after the last use of a
                        pipeline that is deleted, or that a worker with another folder runs
environments/HASH       virtual environments
storage/NAME            tables, checkpoints and metastore of a pipeline without shared storage;
                        _generations/N in it: those of a recompute, see `generations`
logs/NAME               the log of its drivers; removed seven days after the last line of such a
                        pipeline
spark-home-HASH         links to PySpark: see `penstock.spark.home`
class-archives/HASH.jsa archives of Java classes: see `penstock.spark.class_archive`
spares/WORKER/ID        temporary files of a driver; of one that was started in advance also its
                        working folder. Removed when the driver has ended
spares/WORKER.lock      locked while the worker runs: others remove the folder of one that has ended
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.ports import Random
from penstock.spark.deployments.checkpoint_folders import local_folder
from penstock.spark.deployments.file_lock import remove_lock, try_lock, wait_for_lock
from penstock.spark.deployments.generations import generation_storage
from penstock.spark.deployments.model import Deployment, Version
from penstock.spark.partial_files import is_partial, partial_path, remove_left

_LOCK: Final = ".lock"
_HOUR_MS: Final = 3_600_000
_KEPT_MS: Final = {"files": 24 * _HOUR_MS, "logs": 7 * 24 * _HOUR_MS}
"""For how long what is not needed is kept. Lines are kept in the cluster for as long as logs."""


class WorkerFolder:
    """Its methods block: call those that write on a thread."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).resolve()
        self._spares = self.path / "spares"
        self._lock: int | None = None

    def prepare(self, random: Random) -> str:
        """Makes the folder if it is missing, and returns its storage id."""
        for name in ("files", "environments", "storage", "logs", "spares"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        file = self.path / "storage-id"
        if not file.exists():
            partial = partial_path(file)
            partial.write_text(random.bytes(8).hex() + "\n", "utf-8")
            with suppress(FileExistsError):  # Another worker was faster.
                os.link(partial, file)
            partial.unlink()
        return file.read_text("utf-8").strip()

    def claim_spares(self, worker: str) -> None:
        """Begins to use the folders for drivers of this worker, and removes those of workers that
        have ended, as after a crash."""
        spares = self.path / "spares"
        # Another worker that starts may have it for a moment, to see whether this one runs.
        self._lock = wait_for_lock(spares / f"{worker}{_LOCK}")
        self._spares = spares / worker
        self._spares.mkdir(exist_ok=True)
        for entry in list(spares.iterdir()):
            name = entry.name.removesuffix(_LOCK)
            if name == worker:
                continue
            lock = try_lock(spares / f"{name}{_LOCK}")
            if lock is not None:
                shutil.rmtree(spares / name, ignore_errors=True)
                remove_lock(spares / f"{name}{_LOCK}", lock)

    def release_spares(self) -> None:
        """Removes the folders of its drivers. None of them may run any more."""
        if self._lock is not None:
            shutil.rmtree(self._spares, ignore_errors=True)
            remove_lock(self._spares.with_name(f"{self._spares.name}{_LOCK}"), self._lock)
            self._lock = None

    def files(self, version: Version) -> Path:
        return self.path / "files" / version.name / f"{version.number}-{version.archive[:12]}"

    def drop_files(self, name: str, kept: set[str]) -> None:
        """Removes the files of versions that are not kept."""
        folder = self.path / "files" / name
        if not folder.is_dir():
            return
        for entry in list(folder.iterdir()):
            # Another worker may be making a partial one.
            if entry.name not in kept and not is_partial(entry):
                shutil.rmtree(entry, ignore_errors=True)
        remove_left(folder)

    def mark_used(self, name: str) -> None:
        """The files of a pipeline are used now."""
        with suppress(OSError):  # There are none yet, or another user has them.
            os.utime(self.path / "files" / name)

    def drop_unused(self, needed: Collection[str], wall_ms: int) -> None:
        """Removes the files and logs of pipelines that are not needed here, after a time: another
        worker with this folder may still use them, and a log may still be read."""
        for kind, kept_ms in _KEPT_MS.items():
            for folder in list((self.path / kind).iterdir()):
                with suppress(OSError):  # Another worker was faster.
                    age_ms = wall_ms - _changed_ms(folder)
                    if folder.name not in needed and age_ms > kept_ms:
                        shutil.rmtree(folder, ignore_errors=True)

    def own_storage(self, name: str) -> Path:
        return self.path / "storage" / name

    def root_storage(self, deployment: Deployment) -> str:
        """Returns the folder or URL that has all generations of tables and checkpoints."""
        return deployment.storage or str(self.own_storage(deployment.name))

    def storage(self, deployment: Deployment) -> str:
        """Returns the folder or URL for checkpoints and tables of the deployment's generation."""
        return generation_storage(self.root_storage(deployment), deployment.generation)

    def metastore(self, deployment: Deployment) -> Path:
        """Returns the folder of the metastore: in the storage, if that is a local folder."""
        return local_folder(self.storage(deployment)) or self.working(deployment)

    def working(self, deployment: Deployment) -> Path:
        """Returns the working folder of a driver."""
        own = str(self.own_storage(deployment.name))
        return Path(generation_storage(own, deployment.generation))

    def logs(self, name: str) -> Path:
        return self.path / "logs" / name

    def environments(self) -> Path:
        return self.path / "environments"

    def spare(self, number: str) -> Path:
        """Returns the folder of a driver. It is removed with the driver, or with the worker."""
        return self._spares / number


def _changed_ms(folder: Path) -> float:
    """Returns when a folder, or something in it, was last changed. Only two levels: a log has no
    more, and the files of a version do not change."""
    found = [folder, *folder.iterdir(), *folder.glob("*/*.log*")]
    return max(each.lstat().st_mtime for each in found) * 1000
