"""Encrypted logs in the crash harness: keys, a watch for repeated nonces, and forged segments.

A case is plain, encrypted, or changes between the two when the log is opened again. The key
provider is sometimes down while the log is opened. That must fail and change nothing.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import Final, Protocol

from crc32c import crc32c

from penstock.ports import Buffer
from penstock.records.batch import CRC_FIELD_START, CRC_START, CorruptBatch, iter_batches
from penstock.sim.crash.log_checks import Broken
from penstock.sim.disk.disk import SimDisk
from penstock.storage.data_keys import Keyring, KeyUnavailable
from penstock.storage.encrypted_disk import EncryptedDisk, kind_of
from penstock.storage.encrypted_file import EncryptedFile, FrameMap
from penstock.storage.sealed_format import (
    FRAME_HEAD_BYTES,
    HEADER_BYTES,
    FileCipher,
    Frame,
    Place,
    decode_header,
)

TOPIC_KEY: Final = "orders-key"


class SeededBytes:
    """The `Random` port, from a seed."""

    def __init__(self, draws: Random) -> None:
        self._draws = draws

    def bytes(self, size: int) -> bytes:
        return self._draws.randbytes(size)

    def below(self, bound: int) -> int:
        return self._draws.randrange(bound)

    def uniform(self) -> float:
        return self._draws.random()


class SimKeys:
    """A key provider in memory that can be down."""

    is_slow = False

    def __init__(self) -> None:
        self.is_down = False
        self._known: dict[bytes, bytes] = {}

    def wrap(self, key_name: str, data_key: bytes) -> bytes:
        self._check(key_name)
        token = blake2b(data_key, digest_size=16).digest()
        self._known[token] = data_key
        return token

    def unwrap(self, key_name: str, token: bytes) -> bytes:
        self._check(key_name)
        return self._known[token]

    def _check(self, key_name: str) -> None:
        if self.is_down:
            raise KeyUnavailable(f"the key {key_name!r} cannot be had: the provider is down")


class NonceWatch:
    """Makes ciphers, and remembers with which key each nonce was used, and for what."""

    def __init__(self) -> None:
        self._seen: dict[tuple[bytes, bytes], bytes] = {}

    def cipher(self, key: bytes) -> WatchedCipher:
        return WatchedCipher(self, key)

    def note(self, key: bytes, nonce: bytes, data: bytes) -> None:
        if self._seen.setdefault((key, nonce), data) != data:
            raise Broken("a nonce was used twice with the same key, for different bytes")


class Watch(Protocol):
    def note(self, key: bytes, nonce: bytes, data: bytes) -> None:
        """Is called before bytes are encrypted."""


class WatchedCipher:
    __slots__ = ("_cipher", "_key", "_watch")

    def __init__(self, watch: Watch, key: bytes) -> None:
        self._watch = watch
        self._key = key
        self._cipher = FileCipher(key)

    def encrypt_into(
        self, nonce: Buffer, data: Buffer, associated_data: Buffer | None, buf: Buffer, /
    ) -> int:
        self._watch.note(self._key, bytes(nonce), bytes(data))
        return self._cipher.encrypt_into(nonce, data, associated_data, buf)

    def decrypt(self, nonce: Buffer, data: Buffer, associated_data: Buffer | None, /) -> bytes:
        return self._cipher.decrypt(nonce, data, associated_data)

    def guess(self, nonce: Buffer, data: Buffer, /) -> bytes:
        return self._cipher.guess(nonce, data)


class _Bytes:
    """A file's content as a `File`, to look into it without a disk call."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]

    def pwrite(self, data: Buffer, position: int) -> int:
        self._data = self._data[:position].ljust(position, b"\0") + bytes(data)
        return len(data)

    def truncate(self, size: int) -> None:
        self._data = self._data[:size]

    def size(self) -> int:
        return len(self._data)

    def fsync(self) -> None:
        pass

    def drop_cache(self) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def data(self) -> bytes:
        return self._data


class SealedLogs:
    """The keys of one case, which survive its processes."""

    def __init__(self, topic_id: str, page_bytes: int, draws: Random) -> None:
        self.keys = SimKeys()
        self._watch = NonceWatch()
        self._topic_id = topic_id
        self._page_bytes = page_bytes
        self._random = SeededBytes(draws)

    def disk(self, disk: SimDisk) -> EncryptedDisk:
        """Returns the disk of a new process, which knows no data key yet."""
        return EncryptedDisk(disk, self._keyring(), page_bytes=self._page_bytes)

    def _keyring(self) -> Keyring:
        return Keyring(self.keys, self._random, make_cipher=self._watch.cipher)

    def _file(self, path: str, data: bytes, partition: int = 0) -> EncryptedFile | None:
        header, kind = decode_header(data), kind_of(path.rpartition("/")[2])
        if header is None or kind is None:
            return None
        keyring = self._keyring()
        place = Place(self._topic_id, partition, kind[1], kind[0]).encode()
        cipher = keyring.cipher(keyring.key(header.wrapped), header)
        return EncryptedFile(_Bytes(data), cipher, place, header.page_bytes, self._random)

    def plaintext(self, path: str, data: bytes) -> bytes:
        """Returns the content of a file; `data` itself if it is plain."""
        file = self._file(path, data)
        return data if file is None else file.pread(file.size(), 0)

    def contents(self, disk: SimDisk) -> dict[str, bytes]:
        """Returns the content of every file. A rebuilt index is encrypted again, and the same."""
        return {
            path: data if path.endswith(".log") else self.plaintext(path, data)
            for path, data in disk.files().items()
        }

    def frame_at(self, data: bytes, at: int) -> tuple[Frame, bool] | None:
        """Returns the frame that contains this byte of an encrypted file, and whether the byte is
        in the frame's header; None if it is in no frame."""
        header = decode_header(data)
        if header is None or at < HEADER_BYTES:
            return None
        where = FrameMap(_Bytes(data), header.page_bytes)
        for frame in where.frames(where.page_of(at))[0] if where.pages else ():
            if frame.start <= at < frame.file_end:
                return frame, at < frame.start + FRAME_HEAD_BYTES
        return None

    def position_of(self, data: bytes, position: int) -> int:
        """Returns where a byte of the plaintext is in the file."""
        header = decode_header(data)
        if header is None:
            return position
        frame = FrameMap(_Bytes(data), header.page_bytes).last_before(position + 1)
        return position if frame is None else frame.start + 32 + position - frame.position

    def forged(self, path: str, data: bytes) -> bytes | None:
        """Returns a file that another partition could have at the same place: encrypted with the
        same topic key, with batches of the same offsets and sizes, but other records. None if the
        file is plain or has no batches."""
        header, kind = decode_header(data), kind_of(path.rpartition("/")[2])
        if header is None or kind is None:
            return None
        plain = bytearray(self.plaintext(path, data))
        keyring = self._keyring()
        key = keyring.new_key(TOPIC_KEY)
        other = keyring.header(key, header.page_bytes)
        place = Place(self._topic_id, 1, kind[1], kind[0]).encode()
        raw = _Bytes(other.encode())
        file = EncryptedFile(raw, keyring.cipher(key, other), place, other.page_bytes, self._random)
        try:
            for start, batch in iter_batches(bytes(plain)):
                end = start + batch.size
                plain[end - 1] ^= 1
                check = crc32c(plain[start + CRC_START : end])
                plain[start + CRC_FIELD_START : start + CRC_START] = check.to_bytes(4, "big")
                file.pwrite(plain[start:end], start)
        except CorruptBatch:
            return None
        return raw.data if plain and len(raw.data) == len(data) else None
