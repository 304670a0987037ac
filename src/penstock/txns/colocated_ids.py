"""Finds transactional ids that share a partition of `__transaction_state`.

Transactions can be ended together only if one batch can hold them, so they must be on one
partition. The partition is given by Kafka's hash, which must not change, so the ids are chosen to
match: a number is appended to a name, such that the hash gives the partition of the anchor id. The
same inputs with the same partition count always give the same id, as a retry needs.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from penstock.wire.java import partition_of

SALT_MARK: Final = "~"


def id_beside(anchor: str, name: str, partition_count: int) -> str:
    """Returns a transactional id that begins with `name` and is on the partition of `anchor`.

    It uses the first salt that fits, from 0 on. That takes about `partition_count` tries, so
    callers should keep the result.
    """
    wanted = partition_of(anchor, partition_count)
    return next(
        candidate
        for salt in count()
        if partition_of(candidate := f"{name}{SALT_MARK}{salt}", partition_count) == wanted
    )
