"""One watch on one etcd member.

etcd sends every change of the range from a revision on, in order, and never splits a revision; or
it reports the first revision that is still kept. Any other failure ends the stream, and the caller
begins another one where this one stopped, so there are no gaps and no repetitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aetcd import rpc
from grpc.aio import EOF as _END

from penstock.stores.errors import RevisionNotKept, StoreRefused
from penstock.stores.etcd_failures import access_advice
from penstock.stores.etcd_login import Metadata
from penstock.stores.etcd_members import Members, verdict_of

_DENIED: Final = ("permission denied", "invalid auth token", "revision of auth store is old")


class WatchLost(Exception):
    """The stream ended unexpectedly. Begin another one."""


class WatchDenied(Exception):
    """etcd did not accept the token of the watch, or its user lacks a right. `error` says what to
    do about the latter."""

    def __init__(self, error: StoreRefused) -> None:
        super().__init__(str(error))
        self.error = error


class WatchStream:
    """A watch call on the member that was current when it was created."""

    def __init__(self, members: Members, metadata: Metadata, open_timeout_s: float) -> None:
        self._members = members
        self._metadata = metadata
        self._member = members.current
        self._open_timeout_s = open_timeout_s
        self._call: Any = None
        self._next_revision = 0

    async def open(self, start: bytes, end: bytes, from_revision: int) -> None:
        """Waits until etcd has accepted the watch."""
        self._next_revision = from_revision
        self._call = self._member.watch.Watch(metadata=self._metadata)
        self._member.watch_calls.add(self._call)
        create = rpc.WatchCreateRequest(key=start, range_end=end, start_revision=from_revision)
        try:
            async with asyncio.timeout(self._open_timeout_s):
                await self._guarded(self._call.write(rpc.WatchRequest(create_request=create)))
                await self._response()
        except TimeoutError as error:
            self._members.move_on(self._member)
            raise WatchLost(f"{self._member.endpoint} did not accept the watch in time") from error

    async def read(self) -> Sequence[Any]:
        """Returns the next events: all events of one or more revisions."""
        events: Sequence[Any] = (await self._response()).events
        if events:
            self._next_revision = events[-1].kv.mod_revision + 1
        return events

    def close(self) -> None:
        if self._call is not None:
            self._member.watch_calls.discard(self._call)
            self._call.cancel()

    async def _response(self) -> Any:
        response = await self._guarded(self._call.read())
        if response is not _END and not response.canceled:
            return response
        if response is not _END:
            if response.compact_revision:
                raise RevisionNotKept(self._next_revision, response.compact_revision)
            if any(reason in response.cancel_reason for reason in _DENIED):
                advice = access_advice(self._member.address)
                raise WatchDenied(
                    StoreRefused(f"etcd at {self._member.endpoint} refused the watch; {advice}")
                )
        self._members.move_on(self._member)
        raise WatchLost(f"{self._member.endpoint} ended the watch")

    async def _guarded(self, reading: Any) -> Any:
        try:
            return await reading
        except asyncio.CancelledError:
            # grpc.aio raises this both if our task is cancelled and if another caller cancelled the
            # call.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._members.require_open()
            raise WatchLost(
                f"the watch on {self._member.endpoint} was cancelled to use another member"
            ) from None
        except rpc.AioRpcError as error:
            self._members.require_open()
            verdict = verdict_of(error, self._member)
            if verdict.token_invalid and isinstance(verdict.error, StoreRefused):
                raise WatchDenied(verdict.error) from error
            self._members.move_on(self._member)
            if not verdict.try_others:
                raise verdict.error from error
            raise WatchLost(str(verdict.error)) from error
