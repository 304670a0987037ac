"""Opens an object store by its URL, and probes it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.ports import Env
from penstock.tier.driver import Driver
from penstock.tier.errors import Refused
from penstock.tier.local_store import LocalStore
from penstock.tier.object_store import ObjectStore
from penstock.tier.probe import probe

_CLOUD: Final = ("s3", "gs", "az", "memory")
_CLIENT_OPTIONS: Final = ("allow_http", "timeout", "connect_timeout", "proxy_url")
_TIMEOUT: Final = "60s"


def open_store(url: str, env: Env, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Returns the store of a URL. `options` are those of obstore, such as `endpoint`.

    Raises `Refused` if the URL or an option is not known, or the extra is not installed.
    """
    options = options or {}
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = unquote(parts.path)
        is_path = path.startswith("/") and path.strip("/") and "\0" not in path
        if parts.netloc or not is_path:
            raise Refused(f"{url}: write file:///, then the path of a directory")
        if parts.query or parts.fragment:
            raise Refused(f"{url}: write %3F for ? and %23 for # in the path")
        if options:
            raise Refused(f"{url}: a directory has no options: remove {', '.join(options)}")
        return LocalStore(path, env.executor, env.random)
    if parts.scheme not in _CLOUD:
        raise Refused(f"{url}: write a URL that begins with file:, s3:, gs: or az:")
    try:
        cloud = import_module("penstock.tier.cloud_store")
    except ImportError as error:
        raise Refused(f"{url}: run pip install 'penstock[tiered]'") from error
    config, client = _divided(options)
    if parts.scheme == "s3":
        # S3 compares the checksum with what it has received.
        config.setdefault("checksum_algorithm", "SHA256")
        # Not every compatible server knows how to delete several objects at once.
        config.setdefault("disable_bulk_delete", "true")
    store: ObjectStore = cloud.CloudStore.from_url(url, config, client)
    return store


def _divided(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Divides options into those of the store and those of its HTTP client."""
    config = {name: value for name, value in options.items() if name not in _CLIENT_OPTIONS}
    client: dict[str, Any] = {"timeout": _TIMEOUT}
    for name in _CLIENT_OPTIONS:
        if name in options:
            value = options[name]
            client[name] = value == "true" if name == "allow_http" else value
    return config, client


async def check_store(store: ObjectStore, env: Env) -> None:
    """Probes the store. Raises `Refused`, with the reason, if it is not suitable."""
    await Driver(store, env.clock, env.random).run(probe(env.random.bytes))
