"""Parked requests: they wait for the high watermark, for data, or for their deadline.

Kafka calls this purgatory. A parked request is a future with callbacks registered at its partitions
and a timer. No task runs while it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.partition.follower import Follower
from penstock.partition.leadership import Leadership
from penstock.wire.errors import ErrorCode

T = TypeVar("T")

_keys = count(1)
ROLES_S = 0.005
"""How long a parked fetch is delayed after a partition changed its role. Partitions change roles
one after another, and one answer can then cover several of them."""
OWN_DISK_S = 30.0
"""How long a produce request with acks=1 waits for the leader's flush. The request's own timeout
does not apply: Kafka ignores it for acks=1, so clients may send any value."""
COMMITS_S = 0.05
"""How long a follower's parked fetch may delay the news of a higher high watermark."""


def next_key() -> int:
    """Returns a listener key that is unique in this process."""
    return next(_keys)


class CommitWait(Generic[T]):
    """A produce request that waits for its partitions.

    With acks=all it waits until every partition has committed its batch. With `own_disk` (acks=1)
    it waits until the leader has flushed. In both cases it ends when the time is up. `finish` gets
    one outcome per partition, in order: None for success, otherwise the error code.
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
    """A `CommitWait` for batches that are appended one at a time, with pauses in between.

    Each batch must be registered in the same event loop iteration in which it is appended.
    Otherwise this broker might lose the leadership, truncate the batch and become leader again in
    the meantime, and another batch with the same offsets would be mistaken for this one. The
    timeout starts at `close`.
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
        self._left = 1  # The wait cannot end before `close`.

    def add(self, hosted: HostedPartition, end_offset: int) -> None:
        number = len(self._outcomes)
        self._outcomes.append(ErrorCode.REQUEST_TIMED_OUT)
        self._left += 1
        tell = self._teller(number)
        register = hosted.when_on_own_disk if self._own_disk else hosted.when_committed
        if register(end_offset, tell):
            tell(None)

    def close(self) -> None:
        """Starts the timeout. Call it when all batches are appended."""
        self._left -= 1
        if self._left == 0:
            self._end()
        else:
            timeout_s = OWN_DISK_S if self._own_disk else self._timeout_s
            self._timer = self.future.get_loop().call_later(timeout_s, self._end)


class DataWait(Generic[T]):
    """A fetch request that waits because there is too little data for an answer.

    It ends when enough bytes are committed, when this broker's role in a partition changes, or when
    the time is up. `finish` then reads what is there. Consumers may read from a follower too: what
    is below the high watermark that the follower knows counts as committed.

    With `appends` it is a follower's fetch, which ends when enough bytes are written. It ends only
    after the current event loop iteration, so that all appends of that iteration go into one
    answer: each answer costs the follower a request and a flush. A new high watermark also ends the
    wait, but after a delay (`COMMITS_S`).

    With `stable` it is a fetch with isolation level read_committed. Data above the last stable
    offset, in or after an open transaction, does not count until the last stable offset moves.
    """

    __slots__ = (
        "_appends",
        "_bytes_due",
        "_finish",
        "_is_due",
        "_key",
        "_roles",
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
        self._roles: dict[HostedPartition, Leadership | Follower | None] = {}
        self._seen: dict[HostedPartition, int] = {}
        self._stable: dict[HostedPartition, tuple[int, bool]] | None = {} if stable else None
        self._bytes_due = bytes_due
        self.add(partitions)
        self._timer = loop.call_later(timeout_s, self._end)
        self.future.add_done_callback(self._forget)

    def add(self, partitions: Iterable[HostedPartition]) -> None:
        """Adds partitions to the wait. The fetch has just read what they contain now."""
        roles, seen, stable = self._roles, self._seen, self._stable
        appends, key = self._appends, self._key
        for hosted in partitions:
            roles[hosted] = self._role(hosted)
            seen[hosted] = self._bytes(hosted)
            if stable is not None:
                stable[hosted] = _stability(hosted)
            if appends:
                hosted.listen_appends(key, self._on_append)
            else:
                hosted.listen_commits(key, self._on_commit)

    def _bytes(self, hosted: HostedPartition) -> int:
        if self._appends:
            # Followers delete what the leader deletes, so a new log start offset also ends the
            # wait.
            return hosted.appended_bytes + hosted.log.log_start_offset
        return hosted.committed_bytes

    def _count(self, hosted: HostedPartition) -> int:
        """Counts new bytes of the partition. Returns how many bytes are still missing."""
        if self._stable is not None:
            stable, was_held_back = self._stable[hosted]
            if hosted.last_stable_offset == stable:
                return self._bytes_due
            self._stable[hosted] = _stability(hosted)
            if was_held_back:
                # A transaction has ended. The reader waited for that, so the size does not matter.
                return 0
        now = self._bytes(hosted)
        self._bytes_due -= now - self._seen[hosted]
        self._seen[hosted] = now
        return self._bytes_due

    def _on_commit(self, hosted: HostedPartition) -> None:
        if not self._keeps_role(hosted) or self._count(hosted) <= 0:
            self._end()

    def _on_append(self, hosted: HostedPartition) -> None:
        if self._is_due:
            return
        if not self._keeps_role(hosted):
            self.end_within(ROLES_S)
        elif self._count(hosted) <= 0:
            self._is_due = True
            self.future.get_loop().call_soon(self._end)
        else:
            self.end_within(COMMITS_S)

    def _role(self, hosted: HostedPartition) -> Leadership | Follower | None:
        """Returns the role in which this broker can answer: followers fetch from leaders only."""
        return hosted.leadership if self._appends else hosted.leadership or hosted.follower

    def _keeps_role(self, hosted: HostedPartition) -> bool:
        """Whether this broker has a role, and no earlier one has ended since the wait began."""
        role, before = self._role(hosted), self._roles[hosted]
        return role is not None and (before is None or before is role)

    def end_within(self, seconds: float) -> None:
        """Ends the wait at most this many seconds from now, so that more data can join the
        answer."""
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
        except Exception as error:  # noqa: BLE001 - raised in the waiting request
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
                hosted.unlisten_commits(self._key)


def end_with_news_of_roles(wait: DataWait[T], replicas: Replicas) -> Callable[[], None]:
    """Ends the wait soon after any partition of this broker changes its role or leader epoch.

    Returns a function that stops this, for a wait that no longer depends on roles.
    """
    key = next_key()
    forget = partial(replicas.role_changes.unlisten, key)
    replicas.role_changes.listen(key, lambda _: wait.end_within(ROLES_S))
    wait.future.add_done_callback(lambda _: forget())
    return forget


def _stability(hosted: HostedPartition) -> tuple[int, bool]:
    """Returns the last stable offset, and whether an open transaction holds it back."""
    stable = hosted.last_stable_offset
    return stable, stable < hosted.high_watermark
