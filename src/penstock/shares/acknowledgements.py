"""The acknowledgements of one request for one partition, checked and in a simple form.

Batches are in ascending order and do not overlap. A batch has one type for all of its offsets, or
one for each. Neighboring offsets with the same type become one `Run`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

from penstock.shares.events import AckBatch
from penstock.shares.states import AckType
from penstock.wire.errors import ErrorCode, KafkaError

_TYPES: Final = {int(each): each for each in AckType}


class Run(NamedTuple):
    first: int
    last: int
    type: AckType


def runs_of(batches: Iterable[AckBatch], *, is_renew: bool) -> list[Run]:
    """Returns the runs. Raises `KafkaError` (INVALID_REQUEST) if the request is malformed."""
    runs: list[Run] = []
    next_offset = 0
    for batch in batches:
        if batch.first < next_offset or batch.last < batch.first:
            raise _invalid(
                f"offsets {batch.first} to {batch.last} are not in ascending order: sort the "
                "batches, without overlaps"
            )
        types = [_type_of(number, is_renew) for number in batch.types]
        count = batch.last - batch.first + 1
        if len(types) == 1:
            runs.append(Run(batch.first, batch.last, types[0]))
        elif len(types) == count:
            runs += _runs_of_offsets(batch.first, types)
        else:
            raise _invalid(
                f"{len(types)} types for {count} offsets: send one type, or one for each offset"
            )
        next_offset = batch.last + 1
    return runs


def _runs_of_offsets(first: int, types: list[AckType]) -> Iterable[Run]:
    for kind, equal in groupby(types):
        last = first + sum(1 for _ in equal) - 1
        yield Run(first, last, kind)
        first = last + 1


def _type_of(number: int, is_renew: bool) -> AckType:
    found = _TYPES.get(number)
    if found is None:
        raise _invalid(f"{number} is not a type of acknowledgement: use 0 to 4")
    if found is AckType.RENEW and not is_renew:
        raise _invalid("type 4 (renew) needs is_renew_ack in the request")
    return found


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
