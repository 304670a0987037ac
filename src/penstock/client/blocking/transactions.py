"""The sync version of a producer's transaction: runs the async one through a portal.

Several threads may use the producer, and the transaction belongs to the producer: whatever any of
them sends while the block runs is part of it. They must be done before the block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from penstock.client.blocking.lifecycle import Lifecycle
from penstock.client.membership.steps import Identity
from penstock.client.model import OffsetAndMetadata, OpenTransaction
from penstock.client.producing.transactions import GroupOf
from penstock.client.producing.transactions import Transaction as AsyncTransaction
from penstock.topic_partition import TopicPartition


class _Signed:
    """A sync consumer's membership at the time when the offsets were given."""

    def __init__(self, membership: tuple[str, Identity]) -> None:
        self.membership = membership


class Transaction:
    """A transaction as a context manager: `with producer.transaction():`.

    Leaving the block commits. An error in the block aborts the transaction and is raised again.
    """

    def __init__(self, life: Lifecycle, start: Callable[[], None], core: AsyncTransaction) -> None:
        self._life = life
        self._start = start
        self._async = core

    def __enter__(self) -> Self:
        self._start()
        self._life.call(self._async.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._life.call(self._async.__aexit__(kind, error, traceback))

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupOf | str
    ) -> None:
        """Commits offsets of a consumer group, the next offsets to read, with the transaction.

        `group` is the consumer that read the records; the commit is refused if that consumer has
        lost its partitions. It may also be the name of a group that has no members.
        """
        # A sync consumer has its own event loop, so its membership is read on this thread.
        signed = group if isinstance(group, str) else _Signed(group.membership)
        self._life.call(self._async.send_offsets(offsets, signed))

    def hand_over(self) -> OpenTransaction | None:
        """Leaves the transaction open, to be ended together with those of other producers.

        This must be the last call in the block: the producer cannot be used afterwards. Returns
        None if nothing was sent.
        """
        return self._life.call(self._async.hand_over())
