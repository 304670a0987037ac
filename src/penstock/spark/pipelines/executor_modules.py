"""Sends the Python files of a project to executors on other machines.

A function that Spark calls for rows, such as a udf, is sent with the query. Modules that it imports
are not: Python finds them by their names. With a local master the Python processes have the
project's folder in their path. Executors elsewhere do not have the folder, so they get a zip file
of its modules. Only `.py` files are in it: packages belong into the Python of the executors, and
data may be large.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_LOCAL: Final = "local"
_SKIPPED: Final = frozenset({"__pycache__", "venv", "spark-warehouse", "metastore_db"})
_ENVIRONMENT: Final = "pyvenv.cfg"
"""The file that every virtual environment has."""
_DATE: Final = (1980, 1, 1, 0, 0, 0)
"""The same files give the same zip file."""
_HASH_DIGITS: Final = 16


class ExecutorModules:
    def __init__(self, master: str) -> None:
        self._is_local = master.startswith(_LOCAL)
        self._folder: Path | None = None

    def send(self, root: Path, session: Any, classic: Any) -> None:
        """Sends the modules of a project or script.

        Args:
            root: the folder of the project.
            session: the Connect session in which the flows of a project are defined; None for a
                script that runs in this process's JVM.
            classic: the session of this process's JVM; None if Spark is a server elsewhere.
        """
        if self._is_local:
            return
        # Executors fetch the file from the driver when they need it, so it is kept.
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="penstock-modules-"))
        packed = pack_modules(root, self._folder)
        if packed is None:
            return
        # The functions of a Connect session name the file. Their tasks look for it among the files
        # of the session, or among those of the application if a thread of Spark started the query.
        if session is not None:
            session.addArtifacts(str(packed), pyfile=True)
        if classic is not None:
            classic.sparkContext.addPyFile(str(packed))

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def pack_modules(root: Path, folder: Path) -> Path | None:
    """Writes the zip file into a folder. Returns None if there are no modules."""
    found = {}
    for path in python_files(root):
        try:
            found[path.relative_to(root).as_posix()] = path.read_bytes()
        except OSError as error:
            sys.stderr.write(f"{path} is not sent to executors: {error.strerror}\n")
    if not found:
        return None
    digest = hashlib.sha256()
    for name, content in found.items():
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    # Spark refuses another file of the same name.
    packed = folder / f"penstock-modules-{digest.hexdigest()[:_HASH_DIGITS]}.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in found.items():
            # A ZipInfo has its own compression, which is none.
            archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
    return packed


def python_files(root: Path) -> Iterator[Path]:
    """Yields the Python files of a folder, in a fixed order, without those of environments and
    caches, and without hidden ones."""
    for place, folders, files in os.walk(root):
        here = Path(place)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and not (here / name / _ENVIRONMENT).exists()
        )
        for name in sorted(files):
            # Editors keep locks and copies in hidden files. A pipe would never be read to its end.
            if name.endswith(".py") and not name.startswith(".") and (here / name).is_file():
                yield here / name
