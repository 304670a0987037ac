"""What procedures ask of an object store. Pure.

A procedure is a generator. It yields requests, gets their results, and returns its own result.
Errors of the store are raised where the request was yielded. So a protocol reads from top to
bottom, and its driver decides what runs when: `driver.run` on a real store, tests with crashes
between any two requests.

    Create       None
    Read         bytes
    ReadRange    bytes
    Head         ObjectInfo
    List         a sequence of ObjectInfo
    Delete       None
    Together     a list: the result of each request, or its `StoreError`
    BackOff      None, after a while: the longer, the higher the number of the attempt
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from penstock.records.batch import Buffer
from penstock.tier.errors import Refused
from penstock.tier.object_store import ObjectInfo

T = TypeVar("T")


class Create(NamedTuple):
    key: str
    data: Sequence[Buffer]


class Read(NamedTuple):
    key: str


class ReadRange(NamedTuple):
    key: str
    start: int
    size: int


class Head(NamedTuple):
    key: str


class List(NamedTuple):
    prefix: str
    start_after: str = ""
    limit: int = 1000


class Delete(NamedTuple):
    key: str


class Together(NamedTuple):
    """Requests that run at the same time, in any order."""

    requests: Sequence[Create | Delete | Head | Read]


class BackOff(NamedTuple):
    attempt: int


Request: TypeAlias = Create | Read | ReadRange | Head | List | Delete | Together | BackOff
Procedure: TypeAlias = Generator[Request, Any, T]


def create(key: str, *data: Buffer) -> Procedure[None]:
    yield Create(key, data)


def read(key: str) -> Procedure[bytes]:
    data: bytes = yield Read(key)
    return data


def read_range(key: str, start: int, size: int) -> Procedure[bytes]:
    data: bytes = yield ReadRange(key, start, size)
    return data


def head(key: str) -> Procedure[ObjectInfo]:
    info: ObjectInfo = yield Head(key)
    return info


def delete(key: str) -> Procedure[None]:
    yield Delete(key)


def together(requests: Sequence[Create | Delete | Head | Read]) -> Procedure[list[Any]]:
    results: list[Any] = yield Together(requests)
    return results


def list_all(prefix: str, page: int = 1000) -> Procedure[list[ObjectInfo]]:
    """Returns everything that a listing shows, page by page."""
    found: list[ObjectInfo] = []
    start_after = ""
    while True:
        infos: Sequence[ObjectInfo] = yield List(prefix, start_after, page)
        if infos and infos[-1].key <= start_after:
            raise Refused(
                f"a listing of {prefix} after {start_after} ends with {infos[-1].key}: the store "
                "ignores the start of a listing, or does not sort it. Use another store"
            )
        found += infos
        if len(infos) < page:
            return found
        start_after = infos[-1].key
