"""Runs a shard with a manual clock, a log that commits on demand, and timers.

It does what a broker's runtime does and nothing else: it carries out effects in order, reports
appends in order, and fires timers in order of time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from penstock.coordination.effects import (
    Append,
    CancelTimer,
    LogRecord,
    Now,
    Reply,
    SetTimer,
    Token,
)
from penstock.groups.config import GroupConfig
from penstock.groups.effects import Effect, TimerKey
from penstock.groups.shard import GroupShard
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.base import Response

EPOCH_MS = 1_700_000_000_000


class World:
    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.batch_bytes_max = 1 << 20
        self.ticks_ms = 0
        self.log: list[LogRecord] = []
        self.batch_ends: list[int] = []
        """How many records the log has after each of its batches."""
        self.waiting: deque[Append] = deque()
        self.timers: dict[TimerKey, int] = {}
        self.replies: dict[Token, Response] = {}
        self.holds_log = False
        self.fails_log: ErrorCode | None = None
        self.on_reply: Callable[[Token, Response], None] = lambda token, response: None
        self.on_log: Callable[[LogRecord], None] = lambda record: None
        self._ids: Counter[str] = Counter()
        self.shard = self._new_shard()
        self.carry_out(self.shard.on_loaded(self.now))

    def _new_shard(self) -> GroupShard:
        return GroupShard(self.config, self.new_member_id, lambda: self.batch_bytes_max)

    @property
    def now(self) -> Now:
        return Now(self.ticks_ms, EPOCH_MS + self.ticks_ms)

    def new_member_id(self, prefix: str) -> str:
        self._ids[prefix] += 1
        return f"{prefix}-{self._ids[prefix]}"

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(token, response):
                    assert token not in self.replies, f"{token} is answered twice"
                    self.replies[token] = response
                    self.on_reply(token, response)
                case SetTimer(key, at_ms):
                    self.timers[key] = at_ms
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Append():
                    self.waiting.append(effect)
        if not self.holds_log:
            self.settle()

    def settle(self) -> None:
        """Commits or refuses all waiting appends."""
        while self.waiting:
            self.settle_one()

    def settle_one(self) -> None:
        append = self.waiting.popleft()
        if self.fails_log is not None:
            effects = self.shard.on_append_failed(append.append_id, self.fails_log, self.now)
        else:
            for record in append.records:
                self.log.append(record)
                self.on_log(record)
            self.batch_ends.append(len(self.log))
            effects = self.shard.on_committed(append.append_id, self.now)
        self.carry_out(effects)

    def next_timer_ms(self) -> int | None:
        return min(self.timers.values(), default=None)

    def advance(self, milliseconds: int, after_each: Callable[[], None] = lambda: None) -> None:
        """Advances the clock and fires the timers that become due."""
        until = self.ticks_ms + milliseconds
        while self.timers:
            key, at_ms = min(self.timers.items(), key=lambda item: (item[1], list(item[0][1:])))
            if at_ms > until:
                break
            self.ticks_ms = max(self.ticks_ms, at_ms)
            del self.timers[key]
            self.carry_out(self.shard.on_timer(key, self.now))
            after_each()
        self.ticks_ms = until

    def restart(self) -> None:
        """Simulates a crash: a new shard replays the log. Waiting requests get no response."""
        self.timers.clear()
        self.waiting.clear()
        self.shard = self._new_shard()
        for record in self.log:
            self.shard.replay(record.key, record.value)
        self.carry_out(self.shard.on_loaded(self.now))
