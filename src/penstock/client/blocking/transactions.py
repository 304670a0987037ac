"""The sync face of a transaction: `penstock.client.producing.transactions` behind a portal.

Its producer may be used by several threads, and the transaction is the producer's: what any of them
sends while the block runs is part of it. They have to be done before the block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from penstock.client.blocking.life import Life
from penstock.client.membership.steps import Identity
from penstock.client.model import OffsetAndMetadata, OpenTransaction, TopicPartition
from penstock.client.producing.transactions import GroupOf
from penstock.client.producing.transactions import Transaction as AsyncTransaction


class _Signed:
    """A sync consumer's word, as it was when the offsets were given."""

    def __init__(self, membership: tuple[str, Identity]) -> None:
        self.membership = membership


class Transaction:
    """`with producer.transaction():` commits at the end of the block; an error in the block aborts,
    and goes on."""

    def __init__(self, life: Life, start: Callable[[], None], core: AsyncTransaction) -> None:
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
        """Commit positions of a consumer's group with the transaction: the next offsets to read.

        `group` is the consumer that read the records, so that one that has lost its partitions is
        refused; or a group's name, for a group that nobody is a member of.
        """
        # A sync consumer is asked here: its answer comes from another loop than the producer's.
        signed = group if isinstance(group, str) else _Signed(group.membership)
        self._life.call(self._async.send_offsets(offsets, signed))

    def hand_over(self) -> OpenTransaction | None:
        """Leave it open, to be ended by somebody else, together with those of other producers.

        The last thing in the block: the producer is finished then. None when nothing was sent."""
        return self._life.call(self._async.hand_over())
