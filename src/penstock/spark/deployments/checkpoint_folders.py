"""Lets a flow begin again without its checkpoint.

Spark Declarative Pipelines keeps the checkpoint of a flow in
`STORAGE/_checkpoints/TARGET/FLOW/NUMBER`, where TARGET is the full name of the table with slashes
(`spark_catalog/default/page_views`), or the name of the sink. It uses the folder with the highest
number. So a flow begins again if there is a new, empty folder with the next number, and the old
checkpoint stays for the case of need.

A table of files has a second record of its batches: `_spark_metadata` in its folder. Spark skips a
batch whose number is there, so a flow that begins again at batch 0 would lose its rows without an
error. The record is renamed, too. Spark then shows only the files of the new record: the table
begins again with its flow.

A script keeps the checkpoint of its query NAME in `STORAGE/_checkpoints/NAME` if its author follows
the documentation. Such a folder is renamed.
"""

from __future__ import annotations

from glob import escape
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.spark.pipelines.errors import PipelineError

CHECKPOINTS: Final = "_checkpoints"
_BATCH_LOG: Final = "_spark_metadata"


def local_folder(storage: str) -> Path | None:
    """Returns the folder of a path or file:// URL, or None for another URL."""
    if "://" not in storage and not storage.startswith("file:"):
        return Path(storage)
    url = urlsplit(storage)
    if url.scheme != "file" or url.netloc not in ("", "localhost"):
        return None
    return Path(unquote(url.path))


def check_resettable(storage: str, flow: str) -> None:
    """Raises `PipelineError` if `reset_flow` would not work with this storage."""
    if local_folder(storage) is None:
        raise PipelineError(
            f"{storage} is not a local folder, so {flow} cannot be reset: stop the pipeline, "
            f"delete the folder {storage.rstrip('/')}/{CHECKPOINTS}/TARGET/{flow}, and deploy with "
            f"--keep-checkpoint {flow}"
        )


def reset_flow(storage: str, flow: str) -> list[Path]:
    """Lets a flow begin again. Nothing of it may run. Returns the checkpoints that are set aside.

    Calling it again before the flow has begun does nothing. The record of a table is set aside
    first: if this is interrupted, calling it again completes it.
    """
    check_resettable(storage, flow)
    folder = local_folder(storage)
    assert folder is not None, "it was checked"
    name = flow.rpartition(".")[2]
    if not name or "/" in name:
        raise PipelineError(f"{flow!r} is not the name of a flow")
    found: list[Path] = []
    root = folder / CHECKPOINTS
    for candidate in sorted(root.rglob("*")):
        if candidate.name != name or not candidate.is_dir():
            continue
        if (candidate / "metadata").is_file():
            candidate.rename(_aside(candidate))
            found.append(candidate)
        elif latest := _latest(candidate):
            _set_table_aside(folder, candidate.parent.name)
            (candidate / str(int(latest.name) + 1)).mkdir()
            found.append(latest)
    return found


def _set_table_aside(folder: Path, table: str) -> None:
    """Renames the record of batches of a table of files, if the target is one."""
    for log in sorted(folder.rglob(f"{escape(table)}/{_BATCH_LOG}")):
        if CHECKPOINTS not in log.relative_to(folder).parts:
            log.rename(_aside(log))


def _latest(flow: Path) -> Path | None:
    """Returns the checkpoint that Spark uses, unless it is empty."""
    numbers = [each for each in flow.iterdir() if each.name.isdecimal() and each.is_dir()]
    latest = max(numbers, key=lambda each: int(each.name), default=None)
    return latest if latest is not None and any(latest.iterdir()) else None


def _aside(checkpoint: Path) -> Path:
    number = 1
    while (found := checkpoint.with_name(f"{checkpoint.name}.reset-{number}")).exists():
        number += 1
    return found
