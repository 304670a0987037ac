"""Acknowledgements that wait to be sent to one leader. Pure.

A leader accepts or refuses the acknowledgements of one partition in one request together. If the
lock of a single record is lost, all are refused. So a group that was refused is divided into halves
and sent again, until the record is found whose lock is lost. Every request has at most one group of
each partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from penstock.client.errors import ClientError
from penstock.client.sharing.membership import SharePart
from penstock.wire.messages import ShareAcknowledgeRequest, ShareFetchRequest

GROUP_MAX: Final = 1_000
"""The largest number of acknowledgements of one partition in a request."""

Batch = TypeVar(
    "Batch", ShareAcknowledgeRequest.AcknowledgementBatch, ShareFetchRequest.AcknowledgementBatch
)


class AckType(IntEnum):
    """What happens to a record, as requests say it."""

    GAP = 0
    """There is no record at the offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The lock is extended."""


class Acknowledgement(NamedTuple):
    """What a member says about acquired offsets."""

    part: SharePart
    first: int
    last: int
    kind: AckType
    deadline: float
    """When to give up: the lock is certainly over then."""
    resolve: Callable[[ClientError | None], None]
    """Called once, with the outcome."""


Group = list[Acknowledgement]


class AckQueue:
    """Acknowledgements of one kind of urgency, by partition, in groups."""

    def __init__(self) -> None:
        self._fresh: dict[SharePart, deque[Group]] = {}
        self._again: dict[SharePart, deque[Group]] = {}
        """Groups that are sent again. No others join them, so that halves get smaller."""
        self.size = 0

    def __bool__(self) -> bool:
        return self.size > 0

    @property
    def parts(self) -> set[SharePart]:
        """The partitions with acknowledgements that wait."""
        return {*self._again, *self._fresh}

    def add(self, given: Acknowledgement) -> None:
        groups = self._fresh.setdefault(given.part, deque())
        if not groups or len(groups[-1]) >= GROUP_MAX:
            groups.append([])
        groups[-1].append(given)
        self.size += 1

    def take(self, parts: Iterable[SharePart] | None = None) -> list[Group]:
        """Returns the first group of each of these partitions (None: of all). They are sent
        next."""
        taken: list[Group] = []
        for part in list({**self._again, **self._fresh} if parts is None else parts):
            source = self._again if part in self._again else self._fresh
            groups = source.get(part)
            if not groups:
                continue
            taken.append(groups.popleft())
            self.size -= len(taken[-1])
            if not groups:
                del source[part]
        return taken

    def put_back(self, groups: Iterable[Group]) -> None:
        """Sends these groups again, before all others."""
        for group in groups:
            self._again.setdefault(group[0].part, deque()).appendleft(group)
            self.size += len(group)

    def divide(self, group: Group) -> bool:
        """Sends a refused group again in two halves. Returns False if it cannot be divided."""
        if len(group) < 2:
            return False
        half = len(group) // 2
        self.put_back([group[half:], group[:half]])
        return True

    def drop_late(self, now: float) -> Group:
        """Removes and returns the acknowledgements whose deadline has passed."""
        return self._drop(lambda each: each.deadline <= now)

    def drop_parts(self, is_dropped: Callable[[SharePart], bool]) -> Group:
        """Removes and returns the acknowledgements of some partitions."""
        dropped = {part for part in self.parts if is_dropped(part)}
        return self._drop(lambda each: each.part in dropped) if dropped else []

    def _drop(self, is_dropped: Callable[[Acknowledgement], bool]) -> Group:
        gone: Group = []
        for source in (self._again, self._fresh):
            for part, groups in list(source.items()):
                kept: deque[Group] = deque()
                for group in groups:
                    left = [each for each in group if not is_dropped(each)]
                    if len(left) < len(group):
                        gone += [each for each in group if is_dropped(each)]
                    if left:
                        kept.append(left)
                source[part] = kept
                if not kept:
                    del source[part]
        self.size -= len(gone)
        return gone


def batches(group: Group, make: Callable[[int, int, list[int]], Batch]) -> list[Batch]:
    """Returns the acknowledgements of one partition as requests list them: in order, neighbors in
    one batch, and each offset once.

    The same gap may wait twice, if it was delivered again before it was acknowledged. A leader
    refuses all acknowledgements of a partition if one of them names an offset again.
    """
    made: list[Batch] = []
    for run in _runs(list(_disjoint(sorted(group, key=lambda each: each.first)))):
        kinds = {each.kind for each in run}
        types = (
            [int(run[0].kind)]
            if len(kinds) == 1
            else [int(each.kind) for each in run for _ in range(each.first, each.last + 1)]
        )
        made.append(make(run[0].first, run[-1].last, types))
    return made


def _disjoint(ordered: Iterable[Acknowledgement]) -> Iterator[Acknowledgement]:
    """Leaves out what earlier acknowledgements have named."""
    named = -1
    for each in ordered:
        if each.last > named:
            yield each._replace(first=max(each.first, named + 1))
            named = each.last


def _runs(ordered: Sequence[Acknowledgement]) -> Iterator[Group]:
    """Divides acknowledgements into runs of neighbors.

    A batch has one type for all, or one for each offset. Runs of several types therefore have
    single offsets only: a list of types must not grow with a long gap.
    """
    run: Group = []
    for each in ordered:
        joins = bool(run) and each.first == run[-1].last + 1
        if joins and any(other.kind != each.kind for other in run[-1:]):
            joins = all(other.first == other.last for other in (*run, each))
        elif joins and each.first != each.last:
            joins = all(other.kind == each.kind for other in run)
        if run and not joins:
            yield run
            run = []
        run.append(each)
    if run:
        yield run
