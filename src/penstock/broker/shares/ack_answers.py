"""What the share partitions of a broker count, and the acknowledgements that it has to answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from penstock.broker.shares.dead_letters import LetterCounters
from penstock.broker.shares.length_limits import LengthCounters
from penstock.coordination.effects import Token
from penstock.wire.errors import ErrorCode


@dataclass(slots=True)
class ShareCounters:
    """What the share partitions of this broker have done since it started."""

    delivered: int = 0
    redelivered: int = 0
    acknowledgements_failed: int = 0
    writes_failed: int = 0
    loads_failed: int = 0
    letters: LetterCounters = field(default_factory=LetterCounters)
    lengths: LengthCounters = field(default_factory=LengthCounters)


class AckAnswers:
    """Acknowledgements of one partition that wait for their answers."""

    def __init__(self, counters: ShareCounters) -> None:
        self._counters = counters
        self._waiting: dict[Token, tuple[str, asyncio.Future[ErrorCode]]] = {}

    def add(self, group_id: str) -> tuple[Token, asyncio.Future[ErrorCode]]:
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        token = object()
        self._waiting[token] = group_id, answer
        return token, answer

    def remove(self, token: Token) -> None:
        del self._waiting[token]

    def give(self, token: Token, error: ErrorCode) -> None:
        _, answer = self._waiting.pop(token)
        if error is not ErrorCode.NONE:
            self._counters.acknowledgements_failed += 1
        if not answer.done():
            answer.set_result(error)

    def fail(self, error: ErrorCode, group_id: str | None = None) -> None:
        """Answers all that wait, or those of a group."""
        for token, (of_group, _) in list(self._waiting.items()):
            if group_id in (None, of_group):
                self.give(token, error)
