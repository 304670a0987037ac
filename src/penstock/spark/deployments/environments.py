"""Virtual environments of pipelines, made once for each requirements.txt.

An environment is named by the hash of requirements.txt, of this Python, and of the installed
versions of penstock and PySpark. If the requirements refer to files of the project, the hash of the
project's archive is part of the name too. The environment sees the packages of this interpreter, so
penstock and PySpark are there; what the project requires comes first. It cannot be moved, so it is
made under its final name, under a lock. A marker file says that it is complete, and for what it was
made.

Several workers may share the folder. An environment is removed when no deployed version has its
requirements, and when the marker was not touched for a week: workers touch it at each use, and
every hour while a deployed version needs it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from penstock.ports import Clock, Executor
from penstock.spark.deployments.archive import REQUIREMENTS_NAME
from penstock.spark.deployments.file_lock import remove_lock, try_lock, unlock
from penstock.spark.deployments.marked_process import MarkedProcesses
from penstock.spark.deployments.model import Version
from penstock.spark.deployments.pip_output import is_lasting, reason
from penstock.spark.deployments.requirements_text import editable_line, refers_to_files

COMPLETE: Final = "penstock-complete"
_LOG: Final = "pip.log"
_LOCK: Final = ".lock"
_PIP_S: Final = 1_800.0
_LOCKED_AGAIN_S: Final = 0.2
_AT_A_TIME: Final = 2
"""More installations at the same time would take the processors from the drivers."""
_UNUSED_MS: Final = 7 * 24 * 3600 * 1000
_LOG_BYTES_MAX: Final = 4 << 20
_SITE: Final = "import sysconfig; print(sysconfig.get_path('purelib'))"


class EnvironmentFailed(Exception):
    """The environment cannot be made; the text says why. `lasting`: another attempt would have the
    same result."""

    def __init__(self, text: str, *, lasting: bool) -> None:
        super().__init__(text)
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class Made:
    """What an environment was made for."""

    requirements: str
    """The SHA-256 of requirements.txt."""
    archive: str
    """The digest of the project's archive; empty if the requirements refer to no files."""
    folder: str
    """The folder of the version; empty unless a package is installed in editable mode."""
    interpreter: str
    """This Python, and the versions of penstock and PySpark."""

    @property
    def name(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:32]


class Environments:
    """The environments in a folder. Belongs to one event loop."""

    def __init__(self, folder: Path, executor: Executor, clock: Clock, worker: str) -> None:
        """`worker` is the id of the worker, by which its guard finds pip."""
        self._folder = folder
        self._executor = executor
        self._clock = clock
        self._processes = MarkedProcesses(executor, clock, worker)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """A second pipeline with the same environment waits here, and not on a thread."""
        self._places = asyncio.Semaphore(_AT_A_TIME)
        self._given: dict[str, str] = {}
        """The digest of an archive -> the name of the environment that its pipeline was given."""

    async def python(
        self, root: Path, archive: str, tell: Callable[[str], None] = lambda _: None
    ) -> str:
        """Returns the Python of the environment for the project in a folder, and makes it if there
        is none. Without requirements that is this interpreter. Raises `EnvironmentFailed`."""
        made = await self._executor.run(lambda: _wanted(root, archive))
        if made is None:
            return sys.executable
        folder = self._folder / made.name
        self._given[archive] = made.name
        async with self._locks.setdefault(made.name, asyncio.Lock()):
            lock = await self._locked(folder, tell)
            try:
                if not (folder / COMPLETE).exists():
                    async with self._places:
                        tell("installing the packages of requirements.txt")
                        await self._make(folder, root, lock)
                    await self._executor.run(lambda: _mark(folder, made))
                self._touch(folder)
            finally:
                unlock(lock)
        return str(folder / "bin" / "python")

    async def clean(self, versions: Iterable[Version]) -> None:
        """Removes environments that neither these versions need, nor another worker has used."""
        deployed = frozenset((each.requirements, each.archive) for each in versions)
        await self._executor.run(lambda: self._clean(deployed))

    async def _locked(self, folder: Path, tell: Callable[[str], None]) -> int:
        """Waits for the lock of an environment without taking a thread."""
        path = folder.with_name(folder.name + _LOCK)
        path.parent.mkdir(parents=True, exist_ok=True)
        is_told = False
        while (lock := try_lock(path)) is None:
            if not is_told:
                tell("waiting for another worker that installs the packages of requirements.txt")
                is_told = True
            await self._clock.sleep(_LOCKED_AGAIN_S)
        return lock

    async def _make(self, folder: Path, root: Path, lock: int) -> None:
        await self._executor.run(lambda: shutil.rmtree(folder, ignore_errors=True))
        begin = "cannot make a virtual environment"
        await self._run([sys.executable, "-m", "venv", str(folder)], begin, self._folder, lock)
        python = str(folder / "bin" / "python")
        failing = "the new virtual environment does not run"
        site = (await self._run([python, "-c", _SITE], failing, self._folder, lock)).strip()
        _see_packages_of_this_python(Path(site))
        # -P: a file of the project, such as queue.py, must not replace a module that pip imports.
        await self._run(
            [
                python, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
                "--progress-bar", "off", "--log", str(folder / _LOG), "-r", REQUIREMENTS_NAME,
            ],
            f"pip cannot install {REQUIREMENTS_NAME}",
            root,
            lock,
            log=folder / _LOG,
        )  # fmt: skip

    async def _run(
        self, command: list[str], failing: str, folder: Path, lock: int, log: Path | None = None
    ) -> str:
        try:
            ended = await self._processes.run(command, folder, lock, _PIP_S)
        except TimeoutError:
            text = f"{failing}: it took longer than {_PIP_S:.0f} s"
            raise EnvironmentFailed(text, lasting=False) from None
        except OSError as error:
            raise EnvironmentFailed(f"{failing}: {error.strerror}", lasting=False) from None
        if ended.code < 0:
            text = f"{failing}: it was killed by signal {-ended.code}"
            raise EnvironmentFailed(text, lasting=False)
        if ended.code:
            said = await self._executor.run(lambda: "" if log is None else _end_of(log))
            lasting = is_lasting(ended.output + ended.errors, said)
            text = f"{failing}: {reason(ended.errors or ended.output)}"
            raise EnvironmentFailed(text, lasting=lasting)
        return ended.output

    def _clean(self, deployed: Collection[tuple[str, str]]) -> None:
        given = {self._given.get(archive) for _, archive in deployed}
        interpreter = _interpreter()
        for folder in [each for each in self._folder.iterdir() if each.is_dir()]:
            made = _made(folder)
            is_mine = made is not None and made.interpreter == interpreter
            if folder.name in given or (made and is_mine and _is_needed(made, deployed)):
                self._touch(folder)
            self._remove_unused(folder)

    def _remove_unused(self, folder: Path) -> None:
        path = folder.with_name(folder.name + _LOCK)
        lock = try_lock(path)
        if lock is None:
            return
        if self._is_used(folder):
            unlock(lock)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            remove_lock(path, lock)

    def _is_used(self, folder: Path) -> bool:
        """Whether an environment was used a short time ago. One that is not complete was left by a
        worker that has ended: the lock is free."""
        with suppress(FileNotFoundError):
            touched_ms = (folder / COMPLETE).stat().st_mtime * 1000
            return self._clock.wall_ms() - touched_ms < _UNUSED_MS
        return False

    def _touch(self, folder: Path) -> None:
        now_s = self._clock.wall_ms() / 1000
        with suppress(OSError):  # Of another user, or it was removed in the meantime.
            os.utime(folder / COMPLETE, (now_s, now_s))


def _wanted(root: Path, archive: str) -> Made | None:
    """Returns what the environment of a project is made for; None if it needs none."""
    try:
        content = (root / REQUIREMENTS_NAME).read_bytes()
    except FileNotFoundError:
        return None
    if not _needs_packages(content):
        return None
    is_linked = editable_line(root) is not None
    return Made(
        hashlib.sha256(content).hexdigest(),
        archive if refers_to_files(content) else "",
        str(root) if is_linked else "",
        _interpreter(),
    )


def _is_needed(made: Made, deployed: Iterable[tuple[str, str]]) -> bool:
    return any(
        requirements == made.requirements and made.archive in ("", archive)
        for requirements, archive in deployed
    )


def _needs_packages(content: bytes) -> bool:
    return any(line.strip() and not line.strip().startswith(b"#") for line in content.splitlines())


def _see_packages_of_this_python(site: Path) -> None:
    """Adds the packages of this interpreter, after those of the environment itself."""
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(here)]
    (site / "penstock-packages.pth").write_text("".join(lines), "utf-8")


def _mark(folder: Path, made: Made) -> None:
    partial = folder / f"{COMPLETE}.partial"
    partial.write_text(json.dumps(asdict(made)), "utf-8")
    partial.rename(folder / COMPLETE)


def _made(folder: Path) -> Made | None:
    """Returns what an environment was made for; None if it is incomplete, or of an old worker."""
    with suppress(OSError, ValueError, TypeError):
        return Made(**json.loads((folder / COMPLETE).read_text("utf-8")))
    return None


def _end_of(log: Path) -> str:
    try:
        content = log.read_bytes()
    except OSError:
        return ""
    return content[-_LOG_BYTES_MAX:].decode(errors="replace")


def _interpreter() -> str:
    parts = (sys.version, sys.executable, _version("penstock"), _version("pyspark"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
