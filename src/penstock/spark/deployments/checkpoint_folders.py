"""Lets a query of a script begin again without its checkpoint.

A script keeps the checkpoint of its query NAME in `STORAGE/_checkpoints/NAME` if its author follows
the documentation. Such a folder is renamed, so the old checkpoint stays for the case of need. For
the flows of a project see `penstock.spark.pipelines.table_writers`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.spark.deployments.model import Kind
from penstock.spark.pipelines.errors import PipelineError

CHECKPOINTS: Final = "_checkpoints"


def local_folder(storage: str) -> Path | None:
    """Returns the folder of a path or file:// URL, or None for another URL."""
    if "://" not in storage and not storage.startswith("file:"):
        return Path(storage)
    url = urlsplit(storage)
    if url.scheme != "file" or url.netloc not in ("", "localhost"):
        return None
    return Path(unquote(url.path))


def check_resettable(kind: Kind, storage: str, flow: str) -> None:
    """Raises `PipelineError` if the flow cannot begin again in this storage. In a project, Spark
    itself lets it begin again, in any storage."""
    if kind == "script" and storage and local_folder(storage) is None:
        raise PipelineError(
            f"{storage} is not a local folder, so {flow} cannot be reset: stop the pipeline, "
            f"delete the folder {storage.rstrip('/')}/{CHECKPOINTS}/{flow}, and deploy with "
            f"--keep-checkpoint {flow}"
        )


def reset_query(storage: str, name: str) -> list[Path]:
    """Lets a query begin again. Nothing of it may run. Returns the checkpoints that are set aside.

    Calling it again before the query has begun does nothing.
    """
    check_resettable("script", storage, name)
    folder = local_folder(storage)
    assert folder is not None, "it was checked"
    if not name or "/" in name:
        raise PipelineError(f"{name!r} is not the name of a query")
    checkpoint = folder / CHECKPOINTS / name
    if not (checkpoint / "metadata").is_file():
        return []
    checkpoint.rename(_aside(checkpoint))
    return [checkpoint]


def _aside(checkpoint: Path) -> Path:
    number = 1
    while (found := checkpoint.with_name(f"{checkpoint.name}.reset-{number}")).exists():
        number += 1
    return found
