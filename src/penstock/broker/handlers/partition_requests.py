"""Shared by requests about single partitions: decides the partitions of a topic together.

A key in the store has a whole topic, or a chunk of a large one. The partitions of a key are decided
together, in portions if there are many, because the broker serves nothing else while it makes a
decision. Topics are committed together as far as they fit.

A failure that concerns the whole request (no controller, or the store is not reachable) is reported
for each of its partitions. Without a controller the whole response reports it, too: clients check
there whether to ask another broker, or to ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Slices
from penstock.broker.handlers.admin_requests import MAKES_MAX, decide_loads
from penstock.metadata.decisions import Decision
from penstock.metadata.edits import PARTITIONS_MAX, slice_of
from penstock.metadata.image import ClusterImage
from penstock.wire.errors import ErrorCode, KafkaError

A = TypeVar("A")
W = TypeVar("W")

_UNKNOWN_KEY: Final = -1


class Portion(NamedTuple, Generic[W]):
    """Partitions of one topic, all in one key of the store. Each is what the client wants of it."""

    topic: str
    wanted: Sequence[W]


async def decide_by_topic(
    context: RequestContext,
    wanted: Mapping[str, Sequence[W]],
    index_of: Callable[[W], int],
    make: Callable[[Sequence[W], ClusterImage], Decision[tuple[A, ...]]],
) -> list[tuple[Portion[W], tuple[A, ...] | Exception]]:
    """Returns the portions, topic by topic, each with the answers of its partitions or one error
    for all of them."""
    slices = context.slices()
    portions: list[Portion[W]] = []
    for topic, those in wanted.items():
        portions += await _portions(context.services.image, topic, those, index_of, slices)
        await slices.give()
    loads = [[partial(make, each.wanted) for each in load] for load in _loads(portions)]
    outcomes = await decide_loads(context, loads, validate_only=False)
    if outcomes and all(_has_no_controller(each) for each in outcomes):
        raise KafkaError(ErrorCode.NOT_CONTROLLER, str(outcomes[0]))
    return list(zip(portions, outcomes, strict=True))


async def _portions(
    image: ClusterImage,
    name: str,
    wanted: Sequence[W],
    index_of: Callable[[W], int],
    slices: Slices,
) -> list[Portion[W]]:
    """Splits what is wanted of one topic by key, and then by number."""
    topic = image.topics.get(name)
    by_key: dict[int, list[W]] = {}
    for each in wanted:
        index = index_of(each)
        key = _UNKNOWN_KEY
        if topic is not None and 0 <= index < len(topic.partitions):
            key = slice_of(topic, index).start
        by_key.setdefault(key, []).append(each)
        await slices.give()
    return [
        Portion(name, those[start : start + PARTITIONS_MAX])
        for those in by_key.values()
        for start in range(0, len(those), PARTITIONS_MAX)
    ]


def _loads(portions: Sequence[Portion[W]]) -> list[list[Portion[W]]]:
    """Arranges portions in loads that are committed together.

    A load has a topic only once: two decisions about one key must not be made on the same image,
    and nobody knows which partitions share a key by then.
    """
    loads: list[list[Portion[W]]] = []
    topics: set[str] = set()
    size = 0
    for each in portions:
        size += len(each.wanted)
        is_full = size > PARTITIONS_MAX or len(topics) >= MAKES_MAX
        if not loads or is_full or each.topic in topics:
            loads.append([])
            topics, size = set(), len(each.wanted)
        loads[-1].append(each)
        topics.add(each.topic)
    return loads


def _has_no_controller(outcome: object) -> bool:
    return isinstance(outcome, KafkaError) and outcome.code == ErrorCode.NOT_CONTROLLER
