"""A shard that stores names with values: the smallest coordinator that the kernel can run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Never, TypeAlias

from penstock.coordination import effects
from penstock.coordination.effects import Append, EffectList, LogRecord, Now, Token
from penstock.coordination.in_flight import AppendsInFlight
from penstock.wire.errors import ErrorCode

Effect: TypeAlias = effects.Effect[str, str, Never]


class ShardState:
    def __init__(self, batch_bytes_max: int) -> None:
        self.image: dict[str, str] = {}
        self.effects = EffectList[str, str, Never]()
        self.appends = AppendsInFlight(self, self.effects, self._replay, lambda: batch_bytes_max)

    def _replay(self, append: Append) -> None:
        for record in append.records:
            name = record.key.decode()
            if record.value is None:
                self.image.pop(name, None)
            else:
                self.image[name] = record.value.decode()


@dataclass(frozen=True)
class Stored:
    """A client waits until its values are stored."""

    token: Token

    def committed(self, shard: ShardState, now: Now) -> None:
        shard.effects.reply(self.token, f"stored, {len(shard.image)} names")

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        shard.effects.reply(self.token, f"failed: {error.name}")

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        shard.effects.reply(self.token, code.name)


@dataclass(frozen=True)
class Expired:
    """No client waits for this. If it fails, it is tried again a second later."""

    name: str

    def committed(self, shard: ShardState, now: Now) -> None: ...

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        shard.effects.set_timer(self.name, now.ticks_ms + 1_000)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None: ...


class ToyShard:
    def __init__(self, batch_bytes_max: int) -> None:
        self.state = ShardState(batch_bytes_max)

    def store(
        self, values: Mapping[str, str], token: Token, now: Now, *, together: bool
    ) -> list[Effect]:
        records = [LogRecord(name.encode(), value.encode()) for name, value in values.items()]
        appends = self.state.appends
        (appends.start if together else appends.start_batches)(records, Stored(token), now)
        return self.state.effects.take()

    def read(self, name: str, token: Token) -> list[Effect]:
        self.state.effects.reply(token, self.state.image.get(name, "nothing"))
        return self.state.effects.take()

    def expire(self, name: str, at_ms: int) -> list[Effect]:
        self.state.effects.set_timer(name, at_ms)
        return self.state.effects.take()

    def keep(self, name: str) -> list[Effect]:
        self.state.effects.cancel_timer(name)
        return self.state.effects.take()

    def on_loaded(self, now: Now) -> list[Effect]:
        return self.state.effects.take()

    def on_timer(self, key: str, now: Now) -> list[Effect]:
        self.state.appends.start([LogRecord(key.encode(), None)], Expired(key), now)
        return self.state.effects.take()

    def on_committed(self, append_id: int, now: Now) -> list[Effect]:
        self.state.appends.on_committed(append_id, now)
        return self.state.effects.take()

    def on_append_failed(self, append_id: int, error: ErrorCode, now: Now) -> list[Effect]:
        self.state.appends.on_failed(append_id, error, now)
        return self.state.effects.take()

    def on_append_late(self, append_id: int) -> list[Effect]:
        self.state.appends.on_late(append_id)
        return self.state.effects.take()

    def unload(self, code: ErrorCode) -> list[Effect]:
        self.state.appends.abandon(code)
        return self.state.effects.take()

    def take_effects(self) -> list[Effect]:
        return self.state.effects.take()
