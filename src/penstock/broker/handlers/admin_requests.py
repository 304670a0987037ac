"""Shared by the admin handlers: makes the decisions of one request in as few commits as possible.

The parts of an admin request are independent of each other: an error in one topic does not affect
the others. All parts that can be decided on one image are committed together, so a request for a
hundred topics costs about as much as one for a single topic. The parts of a request must be about
different keys; callers refuse a request that names one twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import slices_of
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.metadata.decisions import Change, Decision, Guard
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import Topic
from penstock.stores.errors import StoreError
from penstock.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")
H = TypeVar("H", bound=Hashable)
Make = Callable[[ClusterImage], Decision[R]]

COMMIT_CHANGES_MAX: Final = 100
"""etcd accepts 128 operations in a transaction."""
COMMIT_BYTES_MAX: Final = 1 << 20
"""etcd accepts requests of 1.5 MiB. A single topic near that size is committed alone."""
MAKES_MAX: Final = 200
"""The broker serves nothing else while it makes these decisions."""

_log = logging.getLogger(__name__)


async def decide_each(
    context: RequestContext, makes: Sequence[Make[R]], *, validate_only: bool
) -> list[R | Exception]:
    """Makes and commits all decisions. Returns the result or the error of each.

    Returns when this broker has applied what was committed: a client that has its answer may
    produce to a new topic at once. With `validate_only` the decisions are made but not committed.
    """
    loads = [makes[start : start + MAKES_MAX] for start in range(0, len(makes), MAKES_MAX)]
    return await decide_loads(context, loads, validate_only=validate_only)


async def decide_loads(
    context: RequestContext, loads: Sequence[Sequence[Make[R]]], *, validate_only: bool
) -> list[R | Exception]:
    """Does the same for decisions in loads. Decisions of different loads are never committed
    together, and the broker serves other requests between two loads."""
    slices = slices_of(context.services.env)
    outcomes: list[R | Exception] = []
    failure: KafkaError | None = None
    for load in loads:
        left = load
        while left and failure is None:
            try:
                made = await _decide(context, left, validate_only=validate_only)
            except (KafkaError, StoreError, TimeoutError) as error:
                # The rest would fail in the same way: another broker is the controller, say.
                failure = _of_the_store(error)
            else:
                outcomes += made
                left = left[len(made) :]
            await slices.give_way()
        if failure is not None:
            outcomes += [failure] * len(left)
    if not validate_only:
        await context.services.replicas.settled()
    return outcomes


async def _decide(
    context: RequestContext, makes: Sequence[Make[R]], *, validate_only: bool
) -> list[R | Exception]:
    """Makes as many decisions as fit into one commit, and commits them unless only validated."""
    if validate_only:
        # The image may change between two portions, as it may change before the client's next
        # request.
        return _as_many_as_fit(makes, context.services.image).result
    return await context.services.controller.decide(partial(_as_many_as_fit, makes))


def _as_many_as_fit(makes: Sequence[Make[R]], image: ClusterImage) -> Decision[list[R | Exception]]:
    """Combines decisions, from the first on, into one that fits into a single commit."""
    changes: list[Change] = []
    guards: list[Guard] = []
    outcomes: list[R | Exception] = []
    size = 0
    for make in makes:
        try:
            decision = make(image)
        except EXPECTED_ERRORS as error:
            outcomes.append(error)
            continue
        size += sum(len(change.value or b"") for change in decision.changes)
        if changes and (size > COMMIT_BYTES_MAX or len(changes) >= COMMIT_CHANGES_MAX):
            break
        changes += decision.changes
        guards += decision.guards
        outcomes.append(decision.result)
    return Decision(tuple(changes), outcomes, tuple(guards))


def charged(
    context: RequestContext,
    make: Make[Topic],
    partitions: Callable[[Topic, ClusterImage], int],
    refused_since: int,
) -> Make[Topic]:
    """Returns a decision that counts its partitions for the client's quota, once.

    A decision is made again if the store has changed meanwhile. One that is refused for another
    reason costs nothing.
    """
    is_charged = False

    def make_charged(image: ClusterImage) -> Decision[Topic]:
        nonlocal is_charged
        decision = make(image)
        if not is_charged:
            count = partitions(decision.result, image)
            context.charge_mutations(count, refused_since=refused_since)
            is_charged = True
        return decision

    return make_charged


def count_all(topic: Topic, _: ClusterImage) -> int:
    """Returns the number of partitions of a topic that is created or deleted."""
    return len(topic.partitions)


def _of_the_store(error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, TimeoutError):
        return KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            "The change timed out, and it is unknown whether it was made: check the current state "
            "before you try again.",
        )
    _log.error("cannot change the cluster's metadata: %s", error)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def error_of(error: Exception) -> tuple[ErrorCode, str]:
    """Returns the error code and the message."""
    return code_of(error), error.message if isinstance(error, KafkaError) else str(error)


def repeated(names: Iterable[H]) -> frozenset[H]:
    """Returns the names that occur more than once."""
    return frozenset(name for name, times in Counter(names).items() if times > 1)
