"""Keeps the broker's image of the cluster up to date, with a watch on the metadata store.

One task owns the image. Code that changes the cluster commits to the store, and then waits here
until the watch has delivered the change. So a broker reads its own writes, and sees every change in
the same way as all other brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.metadata.image import Changed, ClusterImage
from penstock.metadata.keys import CLUSTER_KEY, PREFIX
from penstock.ports import MetadataStore
from penstock.stores.errors import RevisionNotKept, StoreError

Listener = Callable[[Changed], None]

_WATCH_PATIENCE_S: Final = 0.5
_EVENTS_PER_TURN: Final = 20
_log = logging.getLogger(__name__)


class ClusterView:
    def __init__(self, store: MetadataStore) -> None:
        self.image = ClusterImage()
        self._store = store
        self._listeners: list[Listener] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._catching_up = asyncio.Lock()
        self._rounds_begun = 0

    def listen(self, listener: Listener) -> None:
        """Calls `listener` with every change from now on, in order."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """Reads all metadata: at startup, and when the watch cannot continue where it stopped."""
        entries, revision = await self._store.range(PREFIX)
        if revision < self.image.revision:
            return
        changed = self.image.load(
            ((entry.key, entry.value, entry.modify_revision) for entry in entries), revision
        )
        self._tell(changed)

    async def follow(self) -> None:
        """Keeps the image up to date until cancelled."""
        while True:
            try:
                await self._watch()
            except StoreError as error:
                if not error.retriable:
                    raise
                _log.warning("cannot read metadata changes from the store, retrying: %s", error)
                await asyncio.sleep(_WATCH_PATIENCE_S)

    async def _watch(self) -> None:
        try:
            async for events in self._store.watch(PREFIX, self.image.revision + 1):
                shown = 0
                for event in events:
                    if shown >= _EVENTS_PER_TURN and event.revision != self.image.revision:
                        # Lets other tasks run, but never between two changes of one commit.
                        await asyncio.sleep(0)
                        shown = 0
                    shown += 1
                    self._tell(self.image.apply(event.key, event.value, event.revision))
        except RevisionNotKept:
            await self.load()

    async def latest_revision(self) -> int:
        """Returns the current revision of the store, which the image may not have reached yet."""
        _, revision = await self._store.range(CLUSTER_KEY)
        return revision

    async def catch_up(self) -> None:
        """Waits until the image shows everything that was committed before this call."""
        await self.wait_for(await self.latest_revision())

    async def catch_up_shared(self) -> None:
        """Does the same as `catch_up`, but callers share the reads: at most one is in progress.

        A read that began before this call may miss what the caller looks for, so the caller waits
        for the next one.
        """
        needed = self._rounds_begun + 1
        async with self._catching_up:
            if self._rounds_begun < needed:
                self._rounds_begun += 1
                await self.catch_up()

    async def wait_for(self, revision: int, timeout_s: float = 30.0) -> None:
        """Waits until the image shows everything up to `revision`.

        If other clusters share the store, the revision may belong to one of them, and the watch of
        this cluster never reports it. So after a while all metadata is read.
        """
        if self.image.revision >= revision:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, reached))
        async with asyncio.timeout(timeout_s):
            await asyncio.wait([reached], timeout=_WATCH_PATIENCE_S)
            if not reached.done():
                await self.load()
            await reached

    def _tell(self, changed: Changed) -> None:
        if changed:
            for listener in self._listeners:
                listener(changed)
        revision = self.image.revision
        due = [reached for wanted, reached in self._waiting if wanted <= revision]
        self._waiting = [entry for entry in self._waiting if entry[0] > revision]
        for reached in due:
            if not reached.done():
                reached.set_result(None)
