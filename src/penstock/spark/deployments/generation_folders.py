"""Generations of tables in a local folder: which one is served, and the deletion of dead ones.

The file `current` in the storage has the path of the generation that is served. It is replaced by
a rename, so a reader finds the old tables or the new ones. It is no symbolic link: Spark compares
the paths in the log of a table with the path that it was given, and would find no rows behind a
link.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from penstock.spark.deployments.generations import FOLDER, generation_storage
from penstock.spark.partial_files import partial_path

CURRENT: Final = "current"
_OF_SPARK: Final = ("spark-warehouse", "_checkpoints", "metastore_db", "derby.log")
"""What Spark writes. Of generation 0, which is the storage itself, only this is deleted."""


def point(storage: Path, generation: int) -> None:
    """Lets `current` name a generation."""
    text = f"{generation_storage(str(storage.resolve()), generation)}\n"
    file = storage / CURRENT
    if file.is_file() and file.read_text("utf-8") == text:
        return
    storage.mkdir(parents=True, exist_ok=True)
    partial = partial_path(file)
    partial.write_text(text, "utf-8")
    os.replace(partial, file)


def found_generations(storage: Path) -> list[int]:
    """Returns the generations of which something is there."""
    folder = storage / FOLDER
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    found = [int(name) for name in names if name.isascii() and name.isdigit()]
    return [0, *found] if any((storage / name).exists() for name in _OF_SPARK) else found


def delete(storage: Path, generations: Iterable[int]) -> None:
    """Deletes generations. Safe to repeat."""
    for number in generations:
        if number:
            folders = [storage / FOLDER / str(number)]
        else:
            folders = [storage / name for name in _OF_SPARK]
        for folder in folders:
            if folder.is_dir():
                shutil.rmtree(folder)
            else:
                folder.unlink(missing_ok=True)
