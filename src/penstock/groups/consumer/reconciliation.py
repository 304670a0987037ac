"""Leads a member to its target assignment: it revokes before it assigns.

A member first gives up the partitions that are not in its target (UNREVOKED). Only when it has
confirmed that, by no longer listing them, does it move to the epoch of the target and get new
partitions. It gets those that no other member owns, and the rest with later heartbeats, as the
others give them up (UNRELEASED). So no partition is ever owned by two members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace

from penstock.groups.consumer.records import Current, MemberState, TopicIdPartition
from penstock.wire.errors import ErrorCode, KafkaError

Owned = Set[TopicIdPartition] | None
"""The partitions that a member says it owns. None if it did not say."""


def reconcile(
    current: Current,
    *,
    target: Set[TopicIdPartition],
    target_epoch: int,
    owned: Owned,
    is_free: Callable[[TopicIdPartition], bool],
    may_read: Callable[[TopicIdPartition], bool] | None = None,
) -> Current:
    """Returns what the member owns next.

    `is_free` tells whether no other member owns a partition. `may_read` is given if the member has
    changed its subscription: partitions that are no longer part of it are revoked at once, even if
    the target is still the old one.
    """
    match current.state:
        case MemberState.UNKNOWN:
            if owned is None or owned:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The state of the member is unknown: give up all partitions and join again.",
                )
        case MemberState.STABLE if current.epoch == target_epoch:
            return _without_unsubscribed(current, owned, may_read)
        case MemberState.UNREVOKED if _still_owns(owned, current.pending):
            return _without_unsubscribed(current, owned, may_read)
    return _next(current, target, target_epoch, owned, is_free)


def _still_owns(owned: Owned, pending: Mapping[TopicIdPartition, int]) -> bool:
    return bool(pending) and (owned is None or not owned.isdisjoint(pending))


def _without_unsubscribed(
    current: Current, owned: Owned, may_read: Callable[[TopicIdPartition], bool] | None
) -> Current:
    if may_read is None:
        return current
    keep = {each: epoch for each, epoch in current.assigned.items() if may_read(each)}
    if len(keep) == len(current.assigned):
        return current
    revoked = {each: epoch for each, epoch in current.assigned.items() if each not in keep}
    if _still_owns(owned, revoked):
        pending = {**current.pending, **revoked}
        return replace(current, state=MemberState.UNREVOKED, assigned=keep, pending=pending)
    return replace(current, assigned=keep)


def _next(
    current: Current,
    target: Set[TopicIdPartition],
    target_epoch: int,
    owned: Owned,
    is_free: Callable[[TopicIdPartition], bool],
) -> Current:
    keep = {each: epoch for each, epoch in current.assigned.items() if each in target}
    revoke = {each: epoch for each, epoch in current.assigned.items() if each not in keep}
    if _still_owns(owned, revoke):
        return replace(current, state=MemberState.UNREVOKED, assigned=keep, pending=revoke)
    add = {each: target_epoch for each in target if each not in keep and is_free(each)}
    waits = len(keep) + len(add) < len(target)
    return Current(
        target_epoch,
        current.previous_epoch if target_epoch == current.epoch else current.epoch,
        MemberState.UNRELEASED if waits else MemberState.STABLE,
        {**keep, **add},
    )
