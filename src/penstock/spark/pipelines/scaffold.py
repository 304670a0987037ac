"""Creates a project from a template. It runs unchanged on the broker that `penstock up` starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.templates import find_template

DEFAULT_TEMPLATE: Final = "clickstream"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def make_project(
    parent: Path, name: str, bootstrap: str, template: str = DEFAULT_TEMPLATE
) -> list[Path]:
    """Creates a project in a new folder of that name. Returns the files, the spec first."""
    chosen = find_template(template)
    if not _NAME.fullmatch(name):
        raise PipelineError(
            f"{name!r} cannot be the name of a pipeline: use a letter, then letters, digits, - and "
            "_, at most 64 characters"
        )
    root = (parent / name).resolve()
    if root.exists() and any(root.iterdir() if root.is_dir() else [root]):
        raise PipelineError(f"{root} already exists: choose another name, or remove it")
    files = chosen.render(name, bootstrap, f"file://{root / 'pipeline-storage'}")
    written = []
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        written.append(target)
    return written
