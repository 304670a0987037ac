"""The arguments with which Celery and kombu declare a queue, under RabbitMQ's names. Pure.

Those that a topic can have are kept. The others have no effect here, and the caller says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.client.queues.job_headers import PRIORITY_LEVELS

LENGTH_MAX: Final = "penstock.queue.length.max"
LENGTH_POLICY: Final = "penstock.queue.length.policy"
_LEVELS_MAX: Final = 8
_POLICIES: Final = {"drop-head": "drop-oldest", "reject-publish": "refuse"}
"""RabbitMQ's `x-overflow`, and what it is here."""
_KNOWN: Final = frozenset(("x-max-priority", "x-message-ttl", "x-max-length", "x-overflow"))
_WITHOUT_MEANING: Final = frozenset(("x-queue-type", "x-queue-mode", "x-queue-version"))
"""How RabbitMQ stores a queue. Every queue here is durable and replicated."""


class BadArgument(ValueError):
    """An argument has a value that no queue can have."""


class QueueArguments(NamedTuple):
    max_priority: int | None = None
    ttl_ms: int | None = None
    """Messages that were not delivered for so long are given up."""
    length_max: int | None = None
    length_policy: str = "drop-oldest"
    ignored: tuple[str, ...] = ()
    """Arguments that have no effect."""

    def topic_configs(self) -> dict[str, str]:
        """Returns the settings that the topic of the queue needs."""
        configs: dict[str, str] = {}
        if self.max_priority:
            configs[PRIORITY_LEVELS] = str(min(self.max_priority + 1, _LEVELS_MAX))
        if self.length_max is not None:
            configs[LENGTH_MAX] = str(self.length_max)
            configs[LENGTH_POLICY] = self.length_policy
        return configs


def read_arguments(arguments: Mapping[str, Any] | None) -> QueueArguments:
    """Reads the arguments of a queue, or raises `BadArgument`."""
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    overflow = given.get("x-overflow", "drop-head")
    policy = _POLICIES.get(overflow)
    if policy is None:
        allowed = " or ".join(_POLICIES)
        raise BadArgument(f"x-overflow is {overflow!r}, but it must be {allowed}")
    return QueueArguments(
        max_priority=_number(given, "x-max-priority", least=0),
        ttl_ms=_number(given, "x-message-ttl", least=0),
        length_max=_number(given, "x-max-length", least=1),
        length_policy=policy,
        ignored=tuple(sorted(given.keys() - _KNOWN - _WITHOUT_MEANING)),
    )


def _number(given: Mapping[str, Any], name: str, *, least: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadArgument(f"{name} is {value!r}, but it must be a whole number, {least} or more")
    return value
