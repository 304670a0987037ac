"""What requests about single partitions share: a topic is one key, so its partitions are decided
together, and topics are committed together as far as they fit.

A failure that is not a partition's own (no controller, a store that is away) is told for each of
its partitions. Where there is no controller the whole answer says so, too: clients look there to
learn that they should ask another broker, or again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from penstock.broker.context import RequestContext
from penstock.broker.handlers.admin_requests import decide_each
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.wire.errors import ErrorCode, KafkaError

A = TypeVar("A")
W = TypeVar("W")


async def decide_by_topic(
    context: RequestContext,
    wanted: Mapping[str, Sequence[W]],
    make: Callable[[Sequence[W], ClusterImage], Decision[tuple[A, ...]]],
) -> dict[str, tuple[A, ...] | Exception]:
    """For each topic the answers of its partitions, or what became of all of them."""
    makes = [partial(make, parts) for parts in wanted.values()]
    outcomes = await decide_each(context, makes, validate_only=False)
    if outcomes and all(_has_no_controller(each) for each in outcomes):
        raise KafkaError(ErrorCode.NOT_CONTROLLER, str(outcomes[0]))
    return dict(zip(wanted, outcomes, strict=True))


def _has_no_controller(outcome: object) -> bool:
    return isinstance(outcome, KafkaError) and outcome.code == ErrorCode.NOT_CONTROLLER
