"""Which partition of `__transaction_state` a transactional id lives on, and ids that share one.

Transactions can be ended together only where one batch can hold them: on one partition. Kafka's
hash decides the partition, and we leave it as it is, so the ids must be chosen to agree: the name
is followed by a number that brings it where its anchor is. Whoever computes it with the same
partition count finds the same id again, as a retry must.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from penstock.wire.java import partition_of

SALT_MARK: Final = "~"


def partition_for_transactional_id(transactional_id: str, partition_count: int) -> int:
    return partition_of(transactional_id, partition_count)


def id_beside(anchor: str, name: str, partition_count: int) -> str:
    """A transactional id that begins with `name` and lives where `anchor` lives.

    The first salt that fits, counted from 0: some `partition_count` tries, so work it out once.
    """
    wanted = partition_of(anchor, partition_count)
    return next(
        candidate
        for salt in count()
        if partition_of(candidate := f"{name}{SALT_MARK}{salt}", partition_count) == wanted
    )
