"""The broker's view of the cluster: an image kept up to date by the store's watch.

One task owns the image. Whoever changes the cluster commits to the store and then waits here until
the change has come round: so a broker reads its own writes, and sees them the way all others do.
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
        """Be told of every change from now on, in order."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """Read everything, at the start and when the watch has lost its place."""
        entries, revision = await self._store.range(PREFIX)
        if revision < self.image.revision:
            return
        changed = self.image.load(
            ((entry.key, entry.value, entry.modify_revision) for entry in entries), revision
        )
        self._tell(changed)

    async def follow(self) -> None:
        """Keep the image up to date until cancelled."""
        while True:
            try:
                await self._watch()
            except StoreError as error:
                if not error.retriable:
                    raise
                _log.warning("the cluster's changes cannot be read at the moment: %s", error)
                await asyncio.sleep(_WATCH_PATIENCE_S)

    async def _watch(self) -> None:
        try:
            async for events in self._store.watch(PREFIX, self.image.revision + 1):
                shown = 0
                for event in events:
                    if shown >= _EVENTS_PER_TURN and event.revision != self.image.revision:
                        # Others have their turn; what was committed together is shown together.
                        await asyncio.sleep(0)
                        shown = 0
                    shown += 1
                    self._tell(self.image.apply(event.key, event.value, event.revision))
        except RevisionNotKept:
            await self.load()

    async def latest_revision(self) -> int:
        """What the store has come to, whatever the image shows."""
        _, revision = await self._store.range(CLUSTER_KEY)
        return revision

    async def catch_up(self) -> None:
        """Return when the image shows all that was true when this was called."""
        await self.wait_for(await self.latest_revision())

    async def catch_up_shared(self) -> None:
        """As `catch_up`, but callers share the store's answers: one question is under way at most.

        A question that was put before this call may miss what the caller looks for, so a caller
        waits for the next one.
        """
        needed = self._rounds_begun + 1
        async with self._catching_up:
            if self._rounds_begun < needed:
                self._rounds_begun += 1
                await self.catch_up()

    async def wait_for(self, revision: int, timeout_s: float = 30.0) -> None:
        """Return when the image shows everything up to `revision`.

        Where other clusters share the store a revision may be theirs, and our watch silent about
        it: then everything is read.
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
