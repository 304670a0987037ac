"""Keeps data keys ready for new segments, and notices when a topic key is gone.

The event loop must not wait for a key provider, which may be a service on another machine. So data
keys are wrapped in advance, on a thread, and those that a read missed are unwrapped there.

A provider that does not answer changes nothing for logs that are open: their data keys are in
memory. A provider that answers that a key is gone (`KeyDropped`) takes the logs of that key
offline, as after a failure (`repair.failed_logs`), and their data keys are forgotten. They can be
opened again once the key is back. Their partitions give up their roles in the same step: a leader
whose log is offline must not commit anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.ports import Env
from penstock.storage.data_keys import DataKey, KeyDropped, KeyUnavailable
from penstock.storage.directory import LogDirectory

CHECK_S: Final = 20.0
"""How often the provider is asked whether a topic key still exists."""
DRAIN_CHECKS: Final = 30
"""After this many checks, data keys that were wrapped in advance are replaced: a new version of a
topic key is used from then on."""
RETRY_S: Final = 1.0
_log = logging.getLogger(__name__)


class TopicKeys:
    """The topic keys of one broker, as far as its logs need them."""

    def __init__(self, env: Env, directory: LogDirectory, on_failed: Callable[[], None]) -> None:
        """`on_failed` is called when logs went offline."""
        self._env = env
        self._directory = directory
        self._disk = directory.disk
        self._keyring = directory.disk.keyring
        self._on_failed = on_failed
        self._work = asyncio.Event()
        self._told: dict[str, str] = {}
        """By topic key, the error that was logged last."""
        self._keyring.on_wanted(self._work.set)

    async def run(self) -> None:
        """Works until cancelled. Returns at once if there is no key provider."""
        if not self._keyring.has_provider:
            return
        checks = 0
        next_s = self._env.clock.monotonic()
        while True:
            await self._fill()
            if self._env.clock.monotonic() >= next_s:
                next_s = self._env.clock.monotonic() + CHECK_S
                checks += 1
                if checks % DRAIN_CHECKS == 0:
                    self._keyring.drain()
                await self._check()
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._work.wait()
            self._work.clear()

    async def _fill(self) -> None:
        run = self._env.executor.run
        if self._keyring.wants_any:
            for error in await run(self._keyring.catch_up):
                self._tell("", error)
        for key_name in self._disk.due_keys():
            if not self._keyring.lacks(key_name):
                continue
            try:
                await run(partial(self._keyring.fill, key_name))
            except KeyUnavailable as error:
                self._tell(key_name, error)
            else:
                self._told.pop(key_name, None)

    async def _check(self) -> None:
        for key_name, logs in self._disk.keys_in_use().items():
            key = next(iter(logs.values()))
            try:
                await self._env.executor.run(partial(self._keyring.check, key))
            except KeyDropped as error:
                self._give_up(key_name, logs, error)
            except KeyUnavailable as error:
                self._tell(key_name, error)
            else:
                self._told.pop(key_name, None)

    def _give_up(self, key_name: str, logs: dict[str, DataKey], error: KeyDropped) -> None:
        _log.error("%s; taking %d encrypted logs offline", error, len(logs))
        self._keyring.forget(key_name)
        for log in self._directory:
            if log.directory in logs and log.failure is None:
                log.fail(
                    str(error),
                    "bring the key back and restart the broker, or delete the topic",
                    lacks_key=True,
                )
                self._disk.forget_keys(log.directory)
        self._on_failed()

    def _tell(self, key_name: str, error: KeyUnavailable) -> None:
        if self._told.get(key_name) != str(error):
            self._told[key_name] = str(error)
            _log.warning("%s; retrying", error)
