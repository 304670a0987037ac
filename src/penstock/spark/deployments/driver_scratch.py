"""Where Spark puts the temporary files of a driver: shuffles, blocks, state of streams, libraries.

A driver is often killed, and its JVM does not remove its files then. So each driver has a folder
for them, which is removed when the driver has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.spark.class_archive import OPTIONS

_PROPERTY: Final = "-Djava.io.tmpdir="
_OTHER_OPTIONS: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


def with_scratch(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Returns the environment for a JVM that has its temporary files in `folder`, and creates the
    folder. It blocks.

    Spark uses it for everything, unless a user has set another one: SPARK_LOCAL_DIRS or
    `spark.local.dir`, or java.io.tmpdir in one of the variables or in
    `spark.driver.extraJavaOptions`, which come later on the command line."""
    made = folder / "tmp"
    made.mkdir(parents=True, exist_ok=True)
    given = environment.get(OPTIONS, "")
    known = [given, *(environment.get(name, "") for name in _OTHER_OPTIONS)]
    if any(_PROPERTY in each for each in known):
        return dict(environment)
    return {**environment, OPTIONS: f'{given} "{_PROPERTY}{made}"'.strip()}
