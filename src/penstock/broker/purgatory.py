"""Requests that wait: for the high watermark, for data, or for their time to run out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from penstock.broker.hosted import HostedPartition
from penstock.broker.replicas import Replicas
from penstock.wire.errors import ErrorCode

T = TypeVar("T")

_keys = count(1)
ROLES_S = 0.005
"""How long partitions that take up their roles one after the other are waited for."""
OWN_DISK_S = 30.0
"""How long a produce with acks=1 waits for the leader's flush. Its own timeout is not meant for
that: Kafka does not look at it, and clients may send anything."""
COMMITS_S = 0.05
"""How late a follower at rest may hear of what is committed."""


def next_key() -> int:
    """A key that no other listener has."""
    return next(_keys)


class CommitWait(Generic[T]):
    """A produce with acks=all: done when every partition has committed, or time is up.

    With `own_disk` it is one with acks=1: done when the leader has flushed. `finish` is told what
    each partition came to: None if done, else its code.
    """

    __slots__ = ("_finish", "_left", "_outcomes", "_timer", "future")

    def __init__(
        self,
        waits: Sequence[tuple[HostedPartition, int]],
        timeout_s: float,
        finish: Callable[[Sequence[ErrorCode | None]], T],
        *,
        own_disk: bool = False,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = loop.create_future()
        self._finish = finish
        self._outcomes: list[ErrorCode | None] = [ErrorCode.REQUEST_TIMED_OUT] * len(waits)
        self._left = len(waits)
        self._timer = loop.call_later(OWN_DISK_S if own_disk else timeout_s, self._end)
        for number, (hosted, end_offset) in enumerate(waits):
            tell = self._teller(number)
            register = hosted.when_on_own_disk if own_disk else hosted.when_committed
            if register(end_offset, tell):
                tell(None)

    def _teller(self, number: int) -> Callable[[ErrorCode | None], None]:
        def tell(code: ErrorCode | None) -> None:
            self._outcomes[number] = code
            self._left -= 1
            if self._left == 0:
                self._end()

        return tell

    def _end(self) -> None:
        self._timer.cancel()
        if not self.future.done():
            self.future.set_result(self._finish(self._outcomes))


class GradualCommitWait(CommitWait[T]):
    """A `CommitWait` for batches that are appended one after the other, with pauses in between.

    Each is registered in the turn of the loop in which it is appended. Later would be wrong: the
    broker might have lost the partition, cut the batch off and led the partition again, and another
    batch with the same offsets would pass for this one. The time runs from `close` on.
    """

    __slots__ = ("_own_disk", "_timeout_s")

    def __init__(
        self,
        timeout_s: float,
        finish: Callable[[Sequence[ErrorCode | None]], T],
        *,
        own_disk: bool = False,
    ) -> None:
        self._own_disk = own_disk
        self._timeout_s = timeout_s
        super().__init__((), timeout_s, finish, own_disk=own_disk)
        self._timer.cancel()
        self._left = 1  # `close` is waited for.

    def add(self, hosted: HostedPartition, end_offset: int) -> None:
        number = len(self._outcomes)
        self._outcomes.append(ErrorCode.REQUEST_TIMED_OUT)
        self._left += 1
        tell = self._teller(number)
        register = hosted.when_on_own_disk if self._own_disk else hosted.when_committed
        if register(end_offset, tell):
            tell(None)

    def close(self) -> None:
        """All batches are appended."""
        self._left -= 1
        if self._left == 0:
            self._end()
        else:
            timeout_s = OWN_DISK_S if self._own_disk else self._timeout_s
            self._timer = self.future.get_loop().call_later(timeout_s, self._end)


class DataWait(Generic[T]):
    """A fetch with too little to answer yet: done when enough bytes were committed, when a
    partition changed hands, or when time is up. `finish` reads what there is by then.

    With `appends` it is a follower's: done when enough was written. What else is written in the
    same turn of the loop comes along: each answer costs the follower a request, and a flush. That
    more is committed is worth an answer too, but no hurry.

    With `stable` it reads committed transactions only: what is written in one that is open, or
    behind it, is nothing to it until the last stable offset moves.
    """

    __slots__ = (
        "_appends",
        "_bytes_due",
        "_finish",
        "_is_due",
        "_key",
        "_seen",
        "_soon",
        "_stable",
        "_timer",
        "future",
    )

    def __init__(
        self,
        partitions: Iterable[HostedPartition],
        bytes_due: int,
        timeout_s: float,
        finish: Callable[[], T],
        *,
        appends: bool = False,
        stable: bool = False,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = loop.create_future()
        self._finish = finish
        self._key = next_key()
        self._appends = appends
        self._is_due = False
        self._soon: asyncio.TimerHandle | None = None
        self._seen: dict[HostedPartition, int] = {}
        self._stable: dict[HostedPartition, tuple[int, bool]] | None = {} if stable else None
        self._bytes_due = bytes_due
        self.add(partitions)
        self._timer = loop.call_later(timeout_s, self._end)
        self.future.add_done_callback(self._forget)

    def add(self, partitions: Iterable[HostedPartition]) -> None:
        """Wait for these as well. What they have now is what the fetch has just read."""
        seen, stable, appends, key = self._seen, self._stable, self._appends, self._key
        for hosted in partitions:
            seen[hosted] = self._bytes(hosted)
            if stable is not None:
                stable[hosted] = _stability(hosted)
            if appends:
                hosted.listen_appends(key, self._on_append)
            else:
                hosted.listen(key, self._on_commit)

    def _bytes(self, hosted: HostedPartition) -> int:
        if self._appends:
            # Followers delete as the leader does: a log start that moved is news as well.
            return hosted.appended_bytes + hosted.log.log_start_offset
        return hosted.committed_bytes

    def _count(self, hosted: HostedPartition) -> int:
        """Note what is new; how much is still due."""
        if self._stable is not None:
            stable, was_held_back = self._stable[hosted]
            if hosted.last_stable_offset == stable:
                return self._bytes_due
            self._stable[hosted] = _stability(hosted)
            if was_held_back:
                # Whatever its size, it has been waited for: a transaction has ended.
                return 0
        now = self._bytes(hosted)
        self._bytes_due -= now - self._seen[hosted]
        self._seen[hosted] = now
        return self._bytes_due

    def _on_commit(self, hosted: HostedPartition) -> None:
        if hosted.leadership is None or self._count(hosted) <= 0:
            self._end()

    def _on_append(self, hosted: HostedPartition) -> None:
        if self._is_due:
            return
        if hosted.leadership is not None and self._count(hosted) <= 0:
            self._is_due = True
            self.future.get_loop().call_soon(self._end)
        else:
            self.end_within(ROLES_S if hosted.leadership is None else COMMITS_S)

    def end_within(self, seconds: float) -> None:
        """There is something to tell: answer, but a little later, when more may have come."""
        loop = self.future.get_loop()
        if self._soon is not None:
            if self._soon.when() <= loop.time() + seconds:
                return
            self._soon.cancel()
        self._soon = loop.call_later(seconds, self._end)

    def _end(self) -> None:
        if self.future.done():
            return
        try:
            self.future.set_result(self._finish())
        except Exception as error:  # noqa: BLE001 - the answer's business
            self.future.set_exception(error)

    def _forget(self, _: object) -> None:
        self._timer.cancel()
        if self._soon is not None:
            self._soon.cancel()
        self._unlisten(self._seen)

    def _unlisten(self, partitions: Iterable[HostedPartition]) -> None:
        for hosted in partitions:
            if self._appends:
                hosted.unlisten_appends(self._key)
            else:
                hosted.unlisten(self._key)


def end_with_news_of_roles(wait: DataWait[T], replicas: Replicas) -> Callable[[], None]:
    """End the wait soon after a partition of this broker is led or followed in another term.
    Call what this returns if the wait is no longer about that."""
    key = next_key()
    forget = partial(replicas.unlisten_roles, key)
    replicas.listen_roles(key, lambda _: wait.end_within(ROLES_S))
    wait.future.add_done_callback(lambda _: forget())
    return forget


def _stability(hosted: HostedPartition) -> tuple[int, bool]:
    """The last stable offset, and whether an open transaction holds it back."""
    stable = hosted.last_stable_offset
    return stable, stable < hosted.high_watermark
