"""A partition that this broker follows, and the link that fetches it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from penstock.broker.replication.following import Following
from penstock.partition.follower import Effect
from penstock.topic_partition import TopicPartition


class FetchLink(Protocol):
    """The link to a leader, as far as a followed partition uses it (`leader_link`)."""

    leader: int

    @property
    def is_idle(self) -> bool: ...

    def add(self, followed: Followed) -> None: ...

    def remove(self, followed: Followed) -> None: ...

    def offer(self, followed: Followed) -> None: ...

    def pause(self, followed: Followed) -> None: ...

    def settle(self, followed: Followed, effects: Sequence[Effect]) -> None: ...


class Followed:
    """A partition that a link fetches."""

    __slots__ = ("following", "key", "lags", "link", "retry_at_ms", "timer")

    def __init__(self, key: TopicPartition, following: Following, link: FetchLink) -> None:
        self.key = key
        self.following = following
        self.link = link
        self.lags = True
        """In the last answer, the leader's high watermark was above the fetch offset. True before
        the first answer."""
        self.retry_at_ms = 0
        self.timer: asyncio.TimerHandle | None = None
