"""A disk that encrypts the files of some logs: the `Disk` port, on top of another disk.

All of storage works on this disk and sees plaintext, by positions in the plaintext. A log's topic
setting `encryption` names the topic key of its new files (`protect`). Each existing file says
itself, by its header, whether it is encrypted and with which data key. So the setting can change at
any time, and it affects new files only.

Encrypted are the files that contain records or are derived from them: `.log`, the indexes, the
lists of aborted transactions and the producer snapshots. Checkpoints are not: they contain offsets,
epochs and CRCs.

A plain file of a log without the setting is returned as the disk below returned it. Appends, reads
and `sendfile` then cost nothing extra; opening it costs one read, and so does its size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from errno import EIO
from typing import Final

from penstock.ports import Buffer, Disk, File, FileStat
from penstock.storage.checkpoints import topic_id_of
from penstock.storage.data_keys import DataKey, Keyring, KeyUnavailable
from penstock.storage.encrypted_file import EncryptedFile, FrameMap
from penstock.storage.errors import CorruptFile
from penstock.storage.files import (
    CLEANED,
    DELETED,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TEMPORARY,
    parse_offset_name,
    parse_partition_directory,
    parse_swap_name,
    write_all,
)
from penstock.storage.sealed_format import (
    HEADER_BYTES,
    PAGE_BYTES,
    FileHeader,
    NewerFormat,
    Place,
    decode_header,
    is_torn_header,
)

_log = logging.getLogger(__name__)
_KINDS: Final = (*SEGMENT_SUFFIXES, SNAPSHOT)
_PASSING: Final = (TEMPORARY, CLEANED, DELETED)


def kind_of(name: str) -> tuple[str, int] | None:
    """Returns the kind of a file that may be encrypted, and its offset; None for other files. A
    file that is being written or deleted counts as what it will be, or was."""
    stem = name
    while stem.endswith(_PASSING):
        stem = stem.rpartition(".")[0]
    swap = parse_swap_name(stem)
    if swap is not None:
        return LOG, swap[0]
    for kind in _KINDS:
        offset = parse_offset_name(stem, kind)
        if offset is not None:
            return kind, offset
    return None


@dataclass(slots=True)
class _Sealing:
    """What is known about the encryption of one log."""

    topic_id: str
    partition: int
    key_name: str = ""
    """The topic key of new files; empty if they are plain."""
    keys: dict[int, DataKey] = field(default_factory=dict)
    """Data keys of its segments, by base offset."""

    def near(self, offset: int) -> DataKey | None:
        """Returns the data key of the segment that contains the offset, as far as it is known."""
        # A thread that compacts the log may add a key meanwhile.
        base = max((base for base in tuple(self.keys) if base <= offset), default=None)
        return None if base is None else self.keys.get(base)


class EncryptedDisk:
    """Encrypts and decrypts files on the way to and from another disk."""

    def __init__(
        self, disk: Disk, keyring: Keyring, *, page_bytes: int = PAGE_BYTES, read_only: bool = False
    ) -> None:
        self._disk = disk
        self._keyring = keyring
        self._page_bytes = page_bytes
        self._read_only = read_only
        self._logs: dict[str, _Sealing] = {}

    @property
    def keyring(self) -> Keyring:
        return self._keyring

    @property
    def below(self) -> Disk:
        """The disk with the encrypted files."""
        return self._disk

    # Which files are encrypted

    def protect(self, directory: str, topic_id: str, partition: int, key_name: str) -> None:
        """Sets the topic key of a log's new files; empty if they are to be plain."""
        known = self._logs.get(directory)
        if known is None or known.topic_id != topic_id:
            self._logs[directory] = _Sealing(topic_id, partition, key_name)
        else:
            known.key_name = key_name

    def forget(self, directory: str) -> None:
        """Forgets a log that was closed or deleted."""
        self._logs.pop(directory, None)

    def load_keys(self, directory: str) -> None:
        """Gets the data keys of all segments of a log. Raises `KeyUnavailable` if one cannot be
        had. Blocking."""
        for name in self._disk.listdir(directory):
            base = parse_offset_name(name, LOG)
            header = self.header_of(f"{directory}/{name}") if base is not None else None
            if base is not None and header is not None:
                self._sealing(directory).keys[base] = self._keyring.key(header.wrapped)

    def forget_keys(self, directory: str) -> None:
        """Forgets the data keys of a log whose topic key was dropped."""
        log = self._logs.get(directory)
        if log is not None:
            log.keys.clear()

    def keys_in_use(self) -> dict[str, dict[str, DataKey]]:
        """Returns, by topic key, one data key of each log that has files encrypted with it."""
        used: dict[str, dict[str, DataKey]] = {}
        for directory, sealing in tuple(self._logs.items()):
            for key in tuple(sealing.keys.values()):
                used.setdefault(key.wrapped.key_name, {})[directory] = key
        return used

    def due_keys(self) -> list[str]:
        """Returns the topic keys that new files need."""
        return sorted({log.key_name for log in self._logs.values() if log.key_name})

    def header_of(self, path: str) -> FileHeader | None:
        """Returns the header of a file; None if it is not encrypted."""
        if kind_of(path.rpartition("/")[2]) is None:
            return None
        file = self._disk.open(path)
        try:
            return _header(path, file.pread(HEADER_BYTES, 0))
        finally:
            file.close()

    def _sealing(self, directory: str) -> _Sealing:
        known = self._logs.get(directory)
        if known is not None:
            return known
        parsed = parse_partition_directory(directory.rpartition("/")[2])
        try:
            topic_id = topic_id_of(self._disk, directory)
        except CorruptFile as error:
            raise KeyUnavailable(f"{directory} has encrypted files, but {error}") from error
        if parsed is None:
            raise KeyUnavailable(
                f"{directory} is not named TOPIC-PARTITION: an encrypted log can only be read in a "
                "directory of its own name"
            )
        return _Sealing(topic_id, parsed.partition)

    # The Disk port

    def open(self, path: str, *, create: bool = False, private: bool = False) -> File:
        directory, _, name = path.rpartition("/")
        kind = kind_of(name)
        if kind is None:
            return self._disk.open(path, create=create, private=private)
        log = self._logs.get(directory)
        key_name = log.key_name if log is not None else ""
        if create and key_name and not self._disk.exists(path):
            return self._create(path, directory, kind)
        file = self._disk.open(path, create=create, private=private)
        try:
            return self._opened(file, path, directory, kind, key_name)
        except BaseException:
            with suppress(OSError):
                file.close()
            raise

    def _opened(
        self, file: File, path: str, directory: str, kind: tuple[str, int], key_name: str
    ) -> File:
        data = file.pread(HEADER_BYTES, 0)
        header = _header(path, data)
        if header is not None:
            sealing = self._sealing(directory)
            key = self._keyring.key(header.wrapped)
            sealing.keys.setdefault(kind[1], key)
            if not self._read_only and data != header.encode():
                _restore_header(file, path, header)
            return self._encrypted(file, key, header, sealing, kind)
        if self._read_only:
            return file
        if data and is_torn_header(data, file.size(), is_due=bool(key_name)):
            file.truncate(0)
            data = b""
        if not key_name:
            return file
        if not data:
            return self._begin(file, directory, kind)
        return PlainUntilEmpty(file, lambda: self._begin(file, directory, kind))

    def _create(self, path: str, directory: str, kind: tuple[str, int]) -> File:
        """Creates an encrypted file. Its name appears when its header is written: a file that had
        its name already would be taken for an empty segment."""
        temporary = path + TEMPORARY
        file = self._disk.open(temporary, create=True)
        try:
            file.truncate(0)
            begun = self._begin(file, directory, kind)
            self._disk.rename(temporary, path)
        except OSError:
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                self._disk.unlink(temporary)
            raise
        return begun

    def _begin(self, file: File, directory: str, kind: tuple[str, int]) -> EncryptedFile:
        """Writes the header of an empty file."""
        sealing = self._sealing(directory)
        near = sealing.near(kind[1])
        if kind[0] == LOG or near is None or near.wrapped.key_name != sealing.key_name:
            near = sealing.keys[kind[1]] = self._keyring.new_key(sealing.key_name, near)
        header = self._keyring.header(near, self._page_bytes)
        write_all(file, header.encode(), 0)
        return self._encrypted(file, near, header, sealing, kind)

    def _encrypted(
        self,
        file: File,
        key: DataKey,
        header: FileHeader,
        sealing: _Sealing,
        kind: tuple[str, int],
    ) -> EncryptedFile:
        place = Place(sealing.topic_id, sealing.partition, kind[1], kind[0]).encode()
        cipher = self._keyring.cipher(key, header)
        return EncryptedFile(
            file,
            cipher,
            place,
            header.page_bytes,
            self._keyring.random,
            None if self._read_only else header,
        )

    def stat(self, path: str) -> FileStat:
        found = self._disk.stat(path)
        directory, _, name = path.rpartition("/")
        if found.is_directory or not found.size or kind_of(name) is None:
            return found
        log = self._logs.get(directory)
        is_due = log is not None and bool(log.key_name)
        file = self._disk.open(path)
        try:
            data = file.pread(HEADER_BYTES, 0)
            header = _header(path, data)
            if header is not None:
                return replace(found, size=FrameMap(file, header.page_bytes).size)
        finally:
            file.close()
        if is_torn_header(data, found.size, is_due=is_due):
            return replace(found, size=0)
        return found

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def listdir(self, path: str) -> list[str]:
        return self._disk.listdir(path)

    def mkdir(self, path: str) -> None:
        self._disk.mkdir(path)

    def discard(self, path: str) -> bool:
        return self._disk.discard(path)

    def rmdir(self, path: str) -> None:
        self._disk.rmdir(path)

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._disk.total_bytes(path)

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)
        self._drop_key(source)

    def unlink(self, path: str) -> None:
        self._disk.unlink(path)
        self._drop_key(path)

    def _drop_key(self, path: str) -> None:
        """Forgets the data key of a segment whose file is gone."""
        directory, _, name = path.rpartition("/")
        log = self._logs.get(directory)
        if log is not None and log.keys and name.endswith(LOG):
            base = parse_offset_name(name, LOG)
            if base is not None:
                log.keys.pop(base, None)


def _header(path: str, data: bytes) -> FileHeader | None:
    try:
        return decode_header(data)
    except NewerFormat as error:
        raise OSError(
            EIO, f"{path} was encrypted by a later version of Penstock: {error}"
        ) from error


def _restore_header(file: File, path: str, header: FileHeader) -> None:
    """Writes both copies of a header again, of which one is damaged. The other one stays as it is,
    byte for byte, so an interrupted write changes nothing."""
    _log.warning("one of the two copies of the header of %s was damaged; writing it again", path)
    try:
        write_all(file, header.encode(), 0)
    except OSError as error:
        _log.warning("cannot write the header of %s again, using the other copy: %s", path, error)


class PlainUntilEmpty:
    """A plain file of a log whose new files are encrypted. Once it is empty, it is encrypted too.

    Recovery may cut a file down to nothing and append to it. Without this, records would be written
    in plain text from then on.
    """

    __slots__ = ("_begin", "_file", "drop_cache", "fileno", "fsync", "pread", "pwrite", "size")

    def __init__(self, file: File, begin: Callable[[], File]) -> None:
        self._begin = begin
        self._use(file)
        if hasattr(file, "fileno"):
            self.fileno: Callable[[], int] = file.fileno

    def _use(self, file: File) -> None:
        # Bound here: appends and reads of a plain file cost what they always did.
        self._file = file
        self.pread: Callable[[int, int], bytes] = file.pread
        self.pwrite: Callable[[Buffer, int], int] = file.pwrite
        self.size: Callable[[], int] = file.size
        self.fsync: Callable[[], None] = file.fsync
        self.drop_cache: Callable[[], None] = file.drop_cache

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        if not size and not isinstance(self._file, EncryptedFile):
            with suppress(AttributeError):
                del self.fileno
            # If the header cannot be written, nothing else may be.
            self.pwrite = _refuse
            self._use(self._begin())

    def close(self) -> None:
        self._file.close()


def _refuse(data: Buffer, position: int) -> int:
    raise OSError(EIO, "this file must be encrypted, and its header could not be written")


def protect(disk: Disk, directory: str, topic_id: str, partition: int, key_name: str) -> None:
    """Sets the topic key of a log's new files. Raises `KeyUnavailable` if the disk cannot
    encrypt."""
    if isinstance(disk, EncryptedDisk):
        disk.protect(directory, topic_id, partition, key_name)
    elif key_name:
        raise KeyUnavailable(f"{directory} must be encrypted, but this disk does not encrypt")


def load_keys(disk: Disk, directory: str) -> None:
    """Gets all data keys of a log before anything is read or repaired. Raises `KeyUnavailable`."""
    if isinstance(disk, EncryptedDisk):
        disk.load_keys(directory)
