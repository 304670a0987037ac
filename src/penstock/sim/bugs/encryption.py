"""Planted bugs of encryption at rest: what is written in plain text, and keys that are missing.

See `replication`.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from penstock.broker.partitions import replicas
from penstock.broker.partitions.topic_keys import TopicKeys
from penstock.sim.bugs.planting import Plant, bug, patch
from penstock.storage import encrypted_disk, encrypted_file, log_state, recovery
from penstock.storage.data_keys import DataKey, KeyDropped, Keyring, KeyUnavailable
from penstock.storage.encrypted_disk import EncryptedDisk
from penstock.storage.encrypted_file import Nonces
from penstock.storage.files import LOG, SNAPSHOT
from penstock.storage.sealed_format import DATA_KEY_BYTES, WrappedKey

ENCRYPTION_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, ENCRYPTION_BUGS)


@_bug("index-in-plain-text")
def _plain_indexes(patches: ExitStack) -> None:
    """Only segments and snapshots are encrypted."""
    _leave_out(patches, lambda kind: kind not in (LOG, SNAPSHOT))


@_bug("snapshot-in-plain-text")
def _plain_snapshots(patches: ExitStack) -> None:
    """Producer snapshots are not encrypted."""
    _leave_out(patches, lambda kind: kind == SNAPSHOT)


def _leave_out(patches: ExitStack, is_plain: Any) -> None:
    kind_of = encrypted_disk.kind_of

    def some(name: str) -> tuple[str, int] | None:
        found = kind_of(name)
        return None if found is None or is_plain(found[0]) else found

    patch(patches, encrypted_disk, "kind_of", some)


@_bug("encryption-forgotten-after-a-restart")
def _forgets_encryption(patches: ExitStack) -> None:
    """A log that is opened again writes its new files in plain text."""

    def forget(disk: Any, directory: str, topic_id: str, partition: int, key_name: str) -> None:
        encrypted_disk.protect(disk, directory, topic_id, partition, "")

    patch(patches, recovery, "protect", forget)
    patch(patches, log_state, "protect", forget)


@_bug("nonces-repeat-after-a-restart")
def _counts_from_zero(patches: ExitStack) -> None:
    """Nonces are only counted, from zero whenever a file is opened."""

    def count(self: Nonces, start: int) -> bytes:
        self._count = 0 if self._count == encrypted_file._COUNT_MAX else self._count + 1
        return self._count.to_bytes(12, "big")

    patch(patches, Nonces, "next", count)


@_bug("missing-key-taken-for-damage")
def _guesses_keys(patches: ExitStack) -> None:
    """If the provider does not answer, a log is opened with another key: nothing in it is valid."""
    find, load = Keyring.key, EncryptedDisk.load_keys

    def any_key(self: Keyring, wrapped: WrappedKey) -> DataKey:
        try:
            return find(self, wrapped)
        except KeyUnavailable:
            return DataKey(wrapped, self.random.bytes(DATA_KEY_BYTES))

    def load_some(self: EncryptedDisk, directory: str) -> None:
        try:
            load(self, directory)
        except KeyUnavailable:
            return

    patch(patches, Keyring, "key", any_key)
    patch(patches, EncryptedDisk, "load_keys", load_some)


@_bug("missing-key-revokes-the-proof")
def _doubts_disks(patches: ExitStack) -> None:
    """A broker that cannot open a log for want of a key treats that as a failure of its disk."""
    patch(patches, replicas, "lacks_key_only", lambda error: False)


@_bug("outage-taken-for-a-dropped-key")
def _gives_up_early(patches: ExitStack) -> None:
    """A broker takes the logs of a topic key offline when the provider does not answer."""
    check = Keyring.check

    def strict(self: Keyring, key: DataKey) -> None:
        try:
            check(self, key)
        except KeyUnavailable as error:
            raise KeyDropped(str(error)) from error

    patch(patches, Keyring, "check", strict)


@_bug("dropped-key-still-used")
def _keeps_serving(patches: ExitStack) -> None:
    """A broker that learns that a topic key was dropped goes on with the data keys in memory."""

    def tell_only(self: TopicKeys, key_name: str, logs: Any, error: KeyDropped) -> None:
        self._tell(key_name, error)

    patch(patches, TopicKeys, "_give_up", tell_only)
