"""Generations of tables in a local folder: the link to the one that is served, and the deletion of
dead ones.

`current` in the storage leads to the generation that is served. It is replaced by a rename, so a
reader who opens `STORAGE/current/spark-warehouse/TABLE` finds the old table or the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.spark.deployments.generations import FOLDER

CURRENT: Final = "current"
_OF_SPARK: Final = ("spark-warehouse", "_checkpoints", "metastore_db", "derby.log")
"""What Spark writes. Of generation 0, which is the storage itself, only this is deleted."""


def point(storage: Path, generation: int) -> None:
    """Lets `current` lead to a generation."""
    target = f"{FOLDER}/{generation}" if generation else "."
    link = storage / CURRENT
    with suppress(OSError):
        if os.readlink(link) == target:
            return
    storage.mkdir(parents=True, exist_ok=True)
    partial = storage / f".{CURRENT}.{os.getpid()}"
    partial.unlink(missing_ok=True)
    partial.symlink_to(target, target_is_directory=True)
    os.replace(partial, link)


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
