"""Archives of the Java classes that Spark loads: with one, a JVM needs half the processor time to
start.

A JVM reads and checks thousands of classes when Spark starts. It can write those that it has loaded
to an archive when it ends, and later ones map this archive into memory (class data sharing). An
archive is valid for one Java and one class path, so its name is a hash of both. `class_training` is
the process that writes it. A JVM ignores an archive that does not fit.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.spark.partial_files import partial_path, target_of

OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""The variable with options of the JVM that spark-submit starts."""
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_SUFFIX: Final = ".jsa"


class ClassArchives:
    """The archives in a folder. Methods block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, environment: Mapping[str, str]) -> Path | None:
        """Returns where the archive for this environment is, or would be. None if there is no Java,
        or if Spark was not installed by pip."""
        java = _java(environment)
        home = _home(environment)
        if java is None or home is None:
            return None
        jars = home / "jars"
        known = [str(java), str(jars), *_stamp(java.parent.parent / "release"), *_stamp(jars)]
        return self._folder / (sha256("\0".join(known).encode()).hexdigest()[:16] + _SUFFIX)

    def with_archive(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment for a JVM that uses the archive, if there is one."""
        path = self.path(environment)
        if path is None or not path.is_file():
            return dict(environment)
        return _with_options(environment, f'{_QUIET} "-XX:SharedArchiveFile={path}"')

    def partial(self, environment: Mapping[str, str]) -> Path | None:
        """Returns where a new archive is written first. None if there is one already, or can be
        none."""
        path = self.path(environment)
        if path is None or path.exists():
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        return partial_path(path)

    def keep(self, partial: Path) -> bool:
        """Begins to use a new archive. Returns False if the JVM has written none."""
        if not partial.is_file():
            return False
        partial.replace(target_of(partial))
        return True


def for_training(environment: Mapping[str, str], partial: Path) -> dict[str, str]:
    """Returns the environment for a JVM that writes an archive when it ends."""
    return _with_options(environment, f'{_QUIET} "-XX:ArchiveClassesAtExit={partial}"')


def _with_options(environment: Mapping[str, str], options: str) -> dict[str, str]:
    given = environment.get(OPTIONS, "")
    return {**environment, OPTIONS: f"{given} {options}".strip()}


def _java(environment: Mapping[str, str]) -> Path | None:
    if "JAVA_HOME" in environment:
        found = Path(environment["JAVA_HOME"]) / "bin" / "java"
        return found.resolve() if found.is_file() else None
    on_path = shutil.which("java", path=environment.get("PATH"))
    return None if on_path is None else Path(on_path).resolve()


def _home(environment: Mapping[str, str]) -> Path | None:
    if "SPARK_HOME" in environment:
        return Path(environment["SPARK_HOME"])
    found = find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _stamp(path: Path) -> list[str]:
    """Returns what changes when the file or folder is replaced."""
    with suppress(OSError):
        found = path.stat()
        return [str(found.st_size), str(found.st_mtime_ns)]
    return []
