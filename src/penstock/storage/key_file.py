"""A key provider: topic keys in a file on this machine. `penstock key` makes and changes the file.

The file is JSON. It has any number of keys by name, and each has one or more versions. The newest
version wraps new data keys; all versions unwrap. Only its owner may read the file: it is refused if
others may. A change is noticed at the next call, without a restart.

The file is replaced as a whole, so a crash leaves the old one or the new one. Dropping a key does
not overwrite the blocks of the old file; copies and backups of the file keep the key.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.ports import Random
from penstock.storage.data_keys import KeyDropped, KeyUnavailable

KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FORMAT: Final = 1
_SECRET_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_FILE_BYTES_MAX: Final = 16 << 20


class KeyFileInvalid(KeyUnavailable):
    """The key file cannot be used. The message says what to do."""


@dataclass(frozen=True, slots=True)
class KeyVersion:
    number: int
    created_ms: int
    secret: bytes = field(repr=False)


@dataclass(slots=True)
class KeySet:
    """The keys of a file: their versions by name, oldest first, and the names that were dropped."""

    keys: dict[str, list[KeyVersion]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """When a key was dropped, by name. A name is not used again: a new key could not read the old
    data, and the error would be misleading."""

    def add(self, name: str, secret: bytes, now_ms: int) -> KeyVersion:
        """Makes a key, or a new version of it."""
        versions = self.keys.setdefault(name, [])
        version = KeyVersion(versions[-1].number + 1 if versions else 1, now_ms, secret)
        versions.append(version)
        return version


def read_keys(path: str) -> KeySet:
    """Reads a key file. Raises `KeyFileInvalid`."""
    try:
        with open(path, "rb") as file:
            _check_mode(path, os.fstat(file.fileno()).st_mode)
            data = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise KeyFileInvalid(
            f"the key file {path} does not exist: restore it, or create it with `penstock key new`"
        ) from error
    except KeyUnavailable:
        raise
    except OSError as error:
        raise KeyFileInvalid(f"the key file {path} cannot be read: {error.strerror}") from error
    try:
        return _decode(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError):
        # Without the cause: it may quote a part of the file.
        raise KeyFileInvalid(
            f"{path} is not a key file of `penstock key`, or is damaged: restore it from a backup"
        ) from None


def _check_mode(path: str, mode: int) -> None:
    if stat.S_IMODE(mode) & 0o077:
        raise KeyFileInvalid(
            f"other users can read the key file {path}: run chmod 600 {shlex.quote(path)}"
        )


def _decode(value: dict[str, object]) -> KeySet:
    if value["penstock_keys"] != _FORMAT:
        raise ValueError("unknown format")
    found = KeySet()
    keys, dropped = value["keys"], value["dropped"]
    if not isinstance(keys, dict) or not isinstance(dropped, dict):
        raise TypeError("not an object")
    for name, versions in keys.items():
        found.keys[name] = [
            KeyVersion(
                int(each["version"]),
                int(each["created_ms"]),
                base64.b64decode(each["secret"], validate=True),
            )
            for each in versions
        ]
        if not versions or any(len(each.secret) != _SECRET_BYTES for each in found.keys[name]):
            raise ValueError("a version without a key")
    found.dropped = {name: int(at_ms) for name, at_ms in dropped.items()}
    return found


def write_keys(path: str, keys: KeySet) -> None:
    """Replaces a key file durably. Only its owner may read it."""
    value = {
        "penstock_keys": _FORMAT,
        "keys": {
            name: [
                {
                    "version": each.number,
                    "created_ms": each.created_ms,
                    "secret": base64.b64encode(each.secret).decode(),
                }
                for each in versions
            ]
            for name, versions in keys.keys.items()
        },
        "dropped": keys.dropped,
    }
    temporary = f"{path}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(fd)
    os.replace(temporary, path)
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class KeyFile:
    """The key provider of `encryption.key.provider=file:PATH`."""

    is_slow = False

    def __init__(self, path: str, random: Random) -> None:
        self._path = path
        self._random = random
        self._seen: tuple[int, int, int] | None = None
        self._keys = KeySet()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path})"

    def wrap(self, key_name: str, data_key: bytes) -> bytes:
        version = self._versions(key_name)[-1]
        nonce = self._random.bytes(_NONCE_BYTES)
        number = version.number.to_bytes(4, "big")
        sealed = AESGCM(version.secret).encrypt(nonce, data_key, number + key_name.encode())
        return number + nonce + sealed

    def unwrap(self, key_name: str, token: bytes) -> bytes:
        versions = self._versions(key_name)
        number = int.from_bytes(token[:4], "big")
        version = next((each for each in versions if each.number == number), None)
        if version is None:
            raise KeyDropped(
                f"version {number} of the key {key_name!r} is not in {self._path}: what it has "
                "encrypted cannot be read without it"
            )
        nonce, sealed = token[4 : 4 + _NONCE_BYTES], token[4 + _NONCE_BYTES :]
        try:
            return AESGCM(version.secret).decrypt(nonce, sealed, token[:4] + key_name.encode())
        except (InvalidTag, ValueError):
            raise KeyUnavailable(
                f"the key {key_name!r} in {self._path} is not the one that has wrapped this data "
                "key: use the key file of this cluster"
            ) from None

    def _versions(self, key_name: str) -> list[KeyVersion]:
        self._refresh()
        versions = self._keys.keys.get(key_name)
        if versions is not None:
            return versions
        if key_name in self._keys.dropped:
            raise KeyDropped(
                f"the key {key_name!r} was dropped: what it has encrypted can never be read again; "
                "delete the topic"
            )
        raise KeyDropped(
            f"the key {key_name!r} is not in {self._path}: restore the file, or create the key "
            f"with `penstock key new {key_name}`"
        )

    def _refresh(self) -> None:
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise KeyUnavailable(
                f"the key file {self._path} cannot be read: {error.strerror}"
            ) from error
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            _check_mode(self._path, status.st_mode)
            self._keys = read_keys(self._path)
            self._seen = seen
