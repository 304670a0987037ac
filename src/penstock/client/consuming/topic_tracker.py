"""Tracks the topics that a consumer reads: their metadata, new ids, and errors.

Metadata is refreshed in the fetcher's rounds. The next poll applies what has changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from penstock.client.cluster import Cluster
from penstock.client.consuming.subscription import Subscription
from penstock.client.errors import BrokerError, ClientError
from penstock.client.options import ConsumerOptions
from penstock.wire.errors import ErrorCode


class TopicTracker:
    """The topics of one subscription. `cluster` raises an error unless the consumer runs."""

    def __init__(
        self,
        subscription: Subscription,
        options: ConsumerOptions,
        cluster: Callable[[], Cluster],
        on_news: Callable[[], None],
    ) -> None:
        self._subscription = subscription
        self._options = options
        self._cluster = cluster
        self._on_news = on_news
        self.changed = False
        """Whether the next poll has to check the topics."""
        self._error: ClientError | None = None
        self._known: set[str] = set()
        self._ids: dict[str, list[bytes]] = {}
        """All ids that each topic has had. The last one is the id of the topic that is read now."""

    async def matching(self, pattern: re.Pattern[str]) -> frozenset[str]:
        return frozenset(filter(pattern.fullmatch, await self.counts()))

    async def counts(self) -> dict[str, int]:
        """Returns all topics of the cluster with their numbers of partitions."""
        known = await self._cluster().metadata(None)
        return {
            topic.name: len(topic.partitions)
            for topic in sorted(known.topics, key=lambda topic: topic.name or "")
            if topic.name is not None
            and topic.error_code == ErrorCode.NONE
            and not (topic.is_internal and self._options.exclude_internal_topics)
        }

    async def refresh(self) -> bool:
        """Refreshes the metadata of the topics that are read. Returns whether all of them are
        known."""
        subscription = self._subscription
        if subscription.pattern is not None:
            matching = await self.matching(subscription.pattern)
            if subscription.pattern is not None and matching != subscription.topics:
                subscription.follow(matching, subscription.pattern)
        names = self._names()
        if not names:
            return True
        cluster = self._cluster()
        # A metadata request may create only topics that never existed. A deleted topic stays
        # deleted.
        is_named = subscription.pattern is None and subscription.regex is None
        new = names - self._known if is_named else frozenset()
        if old := names - new:
            await cluster.refresh(old)
        if new:
            await cluster.refresh(new, auto_create=self._options.allow_auto_create_topics)
        self._known |= {name for name in new if cluster.known_partitions(name)}
        self.changed = True
        self._on_news()
        for name in names:
            known = cluster.known_topic(name)
            if known is not None and known.error_code != ErrorCode.NONE:
                error = BrokerError(known.error_code, subject=f"topic {name}")
                if not error.retriable:
                    self._error = error
        return all(cluster.known_partitions(name) is not None for name in names)

    def raise_error(self) -> None:
        """Raises the last error that stops a topic from being read, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def recreated(self, cluster: Cluster) -> Iterator[str]:
        """Yields the topics that were deleted and created again since the last call.

        Such a topic shares only its name with the old one.
        """
        for name in self._names():
            known = cluster.known_topic(name)
            if known is None or known.error_code != ErrorCode.NONE or not any(known.topic_id):
                continue
            ids = self._ids.setdefault(name, [known.topic_id])
            # A broker with stale metadata may still report an older id.
            if known.topic_id not in ids:
                ids.append(known.topic_id)
                yield name

    def _names(self) -> frozenset[str]:
        subscription = self._subscription
        return subscription.topics.union(
            topic_partition.topic for topic_partition in subscription.states
        )
