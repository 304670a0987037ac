"""Data keys: made for new segments, wrapped and unwrapped by a key provider, kept in memory only.

A provider may be slow or gone for a while: it may be a service on another machine. The event loop
never waits for it. There, a new segment takes a data key that was wrapped in advance (`fill`), and
a data key that is not in memory is unwrapped later (`catch_up`); until then the call fails with
`KeyUnavailable`, which can be retried. Threads wait. They open logs, so the data keys of all
segments of a log are in memory once it is open.

A data key that cannot be had says nothing about the log. `KeyUnavailable` is an `OSError`, as for a
disk that does not answer: nothing is cut off, quarantined or rebuilt because of it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from errno import EACCES
from hmac import compare_digest
from threading import Lock
from typing import Final

from penstock.ports import KeyProvider, Random
from penstock.storage.sealed_format import (
    DATA_KEY_BYTES,
    SALT_BYTES,
    Aead,
    FileCipher,
    FileHeader,
    WrappedKey,
    derive_key,
    key_check,
)

STOCK: Final = 8
"""Data keys of each topic key that are wrapped in advance."""
KEPT_MAX: Final = 100_000
"""Data keys in memory: a few hundred bytes each."""
WANTED_MAX: Final = 10_000


class KeyUnavailable(OSError):
    """A key cannot be had now, or not any more. The files are as they were."""

    def __init__(self, reason: str) -> None:
        super().__init__(EACCES, reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class KeyDropped(KeyUnavailable):
    """The provider answered that there is no such key: what it has sealed can never be read."""


def lacks_key_only(error: BaseException | None) -> bool:
    """Returns whether a log could not be opened or created only for want of a key: the error, or
    what caused it, is `KeyUnavailable`. The files of the log are as they were."""
    while error is not None:
        if isinstance(error, KeyUnavailable):
            return True
        error = error.__cause__
    return False


class DataKey:
    """A data key and its wrapped form."""

    __slots__ = ("_secret", "wrapped")

    def __init__(self, wrapped: WrappedKey, secret: bytes) -> None:
        self.wrapped = wrapped
        self._secret = secret

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.wrapped.key_name})"

    def cipher(self, salt: bytes, make: Callable[[bytes], Aead]) -> Aead:
        """Returns the cipher of one file."""
        return make(derive_key(self._secret, salt))


class Keyring:
    """The data keys that this process knows. Used by the event loop and by threads."""

    def __init__(
        self,
        provider: KeyProvider | None,
        random: Random | None,
        *,
        make_cipher: Callable[[bytes], Aead] = FileCipher,
    ) -> None:
        self._provider = provider
        self._make_cipher = make_cipher
        self._random = random
        self._kept: OrderedDict[bytes, DataKey] = OrderedDict()
        self._stock: dict[str, deque[DataKey]] = {}
        self._wanted: dict[bytes, WrappedKey] = {}
        self._lock = Lock()
        self._on_wanted: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._kept)} data keys, {self._provider!r})"

    def on_wanted(self, call: Callable[[], None]) -> None:
        """Sets what to call, on the event loop, when `fill` or `catch_up` has something to do."""
        self._on_wanted = call

    @property
    def random(self) -> Random:
        if self._random is None:
            raise KeyUnavailable("nothing can be encrypted here: there is no source of randomness")
        return self._random

    @property
    def has_provider(self) -> bool:
        return self._provider is not None

    @property
    def must_not_wait(self) -> bool:
        """Whether a call of the provider now would make the event loop wait."""
        if self._provider is None or not self._provider.is_slow:
            return False
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    # New segments

    def new_key(self, key_name: str, instead: DataKey | None = None) -> DataKey:
        """Returns a data key for a new segment.

        `instead` is used if the event loop would have to wait, and no data key is in stock. That is
        safe, since each file has its own key, derived from it.
        """
        if self.must_not_wait:
            with self._lock:
                stock = self._stock.setdefault(key_name, deque())
                if stock:
                    instead = stock.popleft()
            self._on_wanted()
            if instead is None or instead.wrapped.key_name != key_name:
                raise KeyUnavailable(
                    f"no data key of {key_name!r} is ready: the key provider has not answered yet; "
                    "this is retried"
                )
            return instead
        return self._make(key_name)

    def _make(self, key_name: str) -> DataKey:
        secret = self.random.bytes(DATA_KEY_BYTES)
        token = self._ask(key_name).wrap(key_name, secret)
        key = DataKey(WrappedKey(key_name, token, key_check(secret)), secret)
        self._keep(key)
        return key

    def fill(self, key_name: str) -> None:
        """Wraps data keys in advance. Blocking; for a thread."""
        while self.lacks(key_name):
            made = self._make(key_name)
            with self._lock:
                self._stock.setdefault(key_name, deque()).append(made)

    def lacks(self, key_name: str) -> bool:
        """Whether `fill` has something to do."""
        provider = self._provider
        if provider is None or not provider.is_slow:
            return False
        return len(self._stock.get(key_name, ())) < STOCK

    @property
    def wants_any(self) -> bool:
        """Whether `catch_up` has something to do."""
        return bool(self._wanted)

    def drain(self) -> None:
        """Forgets the data keys in stock: later ones are wrapped with the newest version of the
        topic key."""
        with self._lock:
            self._stock.clear()

    # Existing files

    def key(self, wrapped: WrappedKey) -> DataKey:
        """Returns the data key of an existing file."""
        with self._lock:
            known = self._kept.get(wrapped.token)
            if known is not None:
                self._kept.move_to_end(wrapped.token)
                return known
        if self.must_not_wait:
            with self._lock:
                if len(self._wanted) < WANTED_MAX:
                    self._wanted[wrapped.token] = wrapped
            self._on_wanted()
            raise KeyUnavailable(
                f"a data key of {wrapped.key_name!r} is being fetched from the key provider; "
                "try again"
            )
        return self._unwrap(wrapped)

    def _unwrap(self, wrapped: WrappedKey) -> DataKey:
        secret = self._ask(wrapped.key_name).unwrap(wrapped.key_name, wrapped.token)
        if len(secret) != DATA_KEY_BYTES or not compare_digest(key_check(secret), wrapped.check):
            raise KeyUnavailable(
                f"the key provider returned another data key than the one that {wrapped.key_name!r}"
                " has wrapped: check the provider's address and keys"
            )
        key = DataKey(wrapped, secret)
        self._keep(key)
        return key

    def catch_up(self) -> list[KeyUnavailable]:
        """Unwraps the data keys that the event loop asked for in vain. Blocking; for a thread."""
        failed = []
        with self._lock:
            wanted, self._wanted = self._wanted, {}
        for wrapped in wanted.values():
            try:
                self._unwrap(wrapped)
            except KeyUnavailable as error:
                failed.append(error)
        return failed

    def check(self, key: DataKey) -> None:
        """Asks the provider for a data key even if it is in memory. Raises `KeyDropped` if the
        topic key is gone. Blocking; for a thread."""
        self._unwrap(key.wrapped)

    def forget(self, key_name: str) -> None:
        """Forgets all data keys of a topic key that was dropped."""
        with self._lock:
            self._stock.pop(key_name, None)
            for token, key in list(self._kept.items()):
                if key.wrapped.key_name == key_name:
                    del self._kept[token]

    def _keep(self, key: DataKey) -> None:
        with self._lock:
            self._kept[key.wrapped.token] = key
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)

    def _ask(self, key_name: str) -> KeyProvider:
        if self._provider is None:
            raise KeyUnavailable(
                f"the key {key_name!r} is needed, and there is no key provider: brokers need the "
                "setting encryption.key.provider"
            )
        return self._provider

    # Files

    def header(self, key: DataKey, page_bytes: int) -> FileHeader:
        """Returns the header of a new file."""
        return FileHeader(key.wrapped, self.random.bytes(SALT_BYTES), page_bytes)

    def cipher(self, key: DataKey, header: FileHeader) -> Aead:
        return key.cipher(header.salt, self._make_cipher)
