"""Shared by requests about single partitions: decides the partitions of a topic together.

A key in the store has a whole topic, or a chunk of a large one. The partitions of a key are decided
together, in portions if there are many, because the broker serves nothing else while it makes a
decision. Topics are decided and committed together as far as they fit.

A failure that concerns the whole request (no controller, or the store is not reachable) is reported
for each of its partitions. Without a controller the whole response reports it, too: clients check
there whether to ask another broker, or to ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Slices
from penstock.broker.handlers.admin_requests import decide_loads
from penstock.metadata.decisions import Decision
from penstock.metadata.edits import PARTITIONS_MAX, Load, Slice, slice_of
from penstock.metadata.image import ClusterImage
from penstock.wire.errors import ErrorCode, KafkaError

A = TypeVar("A")
_NO_KEY: Final = -1


class _About(Protocol):
    @property
    def topic(self) -> str: ...


W = TypeVar("W", bound=_About)


class Portion(NamedTuple, Generic[W]):
    """Partitions of one topic, all in one key of the store. Each is what the client wants of it."""

    topic: str
    wanted: Sequence[W]
    part: Slice | None
    """The partitions in that key; None if there is no such topic or partition."""


async def decide_by_topic(
    context: RequestContext,
    wanted: Mapping[str, Sequence[W]],
    index_of: Callable[[W], int],
    make: Callable[[Sequence[W], ClusterImage], Decision[tuple[A, ...]]],
) -> list[tuple[Sequence[W], tuple[A, ...] | Exception]]:
    """Returns groups of partitions, each with their answers or with one error for all of them."""
    slices = context.slices()
    portions: list[Portion[W]] = []
    for topic, those in wanted.items():
        portions += await _portions(context.services.image, topic, those, index_of, slices)
        await slices.give_way()
    groups = _groups(portions)
    makes = [[partial(make, group)] for group in groups]
    outcomes = await decide_loads(context, makes, validate_only=False)
    if outcomes and all(_has_no_controller(each) for each in outcomes):
        raise KafkaError(ErrorCode.NOT_CONTROLLER, str(outcomes[0]))
    return list(zip(groups, outcomes, strict=True))


async def _portions(
    image: ClusterImage,
    name: str,
    wanted: Sequence[W],
    index_of: Callable[[W], int],
    slices: Slices,
) -> list[Portion[W]]:
    """Splits what is wanted of one topic by key, and then by number."""
    topic = image.topics.get(name)
    parts: dict[int, Slice] = {}
    by_key: dict[int, list[W]] = {}
    for each in wanted:
        index = index_of(each)
        key = _NO_KEY
        if topic is not None and 0 <= index < len(topic.partitions):
            part = slice_of(topic, index)
            key = part.start
            parts[key] = part
        by_key.setdefault(key, []).append(each)
        await slices.give_way()
    return [
        Portion(name, those[start : start + PARTITIONS_MAX], parts.get(key))
        for key, those in by_key.items()
        for start in range(0, len(those), PARTITIONS_MAX)
    ]


def _groups(portions: Sequence[Portion[W]]) -> list[list[W]]:
    """Joins portions that fit into one decision.

    A group has a topic only once: two portions may be in the same key when they are decided.
    """
    groups: list[list[W]] = []
    topics: set[str] = set()
    load = Load()
    for each in portions:
        is_full = load.is_full or (groups and len(groups[-1]) >= PARTITIONS_MAX)
        if not groups or is_full or each.topic in topics:
            groups.append([])
            topics, load = set(), Load()
        groups[-1] += each.wanted
        topics.add(each.topic)
        if each.part is not None:
            load.add(each.part)
    return groups


def _has_no_controller(outcome: object) -> bool:
    return isinstance(outcome, KafkaError) and outcome.code == ErrorCode.NOT_CONTROLLER
