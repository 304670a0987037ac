"""Applies `max.connections.per.ip.overrides`, whose hosts may be addresses or names.

The limits of addresses are in force at once. Names are looked up on a thread, and again every
minute. A name that cannot be looked up keeps the addresses that it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.net.admission import Admission
from penstock.ports import Env
from penstock.security.addresses import canonical, is_address, parse_limits

LOOK_UP_S: Final = 60.0
_log: Final = logging.getLogger(__name__)


class AddressLimits:
    """Keeps the limits of single addresses in an `Admission` up to date."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._text = ""
        self._names: dict[str, int] = {}
        self._addresses: Mapping[str, int] = {}
        self._found: dict[str, tuple[str, ...]] = {}
        self._admission: Admission | None = None
        self._changed = asyncio.Event()

    def apply(self, text: str, admission: Admission) -> None:
        """Puts a new value of the setting in force."""
        self._admission = admission
        if text == self._text:
            return
        self._text, limits = text, parse_limits(text)
        self._addresses = {host: limit for host, limit in limits.items() if is_address(host)}
        self._names = {host: limit for host, limit in limits.items() if not is_address(host)}
        self._found = {name: found for name, found in self._found.items() if name in self._names}
        self._enforce()
        self._changed.set()

    async def run(self) -> None:
        """Looks up the names, until cancelled."""
        while True:
            self._changed.clear()
            await self.look_up()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_UP_S if self._names else None):
                    await self._changed.wait()

    async def look_up(self) -> None:
        """Looks up all names once."""
        for name in tuple(self._names):
            try:
                found = await self._env.executor.run(partial(_addresses_of, name))
            except (OSError, UnicodeError) as error:  # The second one: it is no host name.
                _log.warning(
                    "max.connections.per.ip.overrides: %s cannot be resolved (%s): check the "
                    "name, or use an address",
                    name,
                    error,
                )
                continue
            if name in self._names:
                self._found[name] = found
        self._enforce()

    def _enforce(self) -> None:
        if self._admission is not None:
            of_names = {
                address: self._names[name]
                for name, found in self._found.items()
                for address in found
            }
            self._admission.of_address = {**of_names, **self._addresses}


def _addresses_of(name: str) -> tuple[str, ...]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return tuple({canonical(str(address[0])): None for *_, address in found})
