"""Commits decisions to the metadata store, and waits until the image shows them.

Decisions are pure (`penstock.metadata`): they are computed from an image and a request, and consist
of changes, each with the revision that its key must have. If the commit fails, the image was out of
date. Then this module waits for the newer image and makes the decision again.

Two cases need care:

- A refusal counts only if the image was current. For example, a topic that exists in this image may
  just have been deleted through another broker. The same holds for a decision that changes nothing:
  what a client deletes may just have been created through another broker.
- A commit whose response was lost is doubtful: it may have been made, or may still be made. So its
  keys are read. If they have the new values, the commit was made. If not, the decision is made
  again on the current image, because the doubtful commit may never arrive. If it arrives before the
  new commit, the new one fails, and the next read of the keys shows why. If it arrives later, it
  fails, because the new commit has changed a key that it compares. As long as no key that it
  compares has changed, it can still be made, and the caller gets `OutcomeUnknown` and nothing else:
  neither a refusal nor the result of a decision that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from penstock.broker.control.cluster_view import ClusterView
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
        """The lease to which this broker's own keys are attached."""

    async def commit(self, make: Make[R], *, is_repeated: bool = False) -> R:
        """Makes a decision and commits it, again if the image was out of date. Returns its result.

        If the caller makes the decision every so often (`is_repeated`), one that changes nothing
        needs no current image. Raises `OutcomeUnknown` if the decision may or may not have been
        carried out."""
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
            if not (decision.changes or is_current or is_repeated):
                await self._cluster.catch_up()
                is_current = True
                continue
            try:
                is_done = not decision.changes or await self.attempt(decision)
            except StoreFull as error:
                # The store has answered, so the commit was made already or never will be.
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
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            "other metadata changes kept conflicting with this one; try again",
        )

    async def attempt(self, decision: Decision[R]) -> bool:
        """Commits a decision once, and waits until the image shows the store's new revision.

        Returns False if the decision was based on an outdated image, and so changed nothing."""
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
            raise OutcomeUnknown(
                f"the outcome of the change to {keys} is unknown, because the store may still "
                "apply it: check the current state before you try again"
            ) from cause

    def _is_void(self, decision: Decision[R]) -> bool:
        """Returns whether the decision can no longer be committed: a key it compares changed."""
        rests_on = [(change.key, change.expected_revision) for change in decision.changes]
        rests_on += [(guard.key, guard.expected_revision) for guard in decision.guards]
        return any(self._cluster.image.revision_of(key) != at for key, at in rests_on)

    async def _catch_up(self) -> None:
        """Waits until the image is current, or returns at once if the store cannot be read."""
        try:
            revision = await self._cluster.latest_revision()
        except StoreError:
            return
        await self._cluster.wait_for(revision)

    async def _is_in_force(self, decision: Decision[R]) -> bool:
        """Returns whether the store has the values that the decision writes.

        Which broker wrote them makes no difference: a decision is the state that follows from
        another state, and is the same on every broker. A decision that gives something to one
        broker must therefore name that broker, or two brokers would believe that they have it."""
        for change in decision.changes:
            try:
                entry = await self._store.get(change.key)
            except StoreError as error:
                raise OutcomeUnknown(
                    f"it is unknown whether the change to {change.key} was made ({error}): check "
                    "the current state before you try again"
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
