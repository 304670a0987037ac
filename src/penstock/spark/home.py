"""A home for Spark on one machine, whose Python workers start in a third of the time.

Spark starts Python processes all the time: some for every query, one for every stream. They import
pyspark from `python/lib/pyspark.zip` in Spark's home, and what is in a zip is compiled anew by each
of them, which takes longer than all the rest of their start. A PySpark that pip installed has the
same code compiled in its package. So this home consists of links to that package, and its "zip" is
the folder that the package lies in; Python asks only what a path is, not what it is called.

Only for workers on this machine: a cluster has homes of its own, and is sent the real zip.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

VARIABLE: Final = "SPARK_HOME"


def make_home(folder: Path) -> dict[str, str]:
    """Make it there, anew if it is there already; what to set in Spark's environment.

    Nothing is made, and nothing is to be set, where somebody chose a home or there is no package
    of pip's to make it of."""
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
