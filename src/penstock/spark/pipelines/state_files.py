"""Stores the last run of each project, and the list of the user's projects.

The last run is a file in the project, so it is moved and deleted with the project. The list of
projects is one file per user, in the user's state directory; deleted projects are left out when it
is read. Files are replaced as a whole. A file that cannot be read counts as missing: a run must not
fail because of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.spark.partial_files import partial_path
from penstock.spark.pipelines.events import ENDED
from penstock.spark.pipelines.project import SPEC_NAMES

FOLDER: Final = ".penstock"
STATE_NAME: Final = "last-run.json"
LOG_NAME: Final = "last-run.log"


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run as the runner stored it. `interrupted`: its process ended before the run did."""

    content: Mapping[str, Any]
    interrupted: bool

    @property
    def state(self) -> str:
        return "INTERRUPTED" if self.interrupted else str(self.content.get("state", "UNKNOWN"))


def state_folder(root: Path) -> Path:
    return root / FOLDER


def log_path(root: Path) -> Path:
    return root / FOLDER / LOG_NAME


def save_run(root: Path, content: Mapping[str, Any]) -> None:
    _replace(root / FOLDER / STATE_NAME, content)


def load_run(root: Path) -> LastRun | None:
    """Returns the last run, or None if the project was never run."""
    content = _load(root / FOLDER / STATE_NAME)
    if not isinstance(content, dict):
        return None
    pid = content.get("pid")
    alive = isinstance(pid, int) and _is_alive(pid)
    return LastRun(content, interrupted=content.get("state") not in ENDED and not alive)


def remember(root: Path) -> None:
    known = _known()
    if str(root) not in known:
        _replace(_registry(), {"projects": sorted({*known, str(root)})})


def projects() -> list[Path]:
    """Returns the projects that still exist."""
    return [
        Path(root) for root in _known() if any((Path(root) / name).is_file() for name in SPEC_NAMES)
    ]


def _registry() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "penstock" / "pipelines.json"


def _known() -> list[str]:
    content = _load(_registry())
    found = content.get("projects") if isinstance(content, dict) else None
    return [root for root in found if isinstance(root, str)] if isinstance(found, list) else []


def _load(path: Path) -> object:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    partial.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    os.replace(partial, path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
