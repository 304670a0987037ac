"""Creates a SPARK_HOME in which Python workers on this machine start in a third of the time.

Spark starts Python processes often: some for every query, one for every stream. They import pyspark
from `python/lib/pyspark.zip` in SPARK_HOME. Each process compiles what it imports from a zip file
again, which takes longer than the rest of its start. The pip package of PySpark contains the same
code compiled. So this home consists of links to that package, and its `pyspark.zip` is a link to
the folder that contains the package. Python does not mind that a folder has the name of a zip file.

This works only for processes on this machine. YARN and Kubernetes are sent the real zip.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.spark.partial_files import partial_path

VARIABLE: Final = "SPARK_HOME"


def make_home(folder: Path) -> dict[str, str]:
    """Creates the home in `folder`, replacing an old one. Returns what to set in Spark's
    environment.

    Does nothing and returns an empty dict if SPARK_HOME is already set, or if PySpark was not
    installed by pip."""
    found = find_spec("pyspark")
    if VARIABLE in os.environ or found is None or found.origin is None:
        return {}
    package = Path(found.origin).parent
    libraries = package / "python" / "lib"
    if not (libraries / "pyspark.zip").is_file() or not (package / "jars").is_dir():
        return {}
    shutil.rmtree(folder, ignore_errors=True)
    made = folder / "python" / "lib"
    made.mkdir(parents=True)
    for entry in package.iterdir():
        if entry.is_dir() and not (entry / "__init__.py").exists() and entry.name != "python":
            (folder / entry.name).symlink_to(entry)
    for library in libraries.iterdir():
        target = package.parent if library.name == "pyspark.zip" else library
        (made / library.name).symlink_to(target)
    return {VARIABLE: str(folder)}


def shared_home(folder: Path) -> dict[str, str]:
    """Creates a home in `folder` that all drivers of a worker use, unless it is there already. Its
    name depends on the PySpark that it leads to. Returns the same as `make_home`."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return {}
    digest = sha256(os.path.realpath(found.origin).encode()).hexdigest()[:12]
    home = folder / f"spark-home-{digest}"
    if VARIABLE not in os.environ and (home / "jars").is_dir():
        return {VARIABLE: str(home)}
    folder.mkdir(parents=True, exist_ok=True)
    partial = partial_path(home)
    made = make_home(partial)
    if not made:
        return {}
    # Otherwise another worker in the same folder was faster, or links of an older PySpark are left.
    shutil.rmtree(home, ignore_errors=True)
    with suppress(OSError):
        partial.rename(home)
    shutil.rmtree(partial, ignore_errors=True)
    return {VARIABLE: str(home)}
