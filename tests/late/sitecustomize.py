"""Adds delays to brokers, in every Python process that has this directory on its path.

`make starve LATE=1` uses it. A broker answers some requests before all their effects are visible.
It commits a transaction, and writes the markers a moment later. It creates a topic, and the other
brokers learn of it a moment later. On a quiet machine that moment is so short that a test which
does not wait for the effect nearly always passes. With these delays it always fails.

Python imports a module named `sitecustomize` when it starts. The delays are added when a program
imports the affected modules, so programs without a broker start as fast as before. pytest imports
modules in its own way, so it loads this file as a plugin too. pytest cannot rewrite the assertions
of a module that is already imported; PYTEST_DONT_REWRITE tells it not to try.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MARKERS_S = 0.6
LOAD_S = 0.6
WATCH_S = 0.25
FSYNC_S = 0.03


def delay_markers(module: ModuleType) -> None:
    """Writes transaction markers some time after the client's commit is answered."""
    send = module.MarkerSender.send

    def late(sender: Any, marker: Any, partitions: Iterable[Any], tell: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(MARKERS_S, send, sender, marker, tuple(partitions), tell)

    module.MarkerSender.send = late


def delay_load(module: ModuleType) -> None:
    """Makes group and transaction coordinators load their partitions late."""
    load: Callable[[Any], Coroutine[Any, Any, None]] = module.ShardShell.load

    async def late(shell: Any) -> None:
        await asyncio.sleep(LOAD_S)
        if not shell.is_over:
            await load(shell)

    module.ShardShell.load = late


def delay_watch(module: ModuleType) -> None:
    """Delivers metadata changes late, even to the broker that made them."""
    names = ("SqliteStore", "EtcdStore", "ZooKeeperStore")
    store = next(getattr(module, name) for name in names if hasattr(module, name))
    watch: Callable[..., AsyncGenerator[Sequence[Any], None]] = store.watch

    async def late(
        held: Any, prefix: str, from_revision: int
    ) -> AsyncGenerator[Sequence[Any], None]:
        async with aclosing(watch(held, prefix, from_revision)) as found:
            async for events in found:
                await asyncio.sleep(WATCH_S)
                yield events

    store.watch = late


def delay_fsync(module: ModuleType) -> None:
    """Makes every fsync slow."""
    fsync: Callable[[Any], None] = module.OsFile.fsync

    def late(file: Any) -> None:
        time.sleep(FSYNC_S)
        fsync(file)

    module.OsFile.fsync = late


DELAYS: dict[str, Callable[[ModuleType], None]] = {
    "penstock.broker.coordinators.markers": delay_markers,
    "penstock.broker.coordinators.shard_shell": delay_load,
    "penstock.stores.sqlite": delay_watch,
    "penstock.stores.etcd": delay_watch,
    "penstock.stores.zookeeper": delay_watch,
    "penstock.storage.disk": delay_fsync,
}


class _Delaying(Loader):
    def __init__(self, inner: Loader, delay: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._delay = delay

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._delay(module)


class Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        delay = DELAYS.get(name)
        spec = PathFinder.find_spec(name, path, target) if delay is not None else None
        if delay is not None and spec is not None and spec.loader is not None:
            spec.loader = _Delaying(spec.loader, delay)
        return spec


def pytest_configure() -> None:
    for name, delay in DELAYS.items():
        module = sys.modules.get(name)
        if module is not None and not isinstance(module.__loader__, _Delaying):
            delay(module)
    # Insert it before pytest's own finder, which has put itself first.
    sys.meta_path.insert(0, Finder())


sys.meta_path.insert(0, Finder())
