"""Compares storages: two texts may mean the same place."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.spark.deployments.model import Deployment
from penstock.spark.pipelines.errors import PipelineError

_SAME_SCHEMES: Final = {"s3": "s3a", "s3n": "s3a", "wasb": "wasbs", "abfs": "abfss"}


def storage_place(storage: str) -> str:
    """Returns the same text for all ways to write a storage: `file:///mnt/x`, `/mnt/x/` and
    `/mnt/y/../x`; `s3://bucket/x` and `s3a://bucket/x`. Links are not followed: they may differ
    between machines. Empty for no storage."""
    if not storage:
        return ""
    if "://" not in storage and not storage.startswith("file:"):
        return f"file://{_path(storage)}"
    url = urlsplit(storage)
    scheme = _SAME_SCHEMES.get(url.scheme, url.scheme)
    host = url.netloc.lower()
    if scheme == "file":
        return f"file://{_path(unquote(url.path))}"
    return f"{scheme}://{host}{_path(url.path)}"


def check_storage(storage: str, name: str, deployments: Mapping[str, Deployment]) -> None:
    """Raises `PipelineError` if another deployment has the same storage: their checkpoints would
    mix."""
    place = storage_place(storage)
    for other in deployments.values():
        if place and other.name != name and storage_place(other.storage) == place:
            raise PipelineError(
                f"{storage} is the storage of {other.name}: give each pipeline its own, such as "
                f"{storage.rstrip('/')}/{name}"
            )


def _path(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))
