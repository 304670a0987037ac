"""What the members of share groups do, seen from outside.

The checker of share groups (`checkers.share_states`) compares what members send and get with the
log of the share coordinator. What they send is noted before it is sent, because a request without
an answer may take effect at any time later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.sim.history import ShareAck, ShareExchange, ShareRange


class LeaderView(NamedTuple):
    """What is known from outside about a broker and a share partition, at one moment."""

    term: int | None
    """The leader epoch in which the broker leads the partition, by what it knows itself."""
    leader_epoch: int
    """The leader epoch of the partition in the metadata."""
    loads: int
    """How often the state was read so far, by any leader."""
    is_loaded: bool
    """Whether the last read was that of this broker in this term."""


class ShareJudge(Protocol):
    """Compares what members see with the log of the share coordinator."""

    def view(self, group: str, partition_name: str, broker: int) -> LeaderView: ...

    def on_delivered(
        self, exchange: ShareExchange, found: ShareRange, before: LeaderView | None
    ) -> None:
        """Handles records that a member got. `before` is the view before the request, if the
        member has one."""

    def on_acknowledged(self, exchange: ShareExchange, ack: ShareAck, count: int) -> None:
        """Handles an acknowledgement that was answered without an error. `count` is how often the
        records were delivered when the member got them."""

    def fail(self, rule: str, text: str, partition_name: str = "") -> None:
        """Handles an answer that no broker may give."""


@dataclass(slots=True)
class ShareBoard:
    judge: ShareJudge | None = None
    members: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By process: its group and its member id."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when members must end."""
    _sent: dict[tuple[str, str], dict[int, set[int]]] = field(default_factory=dict)
    """By group and topic partition, by offset: what members may have said about the record."""

    def note_sent(self, group: str, ack: ShareAck) -> None:
        partition_name, first, last, kind, _ = ack
        said = self._sent.setdefault((group, partition_name), {})
        for offset in range(first, last + 1):
            said.setdefault(offset, set()).add(kind)

    def was_sent(self, group: str, partition_name: str, offset: int, kind: int) -> bool:
        """Returns whether any member may have said this about the record."""
        return kind in self._sent.get((group, partition_name), {}).get(offset, ())
