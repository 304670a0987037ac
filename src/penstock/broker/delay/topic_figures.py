"""How far the delay topics of this broker are behind, for its metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

TOPICS_MAX: Final = 100
OTHERS: Final = "(other)"


class DelayedTopic(NamedTuple):
    topic: str
    scheduled: int
    """Records that are not copied yet."""
    overdue_s: float
    """How long the next record has been due, in the partition that is furthest behind."""


class _Hosted(Protocol):
    topic: str


class _Delayed(Protocol):
    @property
    def hosted(self) -> _Hosted: ...
    @property
    def waiting(self) -> int: ...
    def overdue_ms(self) -> int: ...


def delayed_topics(
    partitions: Iterable[_Delayed], topics_max: int = TOPICS_MAX
) -> list[DelayedTopic]:
    """Returns the topics that are furthest behind, and the rest as one."""
    found: dict[str, DelayedTopic] = {}
    for each in partitions:
        _add(found, DelayedTopic(each.hosted.topic, each.waiting, each.overdue_ms() / 1000))
    ordered = sorted(found.values(), key=lambda each: (-each.overdue_s, -each.scheduled))
    rest: dict[str, DelayedTopic] = {}
    for topic in ordered[topics_max:]:
        _add(rest, topic._replace(topic=OTHERS))
    return [*ordered[:topics_max], *rest.values()]


def _add(found: dict[str, DelayedTopic], more: DelayedTopic) -> None:
    topic, scheduled, overdue_s = found.get(more.topic, DelayedTopic(more.topic, 0, 0.0))
    found[topic] = DelayedTopic(topic, scheduled + more.scheduled, max(overdue_s, more.overdue_s))
