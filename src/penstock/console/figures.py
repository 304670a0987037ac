"""The data of the charts: figures over time of the cluster, brokers, queries, or of one topic,
group, queue or deployed pipeline.

They come from the history of the user's own workspace. A topic or group that the user may not see
is not in its snapshot, and so has no figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.console.errors import BadRequest
from penstock.console.history import BROKERS, CLUSTER, QUERIES, RANGES_S, Scope
from penstock.console.watch import Watch
from penstock.ports import Clock

_WHOLE: Final = {scope[0]: scope for scope in (CLUSTER, BROKERS, QUERIES)}
_NAMED: Final = ("topic", "group", "queue", "pipeline")


class Figures:
    """`known` says for a kind that is not in the snapshot of `watch` whether a name exists."""

    def __init__(
        self, watch: Watch, clock: Clock, known: Mapping[str, Callable[[str], bool]]
    ) -> None:
        self._watch = watch
        self._clock = clock
        self._known = known

    def read(self, kind: str, name: str, range_s: int) -> dict[str, Any]:
        """Returns the figures of the last `range_s` seconds. A page calls this repeatedly."""
        if range_s not in RANGES_S:
            known = ", ".join(map(str, RANGES_S))
            raise BadRequest(f"range must be one of {known} seconds, not {range_s}")
        scope: Scope | None = _WHOLE.get(kind)
        if scope is None:
            if kind not in _NAMED:
                raise BadRequest(f"kind must be one of {', '.join([*_WHOLE, *_NAMED])}")
            scope = kind, name
        picture, now_ms = self._watch.picture, self._clock.wall_ms()
        if kind in _NAMED:
            if not self._exists(kind, name):
                scope = kind, ""  # it has no figures
            else:
                picture.history.follow(scope, now_ms)
        elif kind == "queries":
            picture.history.follow(scope, now_ms)
        return {"now_ms": now_ms, **picture.history.read(scope, now_ms, range_s)}

    def _exists(self, kind: str, name: str) -> bool:
        picture = self._watch.picture
        match kind:
            case "topic":
                return name in picture.by_name
            case "group":
                return name in picture.groups
        return self._known[kind](name)
