"""A directory as an object store, also on NFS.

A create writes a temporary file, syncs it, and links it to its name. The link fails if the name
exists. So a name never shows half an object, and a process that is killed at any step leaves at
most a temporary file.

A name is durable when its directory was synced. A create that finds its name taken syncs the
directory too, because its caller relies on the object of the other one from then on. So do `get`
and `head`: what they have shown must not be gone after a power cut. Reads of ranges do not. They
are for objects that a manifest names.

On NFS a client repeats a request whose answer was lost, and is then told that the link exists
already. The name leads to the temporary file in this case, so it was this create.

The directory itself is never made. If it is missing, a file system may not be mounted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EACCES, EMLINK, ENAMETOOLONG, ENOSYS, EOPNOTSUPP, EPERM, EROFS
from functools import partial
from stat import S_ISREG
from typing import Final, NoReturn, TypeVar

from penstock.ports import Executor, Random
from penstock.records.batch import Buffer
from penstock.tier.errors import (
    AlreadyExists,
    NotFound,
    OutcomeUnknown,
    Refused,
    Throttled,
)
from penstock.tier.object_store import ObjectInfo, check_key, check_prefix, check_range

T = TypeVar("T")
_TEMPORARY: Final = ".tmp"
_REFUSALS: Final = frozenset({EACCES, EPERM, EROFS, ENAMETOOLONG})
_NO_LINKS: Final = frozenset({EPERM, EOPNOTSUPP, ENOSYS, EMLINK})
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_OLD: Final = os.O_RDONLY | os.O_CLOEXEC


class LocalStore:
    """An object store in a directory. Its calls run on threads."""

    def __init__(self, root: str, executor: Executor, random: Random) -> None:
        self._root = os.path.abspath(root)
        self._executor = executor
        self._random = random
        self._known: set[str] = set()
        """Directories whose names this process has made durable."""

    async def create(self, key: str, data: Sequence[Buffer]) -> None:
        await self._write(key, data, self._link)

    async def put(self, key: str, data: Sequence[Buffer]) -> None:
        await self._write(key, data, self._replace)

    async def get(self, key: str) -> bytes:
        return await self._executor.run(partial(self._read, self._path(key)))

    async def get_range(self, key: str, start: int, size: int) -> bytes:
        check_range(start, size)
        return (await self.get_ranges(key, [(start, size)]))[0]

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for start, size in ranges:
            check_range(start, size)
        return await self._executor.run(partial(self._read_ranges, self._path(key), ranges))

    async def head(self, key: str) -> ObjectInfo:
        return await self._executor.run(partial(self._shown, key, self._path(key)))

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = 1000
    ) -> Sequence[ObjectInfo]:
        check_prefix(prefix)
        return await self._executor.run(partial(self._list, prefix, start_after, limit))

    async def delete(self, key: str) -> None:
        await self._executor.run(partial(self._delete, self._path(key)))

    async def remove_temporaries(self, before_ms: int) -> int:
        """Removes the temporary files of crashed processes that are older than a time. Returns how
        many there were."""
        return await self._executor.run(partial(self._remove_temporaries, before_ms))

    async def close(self) -> None:
        pass

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    async def _write(
        self, key: str, data: Sequence[Buffer], name: Callable[[int, str, str], None]
    ) -> None:
        temporary = f"{self._root}/{_TEMPORARY}/{self._random.bytes(16).hex()}"
        work = partial(self._write_file, self._path(key), temporary, data, name)
        await self._executor.run(work)

    # On a thread

    def _write_file(
        self,
        path: str,
        temporary: str,
        data: Sequence[Buffer],
        name: Callable[[int, str, str], None],
    ) -> None:
        with _nothing_changed(path):
            self._make_directory(os.path.dirname(temporary))
            self._make_directory(os.path.dirname(path))
            fd = os.open(temporary, _NEW, 0o644)
        try:
            with _nothing_changed(path):
                for part in data:
                    _write_all(fd, part)
                os.fsync(fd)
            name(fd, temporary, path)
        finally:
            with suppress(OSError):  # The bytes were synced before.
                os.close(fd)
            with suppress(OSError):
                os.unlink(temporary)

    def _link(self, fd: int, temporary: str, path: str) -> None:
        is_taken = False
        try:
            os.link(temporary, path)
        except FileExistsError:
            with _unknown(path):
                is_taken = not os.path.samestat(os.fstat(fd), os.stat(path))
        except FileNotFoundError as error:
            self._known.clear()  # Somebody has removed a directory. It is made again next time.
            raise Throttled(
                f"{path}: its directory was deleted; nothing was changed, try again"
            ) from error
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise Refused(
                    f"{path}: {error.strerror}: the file system must have hard links"
                ) from error
            _fail_unless_unknown(path, error)
        with _unknown(path):
            _sync_directory(os.path.dirname(path))
        if is_taken:
            raise AlreadyExists(path)

    def _replace(self, _: int, temporary: str, path: str) -> None:
        try:
            os.replace(temporary, path)
        except OSError as error:
            _fail_unless_unknown(path, error)
        with _unknown(path):
            _sync_directory(os.path.dirname(path))

    def _make_directory(self, path: str) -> None:
        """Makes a directory and those above it, and makes their names durable. Another process may
        have made them without having synced them yet."""
        if path in self._known or len(path) < len(self._root):
            return
        above = os.path.dirname(path)
        self._make_directory(above)
        if path == self._root and not os.path.isdir(path):
            raise Refused(f"{path} is not a directory: mount its file system, then create it")
        with suppress(FileExistsError):
            os.mkdir(path)
        _sync_directory(above)
        self._known.add(path)

    def _read(self, path: str) -> bytes:
        with _reading(path):
            fd = os.open(path, _OLD)
            try:
                _sync_directory(os.path.dirname(path))
                return _read_at(fd, os.fstat(fd).st_size, 0)
            finally:
                os.close(fd)

    def _read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with _reading(path):
            fd = os.open(path, _OLD)
            try:
                end = os.fstat(fd).st_size
                return [_read_at(fd, min(size, max(0, end - at)), at) for at, size in ranges]
            finally:
                os.close(fd)

    def _shown(self, key: str, path: str) -> ObjectInfo:
        info = self._head(key, path)
        with _reading(path):
            _sync_directory(os.path.dirname(path))
        return info

    def _head(self, key: str, path: str) -> ObjectInfo:
        with _reading(path):
            status = os.stat(path)
        if not S_ISREG(status.st_mode):
            raise NotFound(key)
        return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def _list(self, prefix: str, start_after: str, limit: int) -> list[ObjectInfo]:
        top = f"{self._root}/{prefix}".rstrip("/")
        keys: list[str] = []
        with _reading(top):
            for folder, folders, names in os.walk(top, onerror=_raise_unless_gone):
                folders[:] = [name for name in folders if not name.startswith(".")]
                relative = folder[len(self._root) + 1 :]
                keys += [
                    f"{relative}/{name}" if relative else name
                    for name in names
                    if not name.startswith(".")
                ]
        infos: list[ObjectInfo] = []
        for key in sorted(key for key in keys if key > start_after):
            if len(infos) == limit:
                break
            with suppress(NotFound):  # It was deleted meanwhile.
                infos.append(self._head(key, f"{self._root}/{key}"))
        return infos

    def _delete(self, path: str) -> None:
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            _fail_unless_unknown(path, error)
        with _unknown(path):
            _sync_directory(os.path.dirname(path))

    def _remove_temporaries(self, before_ms: int) -> int:
        folder = f"{self._root}/{_TEMPORARY}"
        removed = 0
        with _reading(folder), suppress(FileNotFoundError):
            for name in os.listdir(folder):
                path = f"{folder}/{name}"
                with suppress(FileNotFoundError):
                    if os.stat(path).st_mtime_ns // 1_000_000 < before_ms:
                        os.unlink(path)
                        removed += 1
        return removed


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _write_all(fd: int, data: Buffer) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(fd, view) :]


def _read_at(fd: int, size: int, position: int) -> bytes:
    """Reads exactly so many bytes, unless the file was cut."""
    data = os.pread(fd, size, position)
    parts = [data]
    done = len(data)
    while data and done < size:
        data = os.pread(fd, size - done, position + done)
        parts.append(data)
        done += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _outcome_unknown(path: str, error: OSError) -> OutcomeUnknown:
    return OutcomeUnknown(f"{path}: {error.strerror}: it is unknown whether this was done")


def _fail(path: str, error: OSError) -> NoReturn:
    if error.errno in _REFUSALS:
        raise Refused(f"{path}: {error.strerror}: check the owner and the mount") from error
    raise Throttled(f"{path}: {error.strerror}; nothing was changed") from error


def _fail_unless_unknown(path: str, error: OSError) -> NoReturn:
    """A name was to be made or removed. Permissions are checked before anything is changed."""
    if error.errno in _REFUSALS:
        _fail(path, error)
    raise _outcome_unknown(path, error) from error


@contextmanager
def _nothing_changed(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _fail(path, error)


@contextmanager
def _unknown(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _outcome_unknown(path, error) from error


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise NotFound(path) from error
    except OSError as error:
        _fail(path, error)
