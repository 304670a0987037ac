"""Secrets of pipelines: files on the worker, one for each, which only its user may read."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.spark.deployments.model import SECRET
from penstock.spark.pipelines.errors import PipelineError

_BYTES_MAX: Final = 64 << 10
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class SecretMissing(PipelineError):
    """This worker does not have a secret, or not as it must be."""


def read_secrets(folder: str, names: Sequence[str]) -> dict[str, str]:
    """Returns the values by name. Raises `SecretMissing`, which names no value, if one is missing
    or can be read by others."""
    return {name: _read(folder, name) for name in names}


def _read(folder: str, name: str) -> str:
    if not SECRET.fullmatch(name):
        raise PipelineError(f"{name!r} is not the name of a secret: use letters, digits and _")
    if not folder:
        raise SecretMissing(
            f"the pipeline needs the secret {name}, but this worker has no folder of secrets: "
            "start it with --secrets DIR"
        )
    path = Path(folder, name)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS:
                raise SecretMissing(
                    f"other users can read {path}: run chmod 600 {shlex.quote(str(path))}, then "
                    "start the pipeline again"
                )
            data = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise SecretMissing(
            f"the secret {name} is missing on this worker ({error.strerror}): write it to {path}, "
            "readable by this user only"
        ) from None
    text = data.decode("utf-8", errors="replace").removesuffix("\n")
    if len(data) > _BYTES_MAX or "\0" in text or not text:
        raise SecretMissing(f"{path} is empty, too long or not text: write the secret to it")
    return text
