"""Files and folders that are made under another name first, and then renamed.

The other name is new each time: threads, containers and machines that share a folder may have the
same process id. A process that is killed leaves its file behind. It is removed later, once it is so
old that nobody can still be writing it.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.runtime import SystemRandom

_SUFFIX: Final = ".partial"
_LEFT_S: Final = 6 * 3600.0
"""What was not changed for this long was left by a process that has ended."""


def partial_path(target: Path) -> Path:
    """Returns a new path beside `target`, whose folder must exist. Removes what others have left
    there for the same target."""
    remove_left(target.parent, f".{target.name}.")
    return target.with_name(f".{target.name}.{SystemRandom().bytes(8).hex()}{_SUFFIX}")


def target_of(partial: Path) -> Path:
    """Returns the target of such a path."""
    return partial.with_name(partial.name.removesuffix(_SUFFIX).rpartition(".")[0][1:])


def is_partial(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(_SUFFIX)


def remove_left(folder: Path, begin: str = ".") -> None:
    """Removes partial files in a folder that were left by processes which have ended."""
    found = [each for each in folder.iterdir() if is_partial(each) and each.name.startswith(begin)]
    if not found:
        return
    now = folder / f".now.{SystemRandom().bytes(8).hex()}{_SUFFIX}"
    with suppress(OSError):  # If nothing can be written, the caller will say so.
        now.touch()  # The file system may be that of another machine, with its own clock.
        border = now.stat().st_mtime - _LEFT_S
        now.unlink()
        for entry in found:
            with suppress(OSError):  # Another one was faster.
                if entry.lstat().st_mtime < border:
                    _remove(entry)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink()
