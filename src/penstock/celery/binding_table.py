"""Which queues get the messages of an exchange. Pure.

The table is the state of a compacted topic: each record adds or deletes one binding. A binding to
a queue of one client has no queue here: that client reads the log of the exchange and selects its
messages itself. So the table only has to say that the log of the exchange is in use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

KINDS: Final = frozenset({"direct", "topic", "fanout"})


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue gets the messages of an exchange whose routing key fits."""

    exchange: str
    routing_key: str
    queue: str
    """Empty for the log of the exchange."""

    def key(self) -> bytes:
        return json.dumps([self.exchange, self.routing_key, self.queue]).encode()


def log_of(exchange: str) -> Binding:
    """Returns the binding that says that clients read the log of an exchange."""
    return Binding(exchange, "", "")


def value_of(kind: str) -> bytes:
    """Returns the value of a binding's record: the type of the exchange."""
    return json.dumps({"type": kind}).encode()


def fits(kind: str, pattern: str, routing_key: str) -> bool:
    """Whether an exchange of this type delivers a message to a binding."""
    if kind == "fanout":
        return True
    if kind == "topic":
        return _words_fit(pattern.split("."), routing_key.split(".") if routing_key else [])
    return pattern == routing_key


def _words_fit(pattern: list[str], words: list[str]) -> bool:
    """`*` stands for one word, `#` for any number of words, none included."""
    # reached[i] says whether the pattern so far fits the first i words.
    reached = [True] + [False] * len(words)
    for part in pattern:
        if part == "#":
            first = reached.index(True) if True in reached else len(reached)
            reached = [place >= first for place in range(len(reached))]
        else:
            reached = [False] + [
                reached[place] and part in ("*", word) for place, word in enumerate(words)
            ]
    return reached[-1]


class BindingTable:
    """All bindings of a virtual host, as far as they were read."""

    def __init__(self) -> None:
        self._kinds: dict[Binding, str] = {}

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Applies a record. Records that are not bindings have no effect."""
        try:
            exchange, routing_key, queue = json.loads(key or b"")
            kind = None if value is None else json.loads(value)["type"]
        except (ValueError, TypeError, KeyError):
            return
        binding = Binding(str(exchange), str(routing_key), str(queue))
        if kind is None:
            self._kinds.pop(binding, None)
        elif kind in KINDS:
            self._kinds[binding] = kind

    def has(self, binding: Binding, kind: str) -> bool:
        return self._kinds.get(binding) == kind

    def kind(self, exchange: str) -> str | None:
        """Returns the type of an exchange that has bindings."""
        return next((kind for each, kind in self._kinds.items() if each.exchange == exchange), None)

    def queues(self, exchange: str, routing_key: str) -> list[str]:
        """Returns the queues that get a message, sorted, each once."""
        found = {
            each.queue
            for each, kind in self._kinds.items()
            if each.exchange == exchange
            and each.queue
            and fits(kind, each.routing_key, routing_key)
        }
        return sorted(found)

    def uses_log(self, exchange: str) -> bool:
        return log_of(exchange) in self._kinds

    def of_queue(self, queue: str) -> list[Binding]:
        return [each for each in self._kinds if each.queue == queue]

    def of_exchange(self, exchange: str) -> list[Binding]:
        return [each for each in self._kinds if each.exchange == exchange]

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._kinds)
