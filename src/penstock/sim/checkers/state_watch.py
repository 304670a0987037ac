"""Notices whether a step has changed any state of a replica that the invariants check.

While a watch is on, the classes that hold a replica's state note every assignment to the attributes
in question, from any code. So the invariants check a broker's replicas only after a step that
assigned one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.partition.follower import Follower
from penstock.partition.leadership import Leadership
from penstock.partition.machine import PartitionMachine
from penstock.storage.log_state import LogState

WATCHED: Final[dict[type, frozenset[str]]] = {
    LogState: frozenset({"end_offset", "recovery_point", "failure"}),
    HostedPartition: frozenset({"log"}),
    PartitionMachine: frozenset({"leadership", "follower", "_restored_high_watermark"}),
    Leadership: frozenset({"high_watermark"}),
    Follower: frozenset({"high_watermark"}),
}
"""By class: the attributes that `Invariants` compares, or that its properties read."""


class StateWatch:
    __slots__ = ("touched",)

    def __init__(self) -> None:
        self.touched = True
        """An attribute was assigned since this was last cleared."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Notes assignments while the context lasts."""
        with ExitStack() as installed:
            for owner, names in WATCHED.items():
                type.__setattr__(owner, "__setattr__", self._noting(names))
                installed.callback(delattr, owner, "__setattr__")
            yield

    def _noting(self, names: frozenset[str]) -> Callable[[Any, str, Any], None]:
        assign = object.__setattr__

        def note(instance: object, name: str, value: object) -> None:
            assign(instance, name, value)
            if name in names:
                self.touched = True

        return note
