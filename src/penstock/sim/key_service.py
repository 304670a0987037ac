"""The key provider of a simulated cluster: it holds the topic keys of encrypted topics.

One service has all keys, and each broker has a port to it. A broker may be cut off from the
service, and calls may be slow. A topic key has versions: data keys are wrapped with the newest one
and unwrapped with any. A key that was dropped can be brought back, as from a backup.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from penstock.storage.data_keys import KeyDropped, KeyUnavailable

KEY_FILE: Final = "file"
KEY_SERVER: Final = "server"
"""What the provider is like: a file, which brokers may read at any time, or another machine."""
_TOKEN_BYTES: Final = 16


class KeyService:
    def __init__(self, kind: str) -> None:
        self.is_slow = kind == KEY_SERVER
        self.delay_s = 0.0
        """How long each call takes."""
        self.away: dict[str, None] = {}
        """The brokers that cannot reach the service."""
        self.dropped: dict[str, None] = {}
        """The topic keys that do not exist any more."""
        self.calls = 0
        self._versions: dict[str, int] = {}
        self._wrapped: dict[bytes, bytes] = {}

    def port(self, broker: str) -> KeyPort:
        return KeyPort(self, broker)

    def rotate(self, key_name: str) -> None:
        """Makes a new version of a topic key."""
        self._versions[key_name] = self._versions.get(key_name, 1) + 1

    def data_key(self, token: bytes) -> bytes:
        """Returns a data key, for checks from outside. Dropped keys are there too."""
        return self._wrapped[token]

    def wrap(self, key_name: str, data_key: bytes) -> bytes:
        version = self._versions.get(key_name, 1).to_bytes(4, "big")
        token = version + blake2b(data_key, key=version, digest_size=_TOKEN_BYTES).digest()
        self._wrapped[token] = data_key
        return token


class KeyPort:
    """The `KeyProvider` port of one broker."""

    def __init__(self, service: KeyService, broker: str) -> None:
        self._service = service
        self._broker = broker
        self._owed_s = 0.0

    @property
    def is_slow(self) -> bool:
        return self._service.is_slow

    def wrap(self, key_name: str, data_key: bytes) -> bytes:
        self._enter(key_name)
        return self._service.wrap(key_name, data_key)

    def unwrap(self, key_name: str, token: bytes) -> bytes:
        self._enter(key_name)
        return self._service.data_key(token)

    def take_waited_s(self) -> float:
        """Returns how long the calls since the last time have taken. The simulator lets work on a
        thread take that much longer."""
        owed_s, self._owed_s = self._owed_s, 0.0
        return owed_s

    def _enter(self, key_name: str) -> None:
        service = self._service
        service.calls += 1
        self._owed_s += service.delay_s
        if self._broker in service.away:
            raise KeyUnavailable(f"the key {key_name!r} cannot be had: the provider is away")
        if key_name in service.dropped:
            raise KeyDropped(f"the key provider has no key {key_name!r}: it was dropped")
