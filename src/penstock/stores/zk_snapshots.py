"""Snapshots of a ZooKeeper store, and the removal of what they make superfluous.

Any handle may make one, in the background after a commit of its own. It writes the parts first and
then names the snapshot in the head, on condition that the head is unchanged. After that, log
entries up to the snapshot can go, except the last `revisions_kept`, which watches may still need.

Several handles may do this at once, and each may die in the middle. So what is removed is decided
under a condition too: the mark of another snapshot is removed only while the head is unchanged, and
a snapshot is named only while its mark exists. Whatever a dead handle has left is removed with the
next snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, ZookeeperError

from penstock.ports import Executor, Random
from penstock.stores.errors import StoreError
from penstock.stores.zk_format import (
    HEAD,
    LOG,
    SNAPSHOTS,
    Head,
    encode_snapshot,
    log_path,
    part_path,
)
from penstock.stores.zk_log import ZooKeeperLog
from penstock.stores.zk_session import Lost, Rejected, ZooKeeperConfig, ZooKeeperSession

_DELETES_AT_ONCE: Final = 100
_ID_BYTES: Final = 8
_ATTEMPTS: Final = 20
"""How often an attempt is repeated because the head has changed."""
_ATTEMPTS_PER_SNAPSHOT: Final = 10
_log = logging.getLogger(__name__)


class Snapshots:
    def __init__(
        self,
        session: ZooKeeperSession,
        log: ZooKeeperLog,
        random: Random,
        executor: Executor,
        config: ZooKeeperConfig,
    ) -> None:
        self._session = session
        self._log = log
        self._random = random
        self._executor = executor
        self._config = config
        self._put_off_to = 0
        """After a failure, the revision from which on another attempt is made."""

    @property
    def is_due(self) -> bool:
        replica, since = self._log.replica, self._log.head.snapshot_revision
        return replica.revision >= self._put_off_to and (
            replica.revision - since >= self._config.snapshot_revisions
            or replica.log_bytes >= self._config.snapshot_bytes
        )

    async def keep_up(self) -> None:
        """Makes a snapshot and removes what is superfluous. If that fails, the next one does it.

        The next attempt is made some revisions later. Otherwise every commit would write all
        metadata again, for example while ZooKeeper is too slow for it."""
        try:
            await self.make(self._config.revisions_kept)
        except (Lost, Rejected, ZookeeperError, StoreError) as error:
            revisions = max(self._config.snapshot_revisions // _ATTEMPTS_PER_SNAPSHOT, 1)
            self._put_off_to = self._log.replica.revision + revisions
            _log.warning("a snapshot of the metadata in ZooKeeper was not made: %s", error)
            # Its parts would stay until the next one that succeeds.
            with suppress(Lost, Rejected, ZookeeperError, StoreError):
                await self._remove_snapshots()

    async def make(self, revisions_kept: int) -> None:
        replica = self._log.replica
        entries, revision = replica.entries(), replica.revision
        name = self._random.bytes(_ID_BYTES).hex()
        parts = await self._executor.run(partial(encode_snapshot, entries))
        await self._write(name, parts)
        for _ in range(_ATTEMPTS):
            deadline_s = self._session.deadline()
            async with self._log.turn(deadline_s):
                head, version = self._log.head, self._log.version
                if head.snapshot_revision >= revision:
                    return
                after = replace(
                    head,
                    first=max(head.first, revision - revisions_kept + 1),
                    snapshot=name,
                    snapshot_revision=revision,
                    snapshot_parts=len(parts),
                )
                try:
                    await self._publish(after, version)
                    break
                except Rejected:
                    await self._log.refresh(deadline_s)
        else:
            return
        await self._log.refresh(self._session.deadline())
        await self._remove_log(after)
        await self._remove_snapshots()

    async def _write(self, name: str, parts: Sequence[bytes]) -> None:
        contents = [(f"{SNAPSHOTS}/{name}", b"")]
        contents += [(part_path(name, number), part) for number, part in enumerate(parts)]
        for path, data in contents:
            await self._session.once(self._create(path, data), self._session.deadline())

    def _create(self, path: str, data: bytes) -> Callable[[KazooClient], Any]:
        return lambda client: client.create_async(self._session.path(path), data)

    async def _publish(self, head: Head, version: int) -> None:
        def build(transaction: Any, path: Callable[[str], str]) -> None:
            transaction.check(path(f"{SNAPSHOTS}/{head.snapshot}"), 0)
            transaction.set_data(path(HEAD), head.encode(), version)

        await self._session.transact(build, self._session.deadline())

    async def _remove_log(self, head: Head) -> None:
        oldest_kept = log_path(head.first).rpartition("/")[2]
        names = await self._children(LOG)
        await self._delete([f"{LOG}/{name}" for name in names if name < oldest_kept])

    async def _remove_snapshots(self) -> None:
        names = await self._children(SNAPSHOTS)
        gone = {name for name in names if "-" not in name and await self._remove_mark(name)}
        kept = {name for name in names if "-" not in name} - gone
        # A part without its mark can be in no snapshot that is named later.
        parts = [name for name in names if "-" in name and name.partition("-")[0] not in kept]
        await self._delete([f"{SNAPSHOTS}/{name}" for name in parts])

    async def _remove_mark(self, name: str) -> bool:
        """Removes the mark of a snapshot unless the head names it."""
        for _ in range(_ATTEMPTS):
            head, version = self._log.head, self._log.version
            if head.snapshot == name:
                return False
            build = _delete_mark(f"{SNAPSHOTS}/{name}", version)
            try:
                await self._session.transact(build, self._session.deadline())
            except Rejected as rejected:
                if isinstance(rejected.error, NoNodeError):
                    return True
                await self._log.refresh(self._session.deadline())
            else:
                return True
        return False

    async def _children(self, path: str) -> list[str]:
        def ask(client: KazooClient) -> Any:
            return client.get_children_async(self._session.path(path))

        names: list[str] = await self._session.repeat(ask, self._session.deadline())
        return names

    async def _delete(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _DELETES_AT_ONCE):
            for path in paths[start : start + _DELETES_AT_ONCE]:

                def ask(client: KazooClient, path: str = path) -> Any:
                    return client.delete_async(self._session.path(path))

                try:
                    await self._session.repeat(ask, self._session.deadline())
                except NoNodeError:
                    continue


def _delete_mark(mark: str, version: int) -> Callable[[Any, Callable[[str], str]], None]:
    def build(transaction: Any, path: Callable[[str], str]) -> None:
        transaction.check(path(HEAD), version)
        transaction.delete(path(mark))

    return build
