"""Checks encrypted topics from outside: what is on the disks, and how it was encrypted.

E25  Every file of an encrypted topic that may contain records, or is derived from them, is
     encrypted.
E26  No value that was sent to an encrypted topic is in any file in plain text, unless a topic that
     is not encrypted has it.
E27  No nonce is used twice with one key for different bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from penstock.sim.checkers.logs import Violation
from penstock.sim.checkers.shadow_log import Peek
from penstock.sim.crash.sealed_logs import WatchedCipher
from penstock.sim.disk.disk import SimDisk
from penstock.sim.history import Entry, Send
from penstock.sim.key_service import KeyService
from penstock.storage.data_keys import DataKey, Keyring
from penstock.storage.encrypted_disk import kind_of
from penstock.storage.sealed_format import (
    COPY_BYTES,
    FRAME_HEAD_BYTES,
    HEADER_BYTES,
    MAGIC,
    Aead,
    FileCipher,
    FileHeader,
    decode_header,
    derive_key,
    find_frames,
)

_LOGS: Final = "/logs/"
_VALUE: Final = re.compile(rb"[a-z][a-z\d-]*(?:/\d+)?\.\d+")
_VALUE_BYTES_MIN: Final = 6
"""Shorter values may be in encrypted bytes by chance."""
_NONCE_BYTES: Final = 12
_SECTOR_BYTES: Final = 512
_CRC_BYTES: Final = 4


class SealedNonces:
    """Watches all ciphers of a run."""

    def __init__(self) -> None:
        self.repeated: list[str] = []
        self.frames = 0
        self._seen: dict[tuple[bytes, bytes], bytes] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watches while the context lasts."""
        make = Keyring.cipher

        def watched(_: Keyring, key: DataKey, header: FileHeader) -> Aead:
            return key.cipher(header.salt, lambda secret: WatchedCipher(self, secret))

        type.__setattr__(Keyring, "cipher", watched)
        try:
            yield
        finally:
            type.__setattr__(Keyring, "cipher", make)

    def note(self, key: bytes, nonce: bytes, data: bytes) -> None:
        self.frames += 1
        if self._seen.setdefault((key, nonce), data) != data:
            self.repeated.append(nonce.hex())

    def check(self) -> Iterator[Violation]:
        if self.repeated:
            text = f"{len(self.repeated)} nonces were used twice: {self.repeated[0]}, ..."
            yield Violation("E27", "disks", text)


@dataclass(slots=True)
class _Plain:
    """What is known of the plaintext of one encrypted file."""

    header: bytes
    cipher: FileCipher
    page_bytes: int
    data: bytearray = field(default_factory=bytearray)
    end: int = HEADER_BYTES
    """Up to where the file was read."""
    last: tuple[int, bytes] = (0, b"")
    """The last frame: where it begins, and its bytes."""


class SealedPeek:
    """Reads the plaintext of files on one disk, without a disk call. The tags are not checked."""

    def __init__(self, disk: SimDisk, keys: KeyService) -> None:
        self._peek: Peek = disk.peek
        self._keys = keys
        self._known: dict[str, _Plain] = {}

    def peek(self, path: str, position: int, size: int) -> bytes:
        # Either copy of the header is enough: a power loss may leave zeros in place of the other.
        if all(self._peek(path, at, len(MAGIC)) != MAGIC for at in (0, COPY_BYTES)):
            return self._peek(path, position, size)
        plain = self._known.get(path)
        header = self._peek(path, 0, HEADER_BYTES)
        if plain is None or plain.header != header:
            plain = self._known[path] = self._opened(header)
        elif self._peek(path, plain.last[0], len(plain.last[1])) != plain.last[1]:
            # It was truncated. What cannot be read now, because it is damaged, stays as it was.
            plain.end, plain.last = HEADER_BYTES, (0, b"")
        self._read_on(path, plain)
        return bytes(plain.data[position : position + size])

    def _opened(self, data: bytes) -> _Plain:
        header = decode_header(data)
        assert header is not None, "an open log has a header"
        secret = self._keys.data_key(header.wrapped.token)
        return _Plain(data, FileCipher(derive_key(secret, header.salt)), header.page_bytes)

    def _read_on(self, path: str, plain: _Plain) -> None:
        """Reads the frames after those that are known."""
        while True:
            start = plain.end
            page_end = start + plain.page_bytes - (start - HEADER_BYTES) % plain.page_bytes
            data = self._peek(path, start, page_end - start)
            for frame in find_frames(data, start, plain.page_bytes):
                at = frame.start - start
                head = data[at : at + FRAME_HEAD_BYTES]
                nonce = head[-_NONCE_BYTES - _CRC_BYTES : -_CRC_BYTES]
                sealed = data[at + FRAME_HEAD_BYTES :][: frame.length]
                plain.data += bytes(max(0, frame.end - len(plain.data)))
                plain.data[frame.position : frame.end] = plain.cipher.guess(nonce, sealed)
                plain.last = frame.start, data[at : at + frame.file_end - frame.start]
                plain.end = frame.file_end
            if start + len(data) < page_end:
                return
            plain.end = page_end


def check_sealed(
    disks: Iterable[SimDisk], encrypted: Collection[str], entries: Iterable[Entry]
) -> Iterator[Violation]:
    """Checks the disks at the end of a run. `encrypted` are the topics with encryption."""
    if not encrypted:
        return
    secrets: set[bytes] = set()
    others: set[bytes] = set()
    for entry in entries:
        if isinstance(entry, Send):
            is_secret = entry.partition_name.rpartition("-")[0] in encrypted
            (secrets if is_secret else others).add(entry.value.encode())
    secrets = {value for value in secrets - others if len(value) >= _VALUE_BYTES_MIN}
    for number, disk in enumerate(disks):
        yield from _check_disk(f"broker-{number}", disk.files(), encrypted, secrets)


def _is_sealed(data: bytes) -> bool:
    """Returns whether this is an encrypted file. A power loss may have left zeros in place of its
    beginning."""
    return MAGIC in data[:HEADER_BYTES] or not data[:_SECTOR_BYTES].strip(b"\0")


def _check_disk(
    name: str, files: Mapping[str, bytes], encrypted: Collection[str], secrets: Collection[bytes]
) -> Iterator[Violation]:
    for path, data in files.items():
        directory, _, file_name = path.partition(_LOGS)[2].rpartition("/")
        topic = directory.rpartition("-")[0]
        is_due = topic in encrypted and kind_of(file_name) is not None
        if is_due and data and not _is_sealed(data):
            text = f"{path} is not encrypted: {len(data)} bytes, {data[:40]!r}..."
            yield Violation("E25", name, text)
        found = next((each for each in _VALUE.findall(data) if each in secrets), None)
        if found is not None:
            yield Violation("E26", name, f"{path} has {found.decode()} in plain text")
