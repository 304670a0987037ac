"""S3, Google Cloud Storage, Azure and memory as object stores, with obstore.

obstore's own retries are switched off: a create that is repeated after it had succeeded would be
answered with "exists". `driver` tries again what is safe to repeat, and `commit` finds out about
the rest. The message of an error is all that obstore tells about it, so an error of a write counts
as unknown unless its text shows that nothing was sent or that the server has refused it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import ObjectStore as Backend
from obstore.store import from_url

from penstock.records.batch import Buffer
from penstock.tier.errors import (
    AlreadyExists,
    NotFound,
    OutcomeUnknown,
    Refused,
    Throttled,
)
from penstock.tier.object_store import ObjectInfo, check_key, check_prefix, check_range

_REFUSALS: Final = (
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
_STATUS: Final = re.compile(r"status code: (\d{3})")
_NOT_SENT: Final = "kind: Connect"
_TRY_AGAIN: Final = frozenset({408, 409, 425, 429})
_TRY_AGAIN_CODES: Final = re.compile(
    r"<Code>(RequestTimeout|BadDigest|IncompleteBody|XAmzContent\w+Mismatch)</Code>"
)
"""S3 answers 400 with these when the network has damaged a request, or cut it."""
_COALESCE_BYTES: Final = 256 << 10


class CloudStore:
    """A bucket, or a folder in one."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @classmethod
    def from_url(
        cls, url: str, config: Mapping[str, str], client_options: Mapping[str, Any]
    ) -> CloudStore:
        """Raises `Refused` if obstore does not know the URL or an option."""
        settings: dict[str, Any] = {}
        if not url.startswith("memory:"):
            settings = {
                "config": dict(config) or None,
                "client_options": dict(client_options) or None,
                "retry_config": {"max_retries": 0},
            }
        try:
            return cls(from_url(url, **settings))
        except (BaseError, ValueError, TypeError) as error:
            raise Refused(f"{url}: {_first_line(error)}") from error

    async def create(self, key: str, data: Sequence[Buffer]) -> None:
        with _writing(key), _needing_bucket():
            await obstore.put_async(self._backend, check_key(key), _parts(data), mode="create")

    async def put(self, key: str, data: Sequence[Buffer]) -> None:
        with _writing(key), _needing_bucket():
            await obstore.put_async(
                self._backend, check_key(key), _parts(data), use_multipart=False
            )

    async def get(self, key: str) -> bytes:
        with _reading(key):
            result = await obstore.get_async(self._backend, check_key(key))
            return bytes(await result.bytes_async())

    async def get_range(self, key: str, start: int, size: int) -> bytes:
        check_range(start, size)
        with _reading(key):
            found = await obstore.get_range_async(
                self._backend, check_key(key), start=start, length=size
            )
            return bytes(found)

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for start, size in ranges:
            check_range(start, size)
        with _reading(key):
            found = await obstore.get_ranges_async(
                self._backend,
                check_key(key),
                starts=[start for start, _ in ranges],
                lengths=[size for _, size in ranges],
                coalesce=_COALESCE_BYTES,
            )
            return [bytes(each) for each in found]

    async def head(self, key: str) -> ObjectInfo:
        with _reading(key):
            meta = await obstore.head_async(self._backend, check_key(key))
        return ObjectInfo(key, meta["size"], _milliseconds(meta["last_modified"]))

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = 1000
    ) -> Sequence[ObjectInfo]:
        check_prefix(prefix)
        found: list[ObjectInfo] = []
        with _reading(prefix):
            stream = obstore.list(
                self._backend,
                prefix.rstrip("/") or None,
                offset=start_after or None,
                chunk_size=limit,
            )
            async for chunk in stream:
                for meta in chunk:
                    modified_ms = _milliseconds(meta["last_modified"])
                    found.append(ObjectInfo(meta["path"], meta["size"], modified_ms))
                if len(found) >= limit:
                    break
        return found[:limit]

    async def delete(self, key: str) -> None:
        try:
            with _writing(key):
                await obstore.delete_async(self._backend, check_key(key))
        except NotFound:
            return

    async def close(self) -> None:
        pass


def _parts(data: Sequence[Buffer]) -> Sequence[Buffer] | Buffer:
    """One part is passed as it is. obstore takes no empty list."""
    return data[0] if len(data) == 1 else list(data) or b""


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _refuse_if_final(key: str, error: BaseException) -> None:
    """Raises `Refused` if the server has understood the request and will not do it."""
    status = _STATUS.search(str(error))
    code = int(status[1]) if status else 0
    if code == 400 and _TRY_AGAIN_CODES.search(str(error)):
        return
    if isinstance(error, _REFUSALS) or (400 <= code < 500 and code not in _TRY_AGAIN):
        raise Refused(f"{key}: {_first_line(error)}") from error


@contextmanager
def _writing(key: str) -> Iterator[None]:
    try:
        yield
    except (AlreadyExistsError, PreconditionError) as error:
        raise AlreadyExists(f"{key}: {_first_line(error)}") from error
    except FileNotFoundError as error:
        raise NotFound(f"{key}: {_first_line(error)}") from error
    except BaseError as error:
        _refuse_if_final(key, error)
        if _NOT_SENT in str(error):
            raise Throttled(f"{key}: {_first_line(error)}") from error
        raise OutcomeUnknown(f"{key}: {_first_line(error)}") from error


@contextmanager
def _needing_bucket() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise Refused(f"{_first_line(error)}: check that the bucket exists") from error


@contextmanager
def _reading(key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{key}: {_first_line(error)}") from error
    except BaseError as error:
        _refuse_if_final(key, error)
        raise Throttled(f"{key}: {_first_line(error)}") from error
