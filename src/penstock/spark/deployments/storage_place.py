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
    between machines. Empty for no storage. Raises `PipelineError` if it is not a URL."""
    if not storage:
        return ""
    if "://" not in storage and not storage.startswith("file:"):
        return f"file://{_path(storage)}"
    try:
        url = urlsplit(storage)
    except ValueError as error:
        raise not_a_place(storage, error) from None
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
        if place and other.name != name and _known_place(other.storage) == place:
            raise PipelineError(
                f"{storage} is the storage of {other.name}: give each pipeline its own, such as "
                f"{storage.rstrip('/')}/{name}"
            )


def not_a_place(storage: str, error: ValueError) -> PipelineError:
    return PipelineError(
        f"the storage {storage!r} is neither a folder nor a URL ({error}): write it such as "
        "s3a://bucket/folder"
    )


def _known_place(storage: str) -> str:
    """Returns the place of a storage that was deployed, perhaps by a version that did not check
    it: one that is not a URL is at no place."""
    try:
        return storage_place(storage)
    except PipelineError:
        return ""


def _path(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))
