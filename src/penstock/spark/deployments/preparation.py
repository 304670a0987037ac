"""Prepares a version on a worker: files, virtual environment, secrets, topics, settings."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from penstock.client.errors import BrokerError, ClientError
from penstock.ports import Clock, Executor
from penstock.spark.class_archive import ClassArchives
from penstock.spark.deployments.archive import unpack
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_errors import AccessRefused, is_refusal
from penstock.spark.deployments.checkpoint_folders import local_folder, reset_query
from penstock.spark.deployments.driver_process import DriverStart
from penstock.spark.deployments.environments import EnvironmentFailed, Environments
from penstock.spark.deployments.model import Deployment, Version
from penstock.spark.deployments.secret_files import SecretMissing, read_secrets
from penstock.spark.deployments.supervisor_events import Defined, Prepare
from penstock.spark.deployments.worker_folder import WorkerFolder
from penstock.spark.deployments.worker_guard import WORKER_VARIABLE
from penstock.spark.home import shared_home
from penstock.spark.pipelines.driver_control import Assignment
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.project import BOOTSTRAP_SETTING, load_project
from penstock.spark.pipelines.project_link import make_link
from penstock.spark.pipelines.runner import CONNECT_MODE, prepare_topics

DEFAULT_MASTER: Final = "local[2]"
DEFAULT_MEMORY_MB: Final = 1024
_OWN_HOME: Final = ("local", "spark://")
"""Masters whose executors are in the driver, or use a SPARK_HOME of their own. Others are sent
files of the driver's SPARK_HOME."""
_CHANGED_AT_RUN_TIME: Final = frozenset(
    {
        "spark.sql.ansi.enabled",
        "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.noDataMicroBatches.enabled",
        "spark.sql.streaming.pollingDelay",
    }
)
"""Settings that a Spark which runs already can be given, beside those of Penstock."""


class NotPreparable(Exception):
    """A version cannot be prepared. `lasting`: another attempt would have the same result.
    `outside`: the version is not to blame."""

    def __init__(self, text: str, *, lasting: bool, outside: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting
        self.outside = outside


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """A version that can be started."""

    start: DriverStart
    assignment: Assignment
    fits_spare: bool
    """Whether a driver that was started in advance can run it."""
    reset: Callable[[tuple[str, ...]], None] = field(repr=False)
    """Lets queries of a script begin again. It blocks."""


class PreparationTasks:
    """The preparations of a driver that are under way: the last one, and earlier ones that nobody
    waits for. An earlier one continues if its packages are still needed."""

    def __init__(self) -> None:
        self._tasks: list[tuple[Prepare, asyncio.Task[None]]] = []

    def add(self, effect: Prepare, task: asyncio.Task[None]) -> None:
        self._tasks = [each for each in self._tasks if not each[1].done()]
        self._tasks.append((effect, task))

    def end_unwanted(self, defined: Defined, run: int) -> None:
        """Ends those that are for another version than the one that is to run now, and the pip of
        each. `run` is the attempt that is under way now."""
        deployment = defined.deployment
        is_wanted = deployment is not None and deployment.wanted == "RUNNING"
        wanted = defined.version if is_wanted else None
        for effect, task in self._tasks:
            if effect.run != run and effect.version != wanted:
                task.cancel()


class Preparation:
    def __init__(
        self,
        catalog: Catalog,
        folder: WorkerFolder,
        executor: Executor,
        clock: Clock,
        *,
        worker: str,
        bootstrap: str,
        secrets: str = "",
    ) -> None:
        """`worker` is the id of the worker, by which its guard finds the drivers."""
        self._catalog = catalog
        self._folder = folder
        self._executor = executor
        self._worker = worker
        self._bootstrap = bootstrap
        self._secrets = secrets
        self.archives = ClassArchives(folder.path / "class-archives")
        self._environments = Environments(folder.environments(), executor, clock, worker)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of each pipeline that is prepared now: it may have two drivers, which share the folder of
        its files."""

    async def prepare(
        self, deployment: Deployment, version: Version, tell: Callable[[str], None]
    ) -> PreparedVersion:
        """Raises `NotPreparable`. `tell` is called with what is being done. Cancel the call to end
        an installation of packages."""
        root = self._folder.files(version)
        try:
            async with self._locks.setdefault(version.name, asyncio.Lock()):
                # First, so that nobody removes its files now.
                await self._executor.run(lambda: self._folder.mark_used(version.name))
                if not root.exists():
                    tell("fetching its files")
                    archive = await self._catalog.archive(version)
                    await self._executor.run(lambda: unpack(archive, root))
                known = [version, *self._catalog.versions_of(version.name)]
                kept = {self._folder.files(each).name for each in known}
                await self._executor.run(lambda: self._folder.drop_files(version.name, kept))
            await self._executor.run(lambda: _check_entry(root, version))
            python = await self._environments.python(root, version.archive, tell)
            return await self._executor.run(lambda: self._on_thread(deployment, version, python))
        except EnvironmentFailed as error:
            outside = not error.lasting
            raise NotPreparable(str(error), lasting=error.lasting, outside=outside) from error
        except (SecretMissing, AccessRefused) as error:
            raise NotPreparable(str(error), lasting=False, outside=True) from error
        except ClientError as error:
            outside = error.retriable or is_refusal(error) or not isinstance(error, BrokerError)
            raise NotPreparable(str(error), lasting=False, outside=outside) from error
        except PipelineError as error:
            raise NotPreparable(str(error), lasting=True) from error
        except OSError as error:
            text = f"{error.filename or self._folder.path}: {error.strerror}"
            raise NotPreparable(text, lasting=False, outside=True) from error

    async def clean(self) -> None:
        """Removes environments that no deployed version needs any more."""
        await self._environments.clean(list(self._catalog.versions.values()))

    def _on_thread(self, deployment: Deployment, version: Version, python: str) -> PreparedVersion:
        secrets = read_secrets(self._secrets, deployment.secrets)
        configuration: Mapping[str, str] = {}
        bootstrap = deployment.settings.get(BOOTSTRAP_SETTING, self._bootstrap)
        if version.kind == "project":
            project = load_project(self._folder.files(version) / version.entry)
            configuration = project.configuration
            prepare_topics(bootstrap, project.topics)
        assignment = self._assignment(deployment, version, bootstrap)
        settings = {**configuration, **assignment.settings}
        storage = self._folder.storage(deployment)
        return PreparedVersion(
            start=self._start(deployment, assignment, settings, python, secrets),
            assignment=assignment,
            fits_spare=(
                python == sys.executable
                and not secrets
                and deployment.master == DEFAULT_MASTER
                and deployment.memory_mb == DEFAULT_MEMORY_MB
                and all(_is_changeable(name) for name in settings)
            ),
            reset=lambda flows: _reset(storage, flows),
        )

    def _assignment(self, deployment: Deployment, version: Version, bootstrap: str) -> Assignment:
        folder = self._folder
        folder.working(deployment).mkdir(parents=True, exist_ok=True)
        metastore = folder.metastore(deployment)
        metastore.mkdir(parents=True, exist_ok=True)
        storage = folder.storage(deployment)
        schedule = deployment.schedule
        return Assignment(
            name=deployment.name,
            kind=version.kind,
            root=str(folder.files(version)),
            entry=version.entry,
            storage=_url(storage),
            warehouse=f"{_url(storage)}/spark-warehouse",
            metastore=str(metastore),
            bootstrap=bootstrap,
            settings={**deployment.settings, BOOTSTRAP_SETTING: bootstrap},
            environment={
                "PENSTOCK_BOOTSTRAP": bootstrap,
                "PENSTOCK_STORAGE": storage,
                "PENSTOCK_PIPELINE": deployment.name,
            },
            live_interval_s=schedule.interval_s if schedule.continuous else None,
        )

    def _start(
        self,
        deployment: Deployment,
        assignment: Assignment,
        settings: Mapping[str, str],
        python: str,
        secrets: Mapping[str, str],
    ) -> DriverStart:
        folder = self._folder.working(deployment)
        return DriverStart(
            python=python,
            master=deployment.master,
            folder=str(folder),
            settings={
                **settings,
                "spark.sql.warehouse.dir": assignment.warehouse,
                "spark.driver.memory": f"{deployment.memory_mb}m",
            },
            environment={
                **self.environment(deployment.master, python),
                **assignment.environment,
                **secrets,
                "PYTHONPATH": assignment.root,
            },
            secrets=tuple(secrets.values()),
        )

    def spare_start(self, number: str) -> DriverStart:
        """Returns how a driver is started in advance. It blocks."""
        folder = self._folder.spare(number)
        folder.mkdir(parents=True, exist_ok=True)
        make_link(Path(self.spare_link(number)))
        return DriverStart(
            python=sys.executable,
            master=DEFAULT_MASTER,
            folder=str(folder),
            settings={"spark.driver.memory": f"{DEFAULT_MEMORY_MB}m"},
            environment={
                **self.environment(DEFAULT_MASTER, sys.executable),
                "PYTHONPATH": self.spare_link(number),
            },
        )

    def spare_link(self, number: str) -> str:
        """Returns where the Python workers of such a driver look for the files of its project."""
        return str(self._folder.spare(number) / "project")

    def training_environment(self) -> dict[str, str]:
        """Returns the environment in which an archive of classes is made. It blocks."""
        return self._environment(DEFAULT_MASTER, sys.executable)

    def environment(self, master: str, python: str) -> dict[str, str]:
        """Returns the environment of a driver. It blocks."""
        return self.archives.with_archive(self._environment(master, python))

    def _environment(self, master: str, python: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in CONNECT_MODE}
        if master.startswith("local"):
            kept.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if master.startswith(_OWN_HOME):
            with suppress(OSError):  # Without symbolic links Spark is only slower.
                kept.update(shared_home(self._folder.path))
        return {
            **kept,
            WORKER_VARIABLE: self._worker,
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "PYTHONUNBUFFERED": "1",
        }


def _check_entry(root: Path, version: Version) -> None:
    entry = root / version.entry
    if not entry.resolve().is_relative_to(root.resolve()) or not entry.is_file():
        raise PipelineError(
            f"version {version.number} has no file {version.entry}: add the file and deploy again"
        )


def _is_changeable(name: str) -> bool:
    return name.startswith("spark.penstock.") or name in _CHANGED_AT_RUN_TIME


def _url(storage: str) -> str:
    folder = local_folder(storage)
    return storage.rstrip("/") if folder is None else f"file://{folder.resolve()}"


def _reset(storage: str, flows: tuple[str, ...]) -> None:
    for flow in flows:
        reset_query(storage, flow)
