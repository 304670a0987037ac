"""The context of one request, which its handler gets together with the request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.broker.cooperative_yield import Slices, slices_of
from penstock.broker.services import Services
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
        """Empty if the client sent none."""
        self.host = host
        self.is_appended = False
        """Set by a produce request when all its batches are in the log and only wait for their
        commit. The connection's next produce request may then begin."""
        self.is_replica = False
        """Set by a fetch from a broker that is registered with the broker epoch it names."""
        self.is_large = False
        """The response is large, so it is encoded on a thread. Read when the response is ready."""

    @property
    def slicing(self) -> Slicing:
        return self.services.env.slicing

    def slices(self) -> Slices:
        return slices_of(self.services.env)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Runs a handler's coroutine in the broker's task group. Its result is the response."""
        return spawned(self.services, work)


def spawned(services: Services, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Runs a coroutine in the broker's task group. The future gets its result or exception."""
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    services.spawn(_resolve(work, done))
    return done


async def _resolve(work: Coroutine[Any, Any, T], done: asyncio.Future[T]) -> None:
    try:
        result = await work
    except asyncio.CancelledError:
        done.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - dispatch turns it into an error response
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(result)
