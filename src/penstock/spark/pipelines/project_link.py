"""The link by which the Python processes of a driver in reserve find the files of its project.

Its path is in PYTHONPATH before the project is known, and the rehearsal starts Python processes
that a pipeline uses later. Python never looks again at a folder that it has once found missing. So
the link leads to an empty folder first: Python notices when a folder has changed.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_link(link: Path) -> None:
    """Creates the link, to an empty folder beside it."""
    empty = link.with_name(f"{link.name}-empty")
    empty.mkdir(parents=True, exist_ok=True)
    point_link(link, empty)


def point_link(link: Path, root: Path) -> None:
    """Lets the link lead to the files of a project."""
    fresh = link.with_name(f"{link.name}-new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(root)
    os.replace(fresh, link)
