"""Shared by requests about single partitions: decides all partitions of a topic together.

A topic is one key in the store, so its partitions are decided together. Topics are committed
together as far as they fit.

A failure that concerns the whole request (no controller, or the store is not reachable) is reported
for each of its partitions. Without a controller the whole response reports it, too: clients check
there whether to ask another broker, or to ask again.
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
    """Returns for each topic the answers of its partitions, or one error for all of them."""
    makes = [partial(make, parts) for parts in wanted.values()]
    outcomes = await decide_each(context, makes, validate_only=False)
    if outcomes and all(_has_no_controller(each) for each in outcomes):
        raise KafkaError(ErrorCode.NOT_CONTROLLER, str(outcomes[0]))
    return dict(zip(wanted, outcomes, strict=True))


def _has_no_controller(outcome: object) -> bool:
    return isinstance(outcome, KafkaError) and outcome.code == ErrorCode.NOT_CONTROLLER
