"""A partition that this broker follows, and the link that fetches it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from penstock.broker.replication.follower_shell import FollowerShell
from penstock.partition.follower import Effect
from penstock.topic_partition import TopicPartition


class FetchLink(Protocol):
    """The link to a leader, as far as a partition uses it (`leader_link`)."""

    leader: int

    @property
    def is_idle(self) -> bool: ...

    def add(self, linked: LinkedPartition) -> None: ...

    def remove(self, linked: LinkedPartition) -> None: ...

    def offer(self, linked: LinkedPartition) -> None: ...

    def pause(self, linked: LinkedPartition) -> None: ...

    def settle(self, linked: LinkedPartition, effects: Sequence[Effect]) -> None: ...


class LinkedPartition:
    """A partition that a link fetches."""

    __slots__ = ("key", "lags", "link", "retry_at_ms", "shell", "timer")

    def __init__(self, key: TopicPartition, shell: FollowerShell, link: FetchLink) -> None:
        self.key = key
        self.shell = shell
        self.link = link
        self.lags = True
        """In the last answer, the leader's high watermark was above the fetch offset. True before
        the first answer."""
        self.retry_at_ms = 0
        self.timer: asyncio.TimerHandle | None = None
