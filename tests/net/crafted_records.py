"""Encrypted TLS records that Python's `ssl` cannot send: key updates, and renegotiations.

The keys come from the secrets that the context of the client logs.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

KEY_UPDATE: Final = bytes([24, 0, 0, 1, 0])
KEY_UPDATE_REQUESTED: Final = bytes([24, 0, 0, 1, 1])
CLIENT_HELLO: Final = bytes([1, 0, 0, 41, 3, 3, *range(32), 0, 0, 2, 0xC0, 0x2C, 1, 0])
_HANDSHAKE: Final = 22
_APPLICATION_DATA: Final = 23


def logged(path: Path, label: str) -> bytes:
    """Returns the newest secret with this label."""
    found = [line.split() for line in path.read_text().splitlines() if line.startswith(label)]
    return bytes.fromhex(found[-1][2])


class Tls13Records:
    """The records of a client with TLS_AES_256_GCM_SHA384, from the first after the handshake."""

    def __init__(self, key_log: Path) -> None:
        self._use(logged(key_log, "CLIENT_TRAFFIC_SECRET_0"))

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(_expand(secret, b"key", 32))
        self._iv = _expand(secret, b"iv", 12)
        self._sequence = 0

    def record(self, content: bytes, kind: int = _APPLICATION_DATA) -> bytes:
        header = struct.pack(">BHH", _APPLICATION_DATA, 0x0303, len(content) + 17)
        number = self._sequence.to_bytes(12)
        nonce = bytes(a ^ b for a, b in zip(self._iv, number, strict=True))
        self._sequence += 1
        return header + self._cipher.encrypt(nonce, content + bytes([kind]), header)

    def key_updates(self, count: int, message: bytes = KEY_UPDATE) -> bytes:
        return b"".join(self._key_updates(count, message))

    def _key_updates(self, count: int, message: bytes) -> Iterator[bytes]:
        for _ in range(count):
            yield self.record(message, _HANDSHAKE)
            self._use(_expand(self._secret, b"traffic upd", 48))


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    name = b"tls13 " + label
    info = struct.pack(">HB", size, len(name)) + name + b"\0"
    return HKDFExpand(SHA384(), size, info).derive(secret)


class Tls12Records:
    """The records of a client with ECDHE-ECDSA-AES256-GCM-SHA384, from the first after the
    handshake. `randoms` are those of the server and of the client."""

    def __init__(self, key_log: Path, randoms: bytes) -> None:
        seed = b"key expansion" + randoms
        block = _p_hash(logged(key_log, "CLIENT_RANDOM"), seed, 2 * 32 + 2 * 4)
        self._cipher = AESGCM(block[:32])
        self._salt = block[64:68]
        self._sequence = 1  # the end of the handshake is 0

    def record(self, content: bytes, kind: int = _HANDSHAKE) -> bytes:
        number = self._sequence.to_bytes(8)
        self._sequence += 1
        extra = number + struct.pack(">BHH", kind, 0x0303, len(content))
        sealed = number + self._cipher.encrypt(self._salt + number, content, extra)
        return struct.pack(">BHH", kind, 0x0303, len(sealed)) + sealed


def _p_hash(secret: bytes, seed: bytes, size: int) -> bytes:
    found, round_seed = b"", seed
    while len(found) < size:
        round_seed = hmac.digest(secret, round_seed, hashlib.sha384)
        found += hmac.digest(secret, round_seed + seed, hashlib.sha384)
    return found[:size]
