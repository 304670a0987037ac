"""Decisions become facts: committed to the store, then waited for until the image shows them.

Decisions are pure (`penstock.metadata`): an image and a wish give the changes to make, each with
the revision it rests on. A commit that fails rested on an old image: the newer one is waited for
and the decision made again.

Two things are never taken for granted. A refusal counts only if the image was current: the topic
that exists here may have been deleted elsewhere a moment ago. And a commit whose answer was lost
may have been made, or may yet be: the keys are read, and if they hold what was to be written it is
done. If they do not, the decision is made again on what is true now, since the lost one may never
arrive. If it does, it was first and ours fails, which is found out in the same way, or ours was and
has changed what the lost one rests on. Only while it rests on what is still true nothing else is
answered: least of all a refusal, or that there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from penstock.broker.cluster import ClusterView
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.ports import Compare, Delete, MetadataStore, Put
from penstock.stores.errors import OutcomeUnknown, StoreBusy, StoreError, StoreFull
from penstock.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")
Make = Callable[[ClusterImage], Decision[R]]

_ATTEMPTS: Final = 20


class Commits:
    def __init__(self, store: MetadataStore, cluster: ClusterView) -> None:
        self._store = store
        self._cluster = cluster
        self.lease = 0
        """What keys go under that are this broker's own."""

    async def commit(self, make: Make[R]) -> R:
        """Carry a decision out, made as often as it takes; its result."""
        is_current = False
        doubtful: Decision[R] | None = None
        for _ in range(_ATTEMPTS):
            if doubtful is not None and await self._is_in_force(doubtful):
                return doubtful.result
            try:
                decision = make(self._cluster.image)
            except KafkaError as error:
                if not is_current:
                    await self._catch_up()
                    is_current = True
                    continue
                self._require_settled(doubtful, error)
                raise
            try:
                is_done = not decision.changes or await self.attempt(decision)
            except StoreFull as error:
                # The store has answered: the commit was made, or never will be.
                if not error.may_have_happened or not await self._is_in_force(decision):
                    raise
                return decision.result
            except OutcomeUnknown:
                self._require_settled(doubtful)
                if await self._is_in_force(decision):
                    return decision.result
                doubtful = decision
                continue
            if is_done:
                self._require_settled(doubtful)
                return decision.result
        self._require_settled(doubtful)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the cluster changes too fast; try again")

    async def attempt(self, decision: Decision[R]) -> bool:
        """Commit, and wait until the image shows what is true now; False if it was out of date."""
        compares = [Compare(change.key, change.expected_revision) for change in decision.changes]
        compares += [Compare(guard.key, guard.expected_revision) for guard in decision.guards]
        changes = [
            Delete(change.key)
            if change.value is None
            else Put(change.key, change.value, self.lease if change.leased else 0)
            for change in decision.changes
        ]
        try:
            committed = await self._store.commit(compares, changes)
        except StoreBusy as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        await self._cluster.wait_for(committed.revision)
        return committed.succeeded

    def _require_settled(
        self, doubtful: Decision[R] | None, cause: Exception | None = None
    ) -> None:
        if doubtful is not None and not self._is_void(doubtful):
            keys = ", ".join(change.key for change in doubtful.changes)
            raise OutcomeUnknown(f"a change of {keys} may yet be made") from cause

    def _is_void(self, decision: Decision[R]) -> bool:
        """Whether it can no longer be committed: something it rests on has changed."""
        rests_on = [(change.key, change.expected_revision) for change in decision.changes]
        rests_on += [(guard.key, guard.expected_revision) for guard in decision.guards]
        return any(self._cluster.image.revision_of(key) != at for key, at in rests_on)

    async def _catch_up(self) -> None:
        """Wait until the image shows all there is; as far as the store can be asked."""
        try:
            revision = await self._cluster.latest_revision()
        except StoreError:
            return
        await self._cluster.wait_for(revision)

    async def _is_in_force(self, decision: Decision[R]) -> bool:
        """Whether the store holds what was to be written. By whom makes no difference: a decision
        is the state that follows from another, and the same for whoever makes it. One that gives
        something to a broker must say to which, or two would hold it."""
        for change in decision.changes:
            try:
                entry = await self._store.get(change.key)
            except StoreError as error:
                raise OutcomeUnknown(
                    f"a change of {change.key} may have been made or not: {error}"
                ) from error
            if change.value is None:
                if entry is not None:
                    return False
            elif (
                entry is None
                or entry.value != change.value
                or entry.modify_revision == change.expected_revision
            ):
                return False
        await self._catch_up()
        return True
