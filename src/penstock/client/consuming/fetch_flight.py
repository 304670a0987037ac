"""A fetch in flight: its broker's lane, and the partitions that it covers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.connection import Connection
from penstock.client.consuming.sessions import Asked
from penstock.client.consuming.subscription import PartitionState
from penstock.topic_partition import TopicPartition


class Wanted(NamedTuple):
    """A partition in a fetch, with the token that shows whether the response is still current."""

    state: PartitionState
    token: int
    asked: Asked


class FetchLane(NamedTuple):
    """One of a broker's connections for fetches."""

    broker_id: int
    number: int


class FetchFlight:
    """A fetch in flight, and the most that it may return."""

    __slots__ = ("connection", "room", "wanted")

    def __init__(self, wanted: Mapping[TopicPartition, Wanted], room: int) -> None:
        self.wanted = wanted
        self.room = room
        self.connection: Connection | None = None
        """The connection it was sent on; None until it is sent."""

    def covers(self, state: PartitionState) -> bool:
        each = self.wanted.get(state.topic_partition)
        return each is not None and each.token == state.token
