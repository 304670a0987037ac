"""Builds the requests to leaders of partitions of share groups. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.client.sharing.acknowledgements import Group, batches
from penstock.client.sharing.session import SessionFetch
from penstock.wire.messages import ShareAcknowledgeRequest, ShareFetchRequest


class Member(NamedTuple):
    """Who sends a request."""

    group_id: str
    member_id: str


class FetchLimits(NamedTuple):
    """How much a fetch may bring, and how long it may wait for it."""

    records: int = 0
    nbytes: int = 0
    min_bytes: int = 0
    wait_ms: int = 0


NOTHING = FetchLimits()
"""The limits of a fetch of no partitions, which only begins a session or forgets partitions."""


def share_fetch(
    member: Member,
    said: SessionFetch,
    limits: FetchLimits,
    groups: Iterable[Group],
    acquire_mode: int,
) -> ShareFetchRequest:
    """Returns a fetch that carries these acknowledgements."""
    request = ShareFetchRequest(
        group_id=member.group_id,
        member_id=member.member_id,
        share_session_epoch=said.epoch,
        max_wait_ms=limits.wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.nbytes,
        max_records=limits.records,
        batch_size=max(1, limits.records),
        share_acquire_mode=acquire_mode,
        topics=[],
        forgotten_topics_data=[],
    )
    acks = {group[0].part: group for group in groups}
    for part in sorted({*said.added, *acks}):
        if not request.topics or request.topics[-1].topic_id != part.topic_id:
            request.topics.append(ShareFetchRequest.Topic(part.topic_id, []))
        made = batches(acks.get(part, []), ShareFetchRequest.AcknowledgementBatch)
        request.topics[-1].partitions.append(
            ShareFetchRequest.Partition(part.partition, acknowledgement_batches=made)
        )
    gone = request.forgotten_topics_data
    for part in said.forgotten:
        if not gone or gone[-1].topic_id != part.topic_id:
            gone.append(ShareFetchRequest.ForgottenTopic(part.topic_id, []))
        gone[-1].partitions.append(part.partition)
    return request


def share_acknowledge(
    member: Member, epoch: int, groups: Iterable[Group], *, renews: bool = False
) -> ShareAcknowledgeRequest:
    request = ShareAcknowledgeRequest(
        group_id=member.group_id,
        member_id=member.member_id,
        share_session_epoch=epoch,
        is_renew_ack=renews,
        topics=[],
    )
    for group in sorted(groups, key=lambda each: each[0].part):
        topic_id, partition = group[0].part
        if not request.topics or request.topics[-1].topic_id != topic_id:
            request.topics.append(ShareAcknowledgeRequest.Topic(topic_id, []))
        made = batches(group, ShareAcknowledgeRequest.AcknowledgementBatch)
        request.topics[-1].partitions.append(ShareAcknowledgeRequest.Partition(partition, made))
    return request
