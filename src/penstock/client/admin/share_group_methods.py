"""Share groups of a cluster, through an admin client. The functions are methods of `Admin`."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from penstock.client.admin import share_groups
from penstock.client.admin.share_groups import ShareGroupInfo, SharePartitionOffsets
from penstock.client.cluster import Cluster
from penstock.client.errors import ApiNotServed, BrokerError
from penstock.topic_partition import TopicPartition

T = TypeVar("T")


class _Client(Protocol):
    @property
    def _open(self) -> Cluster: ...

    async def _do(self, what: str, work: Coroutine[Any, Any, T]) -> T: ...


async def describe_share_group(self: _Client, group: str) -> ShareGroupInfo:
    """Returns a share group's state and its members. Raises `BrokerError` if there is none."""
    work = _served(share_groups.describe_share_group(self._open, group))
    return await self._do("describe_share_group", work)


async def share_group_offsets(
    self: _Client, group: str
) -> dict[TopicPartition, SharePartitionOffsets]:
    """Returns how far a share group is with each partition. Empty if there is no such group."""
    work = _served(share_groups.share_group_offsets(self._open, group))
    return await self._do("share_group_offsets", work)


async def alter_share_group_offsets(
    self: _Client, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, BrokerError | None]:
    """Sets the first offset that is not done, for a share group without members.

    What is at or after the offset is delivered again, as if it had never been delivered. What is
    before it counts as done. Creates the group if there is none.
    """
    work = _served(share_groups.alter_share_group_offsets(self._open, group, offsets))
    return await self._do("alter_share_group_offsets", work)


async def delete_share_group_offsets(
    self: _Client, group: str, topics: Sequence[str]
) -> dict[str, BrokerError | None]:
    """Deletes what a share group without members knows of these topics.

    If it reads such a topic again, it begins as a new group does.
    """
    work = _served(share_groups.delete_share_group_offsets(self._open, group, topics))
    return await self._do("delete_share_group_offsets", work)


async def _served(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except ApiNotServed as error:
        raise share_groups.not_served(error) from error
