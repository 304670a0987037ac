"""Refreshes the image before a request fails because of an unknown topic.

A topic that was created through another broker appears here only when the store's watch has
delivered it. A client may create a topic through one broker and then use it through another. That
broker must not answer that the topic does not exist, because few clients retry that error. So a
handler that does not find a topic first reads the store's current revision, and waits until the
image has reached it. All such requests of a broker share these reads. If the store does not answer
soon, the handler uses the image as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from penstock.broker.context import RequestContext, Services
from penstock.metadata.topic_ids import ZERO_ID
from penstock.metadata.topics import validate_topic_name
from penstock.stores.errors import StoreError
from penstock.wire.errors import KafkaError

T = TypeVar("T")

CATCH_UP_S: Final = 1.0
"""How long a request for an unknown topic waits for the store."""


def with_fresh_topics(
    context: RequestContext,
    names: Iterable[str],
    answer: Callable[[], T | asyncio.Future[T]],
    topic_ids: Iterable[bytes] = (),
) -> T | asyncio.Future[T]:
    """Calls `answer`, but first brings the image up to date if it lacks one of the topics."""
    services = context.services
    if any(_is_missing(services, name) for name in names) or any(
        each != ZERO_ID and services.image.topic_by_id(each) is None for each in topic_ids
    ):
        return context.spawn(_answered_later(services, answer))
    return answer()


def _is_missing(services: Services, name: str) -> bool:
    if name in services.image.topics:
        return False
    try:
        validate_topic_name(name)
    except KafkaError:
        return False
    return True


async def _answered_later(services: Services, answer: Callable[[], T | asyncio.Future[T]]) -> T:
    try:
        async with asyncio.timeout(CATCH_UP_S):
            await services.cluster.catch_up_shared()
    except (StoreError, TimeoutError):
        pass  # Answer from the image as it is.
    result = answer()
    return await result if isinstance(result, asyncio.Future) else result
