"""Which consumer groups read which topics: a change of a topic concerns only these groups."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.groups.consumer.group import ConsumerGroup


class TopicReaders:
    def __init__(self) -> None:
        self._readers: dict[str, set[str]] = {}
        self._topics: dict[str, frozenset[str]] = {}
        self._with_regexes: set[str] = set()

    def note(self, group: ConsumerGroup) -> None:
        """Notes what a group reads, after it may have changed."""
        self._set(group.group_id, group.subscribed_topics)
        if group.regex_users:
            self._with_regexes.add(group.group_id)
        else:
            self._with_regexes.discard(group.group_id)

    def forget(self, group_id: str) -> None:
        self._set(group_id, frozenset())
        self._with_regexes.discard(group_id)

    def _set(self, group_id: str, topics: frozenset[str]) -> None:
        before = self._topics.get(group_id, frozenset())
        if topics is before or topics == before:
            return
        for name in before - topics:
            readers = self._readers[name]
            readers.discard(group_id)
            if not readers:
                del self._readers[name]
        for name in topics - before:
            self._readers.setdefault(name, set()).add(group_id)
        if topics:
            self._topics[group_id] = topics
        else:
            del self._topics[group_id]

    def of(self, names: Iterable[str]) -> set[str]:
        """Returns the ids of the groups that read one of the topics, which need not exist."""
        return set().union(*(self._readers.get(name, ()) for name in names))

    def with_regexes(self) -> set[str]:
        """Returns the ids of the groups in which members subscribe with regular expressions."""
        return set(self._with_regexes)
