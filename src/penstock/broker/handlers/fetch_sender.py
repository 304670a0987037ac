"""The sender of a fetch: a consumer, or a follower. What it may read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.context import RequestContext, Services
from penstock.security.acls import AclOperation
from penstock.wire.messages import FetchRequest

_REPLICA_STATE_SINCE: Final = 15


class FollowerId(NamedTuple):
    """The follower that sent the fetch."""

    broker_id: int
    broker_epoch: int


MayRead = Callable[[str], bool]
"""Returns whether the sender may read a topic. It is called at each read, so a fetch that has
waited returns nothing that its sender may no longer read."""


def read_rights(context: RequestContext, follower: FollowerId | None) -> MayRead | None:
    """Returns what decides which topics the request may read; None if there is no authorizer."""
    if not context.has_authorizer:
        return None
    if follower is None:
        return partial(context.may_topic, AclOperation.READ)
    return lambda _: context.may_cluster(AclOperation.CLUSTER_ACTION)


def fetching_follower(request: FetchRequest, version: int) -> FollowerId | None:
    """Returns the follower that sent the request; None for a consumer."""
    if version < _REPLICA_STATE_SINCE:
        return FollowerId(request.replica_id, -1) if request.replica_id >= 0 else None
    state = request.replica_state
    if state is None or state.replica_id < 0:
        return None
    return FollowerId(state.replica_id, state.replica_epoch)


def is_registered(follower: FollowerId, services: Services) -> bool:
    registered = services.image.brokers.get(follower.broker_id)
    return registered is not None and registered.broker_epoch == follower.broker_epoch
