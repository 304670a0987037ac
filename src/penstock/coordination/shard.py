"""The calls that a shell makes to a shard. The shell must follow these rules:

- It carries out the effects of each call in order.
- It reports each `Append` once, by `on_committed` or `on_append_failed`, in the order of the
  appends. Failed means that the records are not in the log and never will be. While the outcome is
  unknown it reports neither. `on_committed` also replays the records in the shard.
- It may call `on_append_late` before that, if an append takes long.
- Each token gets exactly one `Reply`, sooner or later; `unload` answers those that are left. After
  that it reports nothing any more.
- Timers may fire late, or without need: the shard checks them.
- To load a partition, it replays every record of its log, and then calls `on_loaded`. Only then may
  it pass in requests.
"""

from __future__ import annotations

from typing import Protocol

from penstock.coordination.effects import Answer, Effect, Key, Now, Own
from penstock.wire.errors import ErrorCode


class Shard(Protocol[Answer, Key, Own]):
    def on_loaded(self, now: Now) -> list[Effect[Answer, Key, Own]]: ...

    def on_timer(self, key: Key, now: Now) -> list[Effect[Answer, Key, Own]]: ...

    def on_committed(self, append_id: int, now: Now) -> list[Effect[Answer, Key, Own]]: ...

    def on_append_failed(
        self, append_id: int, error: ErrorCode, now: Now
    ) -> list[Effect[Answer, Key, Own]]: ...

    def on_append_late(self, append_id: int) -> list[Effect[Answer, Key, Own]]:
        """Answers the requests that wait for a slow append. Its outcome must still be reported."""

    def unload(self, code: ErrorCode) -> list[Effect[Answer, Key, Own]]:
        """Answers all waiting requests: this broker no longer coordinates the shard."""

    def take_effects(self) -> list[Effect[Answer, Key, Own]]:
        """Returns the effects that a call had decided on before it raised."""
