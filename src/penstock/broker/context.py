"""One request's surroundings."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.broker.services import Services
from penstock.broker.watch.turns import Turns, turns_of
from penstock.ports import Slicing

T = TypeVar("T")


class RequestContext:
    __slots__ = (
        "client_id",
        "host",
        "is_appended",
        "is_large",
        "is_replica",
        "services",
        "version",
    )

    def __init__(self, services: Services, version: int, client_id: str, host: str) -> None:
        self.services = services
        self.version = version
        self.client_id = client_id
        """Empty where the client gave none."""
        self.host = host
        self.is_appended = False
        """Set by a produce whose batches are all in the log and only wait for their commit: the
        connection's next produce may then begin."""
        self.is_replica = False
        """Set by a fetch of a broker that is registered with the epoch it names."""
        self.is_large = False
        """The answer is large: it is encoded on a thread. Read when the answer is there."""

    @property
    def slicing(self) -> Slicing:
        return self.services.env.slicing

    def turns(self) -> Turns:
        return turns_of(self.services.env)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a handler's coroutine under the broker's task group; its result answers."""
        return spawned(self.services, work)


def spawned(services: Services, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Run a coroutine under the broker's task group; its result or exception is the future's."""
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    services.spawn(_resolve(work, done))
    return done


async def _resolve(work: Coroutine[Any, Any, T], done: asyncio.Future[T]) -> None:
    try:
        result = await work
    except asyncio.CancelledError:
        done.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - it becomes the answer's; dispatch maps it
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(result)
